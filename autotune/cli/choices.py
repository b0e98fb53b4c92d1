"""What an option may be."""

from __future__ import annotations

from enum import StrEnum


class Executor(StrEnum):
    """What runs trials."""

    RAY = "ray"
    LOCAL = "local"
    VIRTUAL = "virtual"


class Format(StrEnum):
    """What a recipe is written as."""

    SH = "sh"
    ENV = "env"
    JSON = "json"


class SpaceForm(StrEnum):
    """Whose file becomes a space."""

    VLLM_BENCH_SWEEP = "vllm-bench-sweep"
    OPTIX = "optix"
    EVALSCOPE_GRID = "evalscope-grid"


class Api(StrEnum):
    """Which API of a server a load asks."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class ResultFormat(StrEnum):
    """Whose result file a measurement is written as."""

    JSON = "json"
    VLLM = "vllm"
    EVALSCOPE = "evalscope"
    GUIDELLM = "guidellm"


class PeerClient(StrEnum):
    """Another load generator."""

    EVALSCOPE = "evalscope"
    VLLM = "vllm"
    GUIDELLM = "guidellm"
