"""Which code of ours this process runs, so that a worker host of another version is noticed."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "ascend-autotune"
PACKAGES = ("autotune", "search_spaces", "workers")
_SOURCES = frozenset({".py", ".yaml"})


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


@cache
def code_identity() -> str:
    """Version and digest of the source that this process runs, such as `0.3.0+5f2c1a9be044`.

    An installed version says little where somebody works on the code: every source and data file of the packages
    counts, in the order of their paths. About 20 ms, once.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(import_module(package).__file__)).resolve().parent
        for path in sorted(p for p in root.rglob("*") if p.suffix in _SOURCES and p.is_file()):
            digest.update(f"{package}/{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    try:
        installed = code_version()
    except PackageNotFoundError:
        installed = "0"
    return f"{installed}+{digest.hexdigest()[:12]}"
