"""Which code of ours this process runs, so that a worker host of another version is noticed."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path

DISTRIBUTION = "ascend-autotune"
PACKAGES = ("autotune", "search_spaces", "workers")


def code_version() -> str:
    """The version that is installed here."""
    return version(DISTRIBUTION)


def code_mismatch(expected_version: str) -> str | None:
    """Why the code of this process is not the dispatcher's; None when it is.

    Ray puts the driver's folders first on a worker's `sys.path`, where another `workers` may lie.
    """
    folders = {Path(str(import_module(name).__file__)).resolve().parents[1] for name in PACKAGES}
    if len(folders) != 1:
        return f"the packages on this host come from several places: {', '.join(sorted(map(str, folders)))}"
    found = code_version()
    if found != expected_version:
        return f"this host runs {DISTRIBUTION} {found}, the dispatcher {expected_version}; install the same version"
    return None
