"""The exchange of tokens between experts (MC2, DeepEP): buffers that are too small for it, and where it hangs."""

from __future__ import annotations

from enum import StrEnum

from workers.simulator.faults import EngineFailed, runtime_failure
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.machine import Machine

MIB = 2**20
FUSED_MIB = 3  # flags of the fused operator
MOST_ROWS = 512  # a rank exchanges no more rows at once through MC2
# On 910B MC2 wants many ranks with few experts each; elsewhere tokens are gathered: public documentation.
FEWEST_RANKS_910B = 16
MOST_EXPERTS_910B = 24
# Reported for 910C: the profile run says nothing for about 320 s, then the runtime gives up with 107020.
SILENT_S = 320.0
CHIPS = ("910B", "910C")  # on 950 published settings run below the bound


class Exchange(StrEnum):
    """Which operator moves tokens to the experts of other ranks."""

    MC2 = "mc2"
    FUSED_MC2 = "fused_mc2"
    DEEPEP = "deepep"


def exchange(memory: MemoryModel) -> Exchange | None:
    """The operator that this launch uses; None where it has no experts on other ranks, or gathers tokens."""
    config, system = memory.config, memory.system
    ranks = config.tensor_parallel * config.data_parallel
    if not config.expert_parallel or ranks == 1 or system.weights.experts == 1:
        return None
    if config.dispatch_capacity is not None:
        return Exchange.DEEPEP
    if not system.stack.engine.startswith("vllm") or system.chip.name not in CHIPS:
        return None
    many = ranks >= FEWEST_RANKS_910B and system.weights.experts / ranks <= MOST_EXPERTS_910B
    if system.chip.name == "910B" and not many:
        return None
    return Exchange.FUSED_MC2 if config.fused_mc2 else Exchange.MC2


def check_exchange(memory: MemoryModel, machine: Machine) -> None:
    """The first exchange. Raises EngineFailed: at once for a small buffer, after a long silence for a hang."""
    kind = exchange(memory)
    if kind is None or memory.system.chip.name not in CHIPS:
        return
    needed, text = _needed(memory, kind)
    if needed > memory.config.buffer_mb:
        raise EngineFailed(
            "RuntimeError",
            f"EZ9999[PID: 0] (EZ9999):  HCCL_BUFFSIZE is too SMALL, {text}, HCCL_BUFFSIZE={memory.config.buffer_mb}MB."
            "[FUNC:MoeDistributeDispatchA3TilingFuncImpl][FILE:moe_distribute_dispatch_v2_tiling.cc][LINE:941]\n"
            "        TraceBack (most recent call last):\n"
            "[ERROR] (PID:0, Device:0, RankID:0) ERR01100 OPS call acl api failed",
            "profile_run",
        )
    if memory.config.aiv and kind is not Exchange.MC2 and memory.system.chip.name == "910C":
        machine.stall(SILENT_S)
        detail = "wait for compute device to finish failed, runtime result = 107020, aclnnMoeDistributeCombineV4."
        raise runtime_failure("AclrtSynchronizeDeviceWithTimeout", 107020, detail, "profile_run")


def _needed(memory: MemoryModel, kind: Exchange) -> tuple[int, str]:
    """Buffer in MB and the operator's words for it. The formulas are those of the operators' tiling."""
    config, system = memory.config, memory.system
    hidden, each = system.network.hidden, system.weights.experts_per_token
    ranks = config.tensor_parallel * config.data_parallel
    rows = _rows(memory, kind)
    if kind is Exchange.FUSED_MC2:
        needed = rows * hidden * each * 3 // MIB + FUSED_MIB
        return needed, (
            f"m = {rows}, k = {hidden}, topK = {each} expected HCCL_BUFFSIZE is ((m * k * topK * sizeof(int8_t)) * 3 + "
            f"3MB)= {needed}MB"
        )
    local = -(-system.weights.experts // ranks)
    dispatch, combine = _aligned(_aligned(2 * hidden, 32) + 64, 512), _aligned(2 * hidden, 512)
    needed = 2 * (rows * dispatch * ranks * local + rows * combine * each) // MIB + 1
    return needed, (
        f"maxBs = {rows}, h = {hidden}, epWorldSize = {ranks}, localMoeExpertNum = {local}, sharedExpertNum = 0, "
        f"tokenNeedSizeDispatch = {dispatch}, tokenNeedSizeCombine = {combine}, k = {each}, "
        "NEEDED_HCCL_BUFFSIZE(((maxBs * tokenNeedSizeDispatch * ep_worldsize * localMoeExpertNum) + (maxBs * "
        f"tokenNeedSizeCombine * (k + sharedExpertNum))) * 2) = {needed}MB"
    )


def _rows(memory: MemoryModel, kind: Exchange) -> int:
    """Rows that one rank sends at most."""
    config = memory.config
    if kind is Exchange.DEEPEP and config.dispatch_capacity is not None:
        return -(-config.dispatch_capacity // config.tensor_parallel)
    largest = max(config.capture_sizes, default=config.max_num_seqs * (1 + config.draft_tokens))
    return min(-(-largest // config.tensor_parallel), MOST_ROWS)


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step
