"""Where one die's HBM goes, and which allocation fails: pure arithmetic.

Within `gpu_memory_utilization` x visible memory the engine puts weights, activations, the runtime, the first
communicators, and fills the rest with KV cache. Graphs, a communicator that is made at capture, and the
workspaces of mixed batches need what is left outside. Sizes in GiB; those without a source are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System

MIB_PER_GIB = 1024
DRIVER_GIB = 0.40  # taken before any process starts
RUNTIME_GIB = 1.50  # runtime, operator library, streams
ACTIVATION_GIB_PER_BUDGET_TOKEN = 0.0005  # 1 GiB for the default 2048 tokens a step
SAMPLER_GIB_PER_ROW_ENTRY = 4 / 2**30  # logits in fp32
GRAPHS_GIB = 0.15
GRAPH_GIB_PER_SIZE = 0.03  # public log: 25 sizes took 0.75 GiB
STATIC_KERNELS_GIB = 0.20
# Each communicator holds 2 x HCCL_BUFFSIZE (documented); world and tensor parallel exist before the KV cache is
# sized, as do those of data and expert parallel; one more is made at capture.
EARLY_COMMUNICATORS = 2
LATE_COMMUNICATORS = 1
WORKSPACE_GIB = 0.30  # eager mixed batches under load
WORKSPACE_GIB_PER_SEQUENCE = 0.05
FRAGMENTATION_GIB = 0.60  # without expandable segments
LARGE_PAGE_GIB = 0.40  # rounding to 1 GiB pages


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """One die under one configuration. `held_gib` is what other processes hold of it."""

    system: System
    config: ServingConfig
    held_gib: float = 0.0

    @property
    def visible(self) -> float:
        return self.system.chip.visible_gib

    @property
    def free_at_start(self) -> float:
        return self.visible - DRIVER_GIB - self.held_gib

    @property
    def desired(self) -> float:
        """What the engine may fill, KV cache included."""
        return self.config.gpu_memory_utilization * self.visible

    @property
    def weights(self) -> float:
        """Copies of attention are whole on each; experts are spread over all ranks only with expert parallelism."""
        weights, config = self.system.weights, self.config
        drafts = weights.draft_gib if config.speculation else 0.0
        experts = weights.experts * weights.expert_gb * 1e9 / 2**30
        spread = config.data_parallel if config.expert_parallel else 1
        return (weights.resident_gib + drafts - experts + experts / spread) / config.tensor_parallel

    @property
    def activation(self) -> float:
        config = self.config
        rows = config.max_num_seqs * (1 + config.draft_tokens)
        sampler = SAMPLER_GIB_PER_ROW_ENTRY * rows * self.system.network.vocabulary
        return ACTIVATION_GIB_PER_BUDGET_TOKEN * config.max_num_batched_tokens + sampler

    @property
    def graphs(self) -> float:
        config = self.config
        if not config.capture_sizes:
            return 0.0
        static = STATIC_KERNELS_GIB if config.static_kernel else 0.0
        return GRAPHS_GIB + GRAPH_GIB_PER_SIZE * len(config.capture_sizes) + static

    @property
    def communicator(self) -> float:
        """One communicator's send and receive buffer."""
        ranks = self.config.tensor_parallel * self.config.data_parallel
        return 0.0 if ranks == 1 else 2 * self.config.buffer_mb / MIB_PER_GIB

    @property
    def non_torch(self) -> float:
        config = self.config
        groups = EARLY_COMMUNICATORS + (config.data_parallel > 1) + config.expert_parallel
        return RUNTIME_GIB + groups * self.communicator

    @property
    def kv_cache(self) -> float:
        """Left for the KV cache; below 0 the server cannot start."""
        return self.desired - self.weights - self.activation - self.non_torch

    @property
    def kv_tokens(self) -> int:
        per_token = self.system.cache.kv_bytes_per_token / self.config.tensor_parallel
        return max(int(self.kv_cache * 2**30 / per_token), 0)

    @property
    def state_blocks(self) -> int:
        """Decode sequences whose recurrent state fits; drafts need one more state each."""
        cache, config = self.system.cache, self.config
        one = cache.state_mib_per_sequence * (1 + config.draft_tokens) / config.tensor_parallel
        return int(self.kv_cache * MIB_PER_GIB / one) if one else self.kv_tokens

    @property
    def left_for_load(self) -> float:
        """Outside the utilization, after capture; below 0 the capture fails."""
        return self.free_at_start - self.desired - self.graphs - LATE_COMMUNICATORS * self.communicator

    def workspace(self, sequences: int) -> float:
        """What mixed batches of so many running sequences need outside the KV cache."""
        allocator = self.config.allocator
        need = WORKSPACE_GIB + WORKSPACE_GIB_PER_SEQUENCE * sequences
        need += 0.0 if allocator.expandable_segments else FRAGMENTATION_GIB
        return need + (LARGE_PAGE_GIB if allocator.page_size_1g else 0.0)

    def fits_load(self, sequences: int) -> bool:
        """Whether so many running sequences can be served without running out of memory."""
        return self.workspace(sequences) <= self.left_for_load
