"""plotly.js out of the installed plotly wheel: no download, no build, no foreign host."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import re
from functools import cached_property
from pathlib import Path

from autotune.errors import Unavailable


class PlotlyBundle:
    """The script as it lies in the wheel, and compressed (1.5 of 4.8 MB). Read and compressed on first use."""

    version: str = importlib.metadata.version("plotly")

    @property
    def url(self) -> str:
        """Holds the version, so that a browser may keep it for ever."""
        return f"/plotly/{self.version}/plotly.min.js"

    @cached_property
    def script(self) -> bytes:
        spec = importlib.util.find_spec("plotly")  # finds the folder; importing plotly would cost 0.2 s
        if spec is None or spec.origin is None:
            raise Unavailable("the plotly package is not installed")
        return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()

    @cached_property
    def gzipped(self) -> bytes:
        return gzip.compress(self.script, compresslevel=9, mtime=0)

    @cached_property
    def style_guards(self) -> tuple[str, ...]:
        """Ids of <style> elements that the script would add, each only where no element has its id.

        A page that holds elements of these ids needs no inline style and keeps a strict style-src.
        """
        found = re.findall(rb'getElementById\("([0-9a-f]{32,64})"\)', self.script)
        return tuple(sorted({item.decode() for item in found}))
