"""A mixture of experts on several devices: routing, experts whole or cut, uneven load, exchange of rows.

Figures named "report B" are those of Mixtral 8x7B on four 910B; magnitudes stand in the system file's `mixture`.
Without that group experts cost nothing but their weights.
"""

from __future__ import annotations

from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import Mixture, System
from workers.simulator.model.weights import weight_bytes

ACTIVATION_BYTES = 2  # bf16
# report B: bandwidth use of collectives 45 % by default, 89 % with the algorithm that suits the size of a message.
DEFAULT_USE = 0.45
TUNED_USE = 0.89
MISFIT_USE = 0.40  # another algorithm than the suitable one; assumed
# report B: below 1 MB mesh (what the adaptive choice takes), up to 100 MB NHR, above it ring.
MESH_BELOW_BYTES = 1e6
NHR_BELOW_BYTES = 100e6


def router_ms(system: System, config: ServingConfig) -> float:
    """Gate, top-k and softmax of every layer: several launches and a copy of their result to the host, or one."""
    mixture = system.mixture
    if mixture is None:
        return 0.0
    one = mixture.fused_route_us if config.fused_gating else mixture.route_us + mixture.route_host_us
    return system.network.layers * one / 1e3


def experts_ms(system: System, config: ServingConfig, rows: int) -> float:
    """What experts cost beside reading their weights once, for so many rows a copy of attention.

    Cut experts: every rank runs a small shard of each, at `shard_efficiency`. Whole experts: a rank runs its own, and
    all wait for the one with most rows.
    """
    mixture = system.mixture
    if mixture is None:
        return 0.0
    ranks = _ranks_of_whole_experts(config)
    launches = expert_launches_ms(system, config)
    if ranks > 1:
        return launches + _work_ms(mixture, rows * config.data_parallel / ranks) * _heaviest(mixture, config, ranks)
    weights = expert_weights_ms(system, config, rows)
    work = _work_ms(mixture, rows / config.tensor_parallel)
    efficiency = mixture.shard_efficiency if config.tensor_parallel > 1 else 1.0
    return launches + (weights + work) / efficiency - weights


def expert_launches_ms(system: System, config: ServingConfig) -> float:
    """Launches for the experts that a rank runs: all of them cut, or its own whole ones."""
    if system.mixture is None:
        return 0.0
    local = max(system.weights.experts / _ranks_of_whole_experts(config), 1.0)
    return system.network.layers * local * system.mixture.local_us / 1e3


def idle_share(system: System, config: ServingConfig, rows: int) -> float:
    """Share of the time of whole experts in which the mean rank waits for the heaviest one."""
    mixture, ranks = system.mixture, _ranks_of_whole_experts(config)
    if mixture is None or ranks == 1:
        return 0.0
    work = _work_ms(mixture, rows * config.data_parallel / ranks)
    longest = expert_weights_ms(system, config, rows) + work * _heaviest(mixture, config, ranks)
    return work * (_heaviest(mixture, config, ranks) - 1) / longest


def expert_weights_ms(system: System, config: ServingConfig, rows: int) -> float:
    """Reading the weights of the experts that a step needs."""
    experts = weight_bytes(system, config, rows)[1]
    return experts / (system.chip.bandwidth_gb_s * 1e6 * system.stack.expert_efficiency)


def message_bytes(system: System, rows: int) -> float:
    """A collective of so many rows; where the report names a size, at least that."""
    size = float(rows * system.network.hidden * ACTIVATION_BYTES)
    return size if system.mixture is None else max(size, system.mixture.message_mb * 1e6)


def bandwidth_use(system: System, config: ServingConfig, size: float) -> float:
    """Share of the link that a collective of this size reaches."""
    if system.mixture is None:
        return 1.0
    if config.hccl_algo is None:
        return DEFAULT_USE
    suitable = "NHR" if MESH_BELOW_BYTES <= size < NHR_BELOW_BYTES else "ring" if size >= NHR_BELOW_BYTES else "mesh"
    return TUNED_USE if config.hccl_algo == suitable else MISFIT_USE


def hidden_share(system: System, config: ServingConfig) -> float:
    """Share of the collectives that runs beside the computation."""
    return 0.0 if system.mixture is None or not config.overlap_communication else system.mixture.overlap


def _ranks_of_whole_experts(config: ServingConfig) -> int:
    return config.tensor_parallel * config.data_parallel if config.expert_parallel else 1


def _work_ms(mixture: Mixture, rows: float) -> float:
    """Computing so many rows on one rank."""
    return mixture.row_us * rows / 1e3


def _heaviest(mixture: Mixture, config: ServingConfig, ranks: int) -> float:
    """Rows of the heaviest rank, relative to the mean one. Rows over an expert's capacity go where room is."""
    skew = max(max(mixture.load) * ranks, 1.0)
    return min(skew, mixture.capacity_factor) if config.balanced_experts else skew
