"""One attempt seen from outside: how far it is, which processes it had, which of them still live."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import psutil

from tests.soak.victims import Moment, Pid, identified, recorded
from workers.marked_processes import is_running

WARMUP_REQUESTS = 3
_READY = b"Application startup complete"
_ASK_S = 0.05


class AttemptWatch:
    """Follows the folder of an attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uid = folder.name
        self.seen: dict[Pid, str] = {}
        self._port: int | None = None
        self._loading = self._ready = self._measuring = False
        self._asked = 0.0
        self._client = httpx.Client(timeout=1.0, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def moment(self) -> Moment | None:
        """None before the attempt has begun and after it has ended; outcome.json is a part of the reporting."""
        if not (self.folder / "started").exists():
            return None
        self.note_processes()
        if (self.folder / "samples.json").exists() or (self.folder / "outcome.json").exists():
            return Moment.REPORTING
        if (self.folder / "load.json").exists():
            return Moment.MEASURING if self._is_measuring() else Moment.WARM_UP
        if not self._ready:
            text = self._log()
            self._loading, self._ready = bool(text), _READY in text
        if self._ready:
            return Moment.READY
        return Moment.LOADING if self._loading else Moment.LAUNCHING

    def note_processes(self) -> None:
        """Remember what the server said of its processes: they may lose every mark."""
        for name, pid in recorded(self.folder).items():
            found = identified(pid)
            if found is not None and found not in self.seen and name not in self.seen.values():
                self.seen[found] = name

    def survivors(self) -> set[int]:
        """Recorded processes that still live."""
        return {pid for pid, started in self.seen if is_running(pid, started)}

    @property
    def has_outcome(self) -> bool:
        return (self.folder / "outcome.json").exists()

    def _log(self) -> bytes:
        try:
            return (self.folder / "server.log").read_bytes()
        except FileNotFoundError:
            return b""

    def _is_measuring(self) -> bool:
        """Whether the server has answered all requests of the warm-up."""
        now = time.monotonic()
        if not self._measuring and now - self._asked >= _ASK_S:
            self._asked = now
            self._measuring = self._answered() >= WARMUP_REQUESTS
        return self._measuring

    def _answered(self) -> float:
        port = self._port = self._port or self._find_port()
        if port is None:
            return 0.0
        try:
            text = self._client.get(f"http://127.0.0.1:{port}/metrics").text
        except httpx.TransportError:
            return 0.0
        lines = [line for line in text.splitlines() if line.startswith("vllm:request_success_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def _find_port(self) -> int | None:
        parent = recorded(self.folder).get("parent")
        try:
            words = psutil.Process(parent).cmdline() if parent is not None else []
        except psutil.NoSuchProcess:
            return None
        return int(words[words.index("--port") + 1]) if "--port" in words else None
