"""Costs of the host in a step: launches, copies, allocators, threads."""

from __future__ import annotations

from workers.simulator.model.settings import Allocator, ServingConfig
from workers.simulator.model.system import System

# report A: one slot-mapping kernel about 131 us a step, a weight transpose of 4.3 us for each linear layer.
SLOT_MAPPING_MS = 0.131
TRANSPOSE_MS = 0.0043
LINEAR_STATE_MS = 0.03  # the recurrent state of each linear layer is indexed from the host; assumed
# report A, row host allocator: glibc's arena contention costs 0.1 / 0.3 / 0.6 ms at c1 / c4 / c8.
HOST_ALLOCATOR_MS = 0.10
HOST_ALLOCATOR_PER_SEQUENCE_MS = 0.0631
HOST_ALLOCATOR_PER_PAIR_MS = 0.00119
HOST_ALLOCATOR_MOST = 20  # other sequences, beyond which the arenas are as contended as they get; assumed
# report A, row batch memcpy: "small".
BATCH_MEMCPY_MS = 0.03
# report A kept OMP_NUM_THREADS=1 without a figure; the shape is assumed. Unset means one thread a core.
OMP_MS = {1: -0.10, 2: -0.12, 4: -0.06, 8: 0.02, 16: 0.15}
OMP_BOUND_MS = 0.10  # more than four threads on the few cores that binding leaves; assumed
# report A: plain binding helped, fine-grained CPU_AFFINITY_CONF=2 harmed; sizes assumed.
BINDING_MS = 0.08
BINDING_PER_SEQUENCE_MS = 0.01
AFFINITY_MS = {0: 0.0, 1: -0.04, 2: 0.90}
AFFINITY_WITH_BINDING_MS = {0: 0.0, 1: 0.15, 2: 1.40}
SEAT_MS = 0.0008  # host arrays are sized by max_num_seqs; assumed
SEATS_FREE = 16
# The scheduler runs beside the device when asynchronous; a public report: 22.4 -> 18.4 ms on an older engine.
SCHEDULER_MS = 0.5
# Device allocator, as shares of the time that it costs.
PAGE_1G = 0.48  # with the next two: report A, row device allocator, 79 % of the stack's figure
PINNED_THREADS = 0.19
PINNED_EXPANDABLE = 0.12
MISALIGNED = -0.05  # base_addr_aligned_kb other than its default 16; assumed
FIXED_SEGMENTS = -1.1  # expandable_segments off: fragmentation; assumed
# report A: the leaner set replaced the first one once jemalloc was there: 95 % beats 79 % only with jemalloc.
ROUNDUP_ALONE = 0.55
ROUNDUP_WITH_JEMALLOC = 0.95
ROUNDUP_BY_DIVISIONS = {1: 0.3, 2: 0.55, 4: 0.8, 8: 0.95, 16: 1.0, 32: 0.92}
ALLOCATOR_PER_SEQUENCE = 0.06  # contention with concurrency; assumed
# TASK_QUEUE_ENABLE 2 moves workspace work off the launching thread, 0 moves launching onto it. Assumed.
TASK_QUEUE_HOST = {0: 1.25, 1: 1.0, 2: 0.85}
JEMALLOC_HOST = 0.98
BINDING_HOST = 0.97
EAGER_PER_SEQUENCE_MS = 0.4  # metadata of each sequence is rebuilt before an eager step; assumed


def dispatch_ms(system: System) -> float:
    """Launches outside the graph and host-device copies of a decode step."""
    named = SLOT_MAPPING_MS + (TRANSPOSE_MS + LINEAR_STATE_MS) * system.network.linear_layers
    return named + system.stack.dispatch_ms + system.stack.sync_ms


def host_ms(config: ServingConfig, sequences: int) -> float:
    """What host settings cost or save in a decode step."""
    others = min(sequences - 1, HOST_ALLOCATOR_MOST)
    contention = HOST_ALLOCATOR_PER_SEQUENCE_MS * others + HOST_ALLOCATOR_PER_PAIR_MS * others**2
    time = 0.0 if config.jemalloc else HOST_ALLOCATOR_MS + contention
    time += OMP_MS.get(config.omp_num_threads or 0, 0.0)
    if config.cpu_binding:
        time -= BINDING_MS + BINDING_PER_SEQUENCE_MS * sequences
        time += OMP_BOUND_MS if (config.omp_num_threads or 0) > 4 else 0.0
    time += (AFFINITY_WITH_BINDING_MS if config.cpu_binding else AFFINITY_MS)[config.cpu_affinity]
    time -= BATCH_MEMCPY_MS if config.batch_memcpy else 0.0
    time += 0.0 if config.async_scheduling else SCHEDULER_MS
    return time + SEAT_MS * (config.max_num_seqs - SEATS_FREE)


def launch_factor(config: ServingConfig) -> float:
    """How the speed of launching operators from the host depends on its settings."""
    factor = TASK_QUEUE_HOST[config.task_queue]
    factor *= JEMALLOC_HOST if config.jemalloc else 1.0
    return factor * BINDING_HOST if config.cpu_binding else factor


def launches_ms(system: System, config: ServingConfig, sequences: int) -> float:
    """The host's time to launch a whole step operator by operator."""
    launches = system.network.layers * system.network.operators * system.stack.launch_us / 1e3
    return (launches + EAGER_PER_SEQUENCE_MS * sequences) * launch_factor(config)


def device_allocator_ms(system: System, config: ServingConfig, sequences: int) -> float:
    """The device allocator in a decode step."""
    cost = system.stack.device_allocator_ms * (1 + ALLOCATOR_PER_SEQUENCE * (sequences - 1))
    return cost * (1 - allocator_gain(config.allocator, config.jemalloc))


def allocator_gain(allocator: Allocator, jemalloc: bool) -> float:
    """Share of the device allocator's time that these options save; below 0 they cost more. At most 1."""
    if not allocator.expandable_segments:
        return FIXED_SEGMENTS
    gain = MISALIGNED if allocator.base_addr_aligned_kb != 16 else 0.0
    pinned = PINNED_THREADS * allocator.pinned_use_background_threads
    pinned += PINNED_EXPANDABLE * allocator.pin_memory_expandable_segments
    if allocator.page_size_1g:  # with other size options only page_size takes effect
        return gain + PAGE_1G + pinned
    if allocator.roundup_power2_divisions is not None:
        best = ROUNDUP_WITH_JEMALLOC if jemalloc else ROUNDUP_ALONE
        gain += best * ROUNDUP_BY_DIVISIONS.get(allocator.roundup_power2_divisions, 0.5)
        pinned *= 0.1  # little is left to save
    return min(gain + pinned, 1.0)
