"""Which version of the product this is."""

from __future__ import annotations

import importlib.metadata

VERSION = importlib.metadata.version("ascend-autotune")
