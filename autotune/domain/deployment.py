"""What is served and on what: the part of a launch that a study may choose."""

from __future__ import annotations

from typing import Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from autotune.domain.value import Value
from autotune.domain.workload import Workload

# Names that end up as one argv item or one path component: no slash, no space, no leading dash.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class Deployment(Value):
    """A launch template of the worker host, one of its models, and how many devices a trial gets.

    `max_model_len`: the context in tokens that the service must offer; the model's own when absent. It is
    part of the deployment and not of the load: a short test load must not cut the exported server's context.
    `model_facts`: what rules may know of the model, such as `hidden_size` and `experts`.
    """

    template: str = Field(pattern=NAME)
    model: str = Field(pattern=NAME)
    devices: StrictInt = Field(default=1, ge=1, le=1024)
    tensor_parallel: StrictInt = Field(default=1, ge=1, le=1024)
    max_model_len: StrictInt | None = Field(default=None, ge=1, le=10_000_000)
    model_facts: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Deployment:
        if self.tensor_parallel > self.devices:
            raise ValueError(f"tensor_parallel {self.tensor_parallel} needs as many devices, got {self.devices}")
        return self


def facts(deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """What expressions of a space may know about the study, as plain JSON values."""
    return {
        "model": deployment.model,
        "devices": deployment.devices,
        "tensor_parallel": deployment.tensor_parallel,
        "max_model_len": deployment.max_model_len,
        "model_facts": dict(deployment.model_facts),
        "concurrency": sorted(workload.concurrencies),
        "max_concurrency": max(workload.concurrencies),
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
    }
