"""What is served and on what: one chip, one software stack, one network, as data.

A system file is YAML. `extends` names files of the same folder, of which later ones win; the groups written here
lie over theirs, key by key. Every magnitude of the cost and memory model that belongs to the chip, the stack or
the network is read from here; what a setting does with them is in the modules beside this one. Adding a system
needs no code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from autotune.domain.value import Value

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a system takes 5.5 ms without libyaml, a whole trial 40


class Chip(Value):
    """One device (a die of a 910C). `tflops` in the precision that is served, `link_gb_s` to its neighbours."""

    name: str
    visible_gib: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    tflops: float = Field(gt=0)
    link_gb_s: float = Field(gt=0)


class Stack(Value):
    """Software versions, and what each piece of work costs on them.

    `node_us`: start and tail of one small kernel when a graph is replayed. `resize_us`: a kernel of dynamic shape
    sizes its workspace at replay. `launch_us`: the host launches one operator. `collective_us`: fixed part of a
    collective of two ranks, run by the AI CPU or (`aiv_`) by the vector cores. `dispatch_ms` and `sync_ms`:
    launches that no graph holds, and host-device copies, in a decode step. `device_allocator_ms`: what the device
    allocator costs a step before any option. `cold_graph_ms`: what a graph captured after one warm-up run loses.
    `*_efficiency`: share of the chip's bandwidth that weight reads reach. `transfer_gb_s`: how fast one rank sends
    the pages of a KV cache to another server.

    Without `large_pages` the driver has no pages of 1 GB to give, as before its release 25.0.
    """

    engine: str
    engine_version: str
    cann_version: str
    torch_npu_version: str
    node_us: float = Field(ge=0)
    resize_us: float = Field(ge=0)
    launch_us: float = Field(ge=0)
    collective_us: float = Field(ge=0)
    aiv_collective_us: float = Field(ge=0)
    dispatch_ms: float = Field(ge=0)
    sync_ms: float = Field(ge=0)
    device_allocator_ms: float = Field(ge=0)
    cold_graph_ms: float = Field(ge=0)
    dense_efficiency: float = Field(gt=0, le=1)
    expert_efficiency: float = Field(gt=0, le=1)
    transfer_gb_s: float = Field(default=20.0, gt=0)
    pin_memory_expandable_with_graphs: bool = True
    large_pages: bool = True


class Network(Value):
    """Shape of the served model. `operators` and `dynamic_operators` are launches a layer of a decode step.

    `linear_layers` of the `layers` keep a recurrent state instead of a KV cache. `row_us`: what one more row of a
    step costs beside weights. `gflop_per_token`: arithmetic of one token, of which prompts
    reach `prompt_efficiency` of the chip's; `attention_flop` that of one token
    attending to one other, over all layers.
    """

    layers: int = Field(ge=1)
    linear_layers: int = Field(default=0, ge=0)
    hidden: int = Field(ge=1)
    vocabulary: int = Field(ge=1)
    operators: float = Field(gt=0)
    dynamic_operators: float = Field(ge=0)
    collectives: float = Field(default=2, ge=0)
    row_us: float = Field(ge=0)
    gflop_per_token: float = Field(gt=0)
    prompt_efficiency: float = Field(gt=0, le=1)
    attention_flop: float = Field(ge=0)


class Weights(Value):
    """Sizes over all ranks together, in the precision that is served.

    `dense_gb` is read once a step, `expert_gb` for each distinct expert of a step (over all layers). Skewed routing
    makes `experts` behave like `effective_experts` equally likely ones. A dense model has one expert of 0 GB.
    """

    resident_gib: float = Field(gt=0)
    draft_gib: float = Field(default=0, ge=0)
    dense_gb: float = Field(gt=0)
    expert_gb: float = Field(default=0, ge=0)
    experts: int = Field(default=1, ge=1)
    effective_experts: float = Field(default=1, ge=1)
    experts_per_token: int = Field(default=1, ge=1)


class Mixture(Value):
    """How a mixture of experts runs on several devices; a system without this group leaves it out of the model.

    `route_us`: routing of a layer on the device, `route_host_us` what the host adds to it, `fused_route_us` in one
    launch. `local_us`: launches for each expert that a rank runs of a layer. `row_us`: one row through its experts, on
    one rank, all layers. `shard_efficiency`: rate of a cut expert against a whole one. `load`: share of the rows that
    each group of experts gets. `capacity_factor`: most rows of a balanced rank against the mean. `exchange`: bringing
    rows to whole experts and back, in all-reduces. `message_mb`: least size of a collective. `overlap`: share of the
    collectives that computation can hide.
    """

    route_us: float = Field(ge=0)
    route_host_us: float = Field(ge=0)
    fused_route_us: float = Field(ge=0)
    local_us: float = Field(ge=0)
    row_us: float = Field(ge=0)
    shard_efficiency: float = Field(gt=0, le=1)
    load: tuple[float, ...] = Field(min_length=1)
    capacity_factor: float = Field(ge=1)
    exchange: float = Field(ge=0)
    message_mb: float = Field(ge=0)
    overlap: float = Field(ge=0, le=1)


class Speculation(Value):
    """The model's own draft heads. `acceptance[data set][i]`: chance that draft i+1 is taken once draft i was.

    `draft_ms`: one draft; `draft_row_us`: each further sequence of it; `draft_eager_ms`: its launches without a
    graph. `overhead_ms`: rejection sampling of a cycle.
    """

    methods: tuple[str, ...] = Field(min_length=1)
    acceptance: dict[str, tuple[float, ...]] = Field(min_length=1)
    draft_ms: float = Field(ge=0)
    draft_row_us: float = Field(ge=0)
    draft_eager_ms: float = Field(ge=0)
    overhead_ms: float = Field(ge=0)


class Cache(Value):
    """KV cache and recurrent state, over all ranks together.

    A decode step reads `read_bytes_per_token` of what is cached: all of it where nothing is said, less where
    attention is sparse.
    """

    kv_bytes_per_token: int = Field(gt=0)
    read_bytes_per_token: int | None = Field(default=None, gt=0)
    state_mib_per_sequence: float = Field(default=0, ge=0)
    max_model_len: int = Field(gt=0)


class System(Value):
    """One simulated endpoint's nature."""

    model: str
    about: str
    chip: Chip
    stack: Stack
    network: Network
    weights: Weights
    speculation: Speculation
    cache: Cache
    mixture: Mixture | None = None

    @model_validator(mode="after")
    def _acceptance_is_a_share(self) -> System:
        for name, profile in self.speculation.acceptance.items():
            if not profile or not all(0 < p < 1 for p in profile):
                raise ValueError(f"speculation.acceptance.{name}: each chance must lie between 0 and 1")
        return self


def load_system(path: Path) -> System:
    """Read a system file. Raises OSError when it can't be read, ValueError when it is not a system."""
    return System.model_validate(_read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a safe loader, libyaml's or not
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no mapping")
    extends = content.pop("extends", [])
    merged: dict[str, Any] = {}
    for base in [extends] if isinstance(extends, str) else extends:
        merged = _over(_read(path.parent / str(base)), merged)
    return _over(content, merged)


def _over(upper: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """`upper` laid over `lower`; groups that both have are merged key by key."""
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        merged[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
