"""`PYTORCH_NPU_ALLOC_CONF` as torch_npu reads it, with its refusals."""

from __future__ import annotations

from workers.simulator.faults import EngineFailed
from workers.simulator.model.settings import Allocator

# Known, and without a place in the model: they are checked for nothing but their name.
_IGNORED = frozenset(
    {
        "segment_size_mb",
        "large_segment_size_mb",
        "multi_stream_lazy_reclaim",
        "pinned_mem_register",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "release_lock_on_npumalloc",
        "throw_on_npumalloc_oom",
        "per_process_memory_fraction",
    }
)
_NOT_EXPANDABLE = ("max_split_size_mb", "garbage_collection_threshold")
_FLAGS = ("expandable_segments", "pinned_use_background_threads", "pin_memory_expandable_segments")


def parse_allocator(text: str, *, grows: bool = True) -> Allocator:
    """The allocator's options. Raises EngineFailed with torch_npu's text for a wrong one.

    Where `grows`, the platform appends `expandable_segments:True` unless that or an option that excludes it is
    written; torch_npu's own default is fixed segments.
    """
    options = dict(_pair(part.strip()) for part in text.split(",") if part.strip())
    known = {*_IGNORED, *_NOT_EXPANDABLE, *_FLAGS, "page_size", "base_addr_aligned_kb", "roundup_power2_divisions"}
    for key in options:
        if key not in known:
            raise _failed(f"Unrecognized key '{key}' in NPUAllocatorConfig")
    excluded = [key for key in _NOT_EXPANDABLE if key in options]
    options.setdefault("expandable_segments", "True" if grows and not excluded else "False")
    switches = {key: _flag(key, options.get(key, "False")) for key in _FLAGS}
    expandable = switches["expandable_segments"]
    if expandable and excluded:
        raise _failed(
            "`max_split_size_mb` or `garbage_collection_threshold`, cannot be enabled with `expandable_segments`, "
            "please set `expandable_segments` to `False`"
        )
    page = options.get("page_size")
    if page is not None and page != "1g":
        raise _failed(f"Unsupported page_size value: {page}")
    for key in ("page_size", "base_addr_aligned_kb"):
        if key in options and not expandable:
            raise _failed(f"Unrecognized key '{key}' in NPUAllocatorConfig: it needs expandable_segments:True")
    return Allocator(
        expandable_segments=expandable,
        page_size_1g=page is not None,
        base_addr_aligned_kb=_aligned(options.get("base_addr_aligned_kb", "16")),
        roundup_power2_divisions=_divisions(options.get("roundup_power2_divisions")),
        pinned_use_background_threads=switches["pinned_use_background_threads"],
        pin_memory_expandable_segments=switches["pin_memory_expandable_segments"],
    )


def completed_allocator(text: str) -> str | None:
    """What the platform sets the variable to; None where it leaves it as it is."""
    if any(key in text for key in ("expandable_segments", *_NOT_EXPANDABLE)):
        return None
    return f"{text},expandable_segments:True".lstrip(",")


def _pair(part: str) -> tuple[str, str]:
    key, colon, value = part.partition(":")
    if not colon:
        raise _failed(f"Error parsing PYTORCH_NPU_ALLOC_CONF: Unrecognized key '{part}', expected key:value")
    return key, value


def _flag(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _failed(f"Unrecognized key '{value}': expected a single True/False argument for {key}")
    return value == "True"


def _aligned(value: str) -> int:
    if not value.isdecimal() or int(value) > 16:
        raise _failed("base_addr_aligned_kb error, must be [0~16], dtype is int")
    return int(value)


def _divisions(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value).bit_count() != 1:
        raise _failed(f"Unrecognized key '{value}': roundup_power2_divisions must be a power of 2")
    return int(value)


def _failed(message: str) -> EngineFailed:
    return EngineFailed("RuntimeError", message, "init_device")
