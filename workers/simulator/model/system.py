"""What is served and on what: one chip, one software stack, one model, as data.

A system file is YAML. `extends` names another file of the same folder; the groups written here replace that
file's groups. Every magnitude of the cost and memory model that belongs to the chip, the stack or the model is
read from here; what a knob does with them is in `cost_model` and `memory_model`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from autotune.domain.value import Value


class Stack(Value):
    """Software versions. `step_scale` multiplies the device part of every step, relative to the reference stack.

    Without `large_pages` the driver has no pages of 1 GB to give, as before its release 25.0.
    """

    engine: str
    engine_version: str
    cann_version: str
    torch_npu_version: str
    step_scale: float = Field(gt=0, le=2)
    pin_memory_expandable_with_graphs: bool = True
    large_pages: bool = True


class Memory(Value):
    """HBM of one die. `efficiency` is the share of the bandwidth that weight reads reach on the reference stack."""

    visible_gib: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    efficiency: float = Field(gt=0, le=1)


class Weights(Value):
    """Sizes over all ranks together. `reuse_exponent` says how fast tokens of one step add distinct experts."""

    resident_gib: float = Field(gt=0)
    draft_gib: float = Field(ge=0)
    dense_gb: float = Field(gt=0)
    expert_gb_per_token: float = Field(ge=0)
    experts: int = Field(ge=1)
    experts_per_token: int = Field(ge=1)
    reuse_exponent: float = Field(gt=0, le=1)
    prefetch_token_threshold: int = Field(ge=1)


class Decode(Value):
    """Parts of one captured decode step of one token at two ranks, in ms on the reference stack."""

    kernels_ms: float = Field(ge=0)
    kernels_per_token_ms: float = Field(ge=0)
    dispatch_ms: float = Field(ge=0)
    sync_ms: float = Field(ge=0)
    dynamic_shapes_ms: float = Field(ge=0)
    collectives_ms: float = Field(ge=0)
    collectives_per_token: float = Field(ge=0)
    aiv_saving: float = Field(ge=0, lt=1)
    device_allocator_ms: float = Field(ge=0)
    piecewise_ms: float = Field(ge=0)
    eager_host_ms: float = Field(ge=0)
    eager_host_per_sequence_ms: float = Field(ge=0)


class Prefill(Value):
    """A step with prompt tokens costs `fixed_ms` and `per_token_ms` on top of the decode rows that it carries."""

    fixed_ms: float = Field(ge=0)
    per_token_ms: float = Field(gt=0)


class Speculation(Value):
    """The model's own draft heads. `acceptance[i]`: chance that draft i+1 is taken once draft i was."""

    methods: tuple[str, ...] = Field(min_length=1)
    acceptance: tuple[float, ...] = Field(min_length=1)
    draft_ms: float = Field(ge=0)
    draft_per_sequence_ms: float = Field(ge=0)
    draft_eager_ms: float = Field(ge=0)
    overhead_ms: float = Field(ge=0)


class Cache(Value):
    """KV cache and recurrent state, over all ranks together."""

    kv_bytes_per_token: int = Field(gt=0)
    state_mib_per_sequence: float = Field(ge=0)
    max_model_len: int = Field(gt=0)


class System(Value):
    """One simulated endpoint's nature."""

    model: str
    about: str
    chip: str
    stack: Stack
    memory: Memory
    weights: Weights
    decode: Decode
    prefill: Prefill
    speculation: Speculation
    cache: Cache

    @model_validator(mode="after")
    def _acceptance_is_a_share(self) -> System:
        if not all(0 < p < 1 for p in self.speculation.acceptance):
            raise ValueError("each acceptance must lie between 0 and 1")
        return self


def load_system(path: Path) -> System:
    """Read a system file. Raises OSError when it can't be read, ValueError when it is not a system."""
    return System.model_validate(_read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no mapping")
    base = content.pop("extends", None)
    return content if base is None else {**_read(path.parent / str(base)), **content}
