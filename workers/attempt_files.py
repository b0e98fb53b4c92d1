"""The folder of one attempt: what lies where, and what may be written once only."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import NamedTuple

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.errors import Conflict
from workers.marked_processes import is_running, process_stat

HEAD_BYTES = 1024 * 1024
TAIL_BYTES = 1024 * 1024
_ROOM_BYTES = 256 * 1024  # an outcome with its log tail takes a few tens of KB
LOG_TAIL_BYTES = 8 * 1024  # what goes along with an outcome


class AlreadyStarted(Conflict):
    """Another process has run, or runs, this attempt."""


class Runner(NamedTuple):
    """The process that runs an attempt; `started` in clock ticks since the boot of `host`."""

    pid: int
    started: int
    host: str

    @property
    def is_running(self) -> bool:
        """Whether it runs on this host; False for a runner of another host."""
        return self.host == socket.gethostname() and is_running(self.pid, self.started)


class AttemptFiles:
    """Paths and the few atomic operations on them. `root` is the folder of all attempts."""

    def __init__(self, root: Path, uid: str) -> None:
        self.uid = uid
        self.root = root.resolve()
        self.folder = self.root / uid
        self.home = self.folder / "home"
        self.tmp = self.folder / "tmp"
        self.cache = self.folder / "cache"
        self.device_logs = self.folder / "plog"
        self._job = self.folder / "job.json"
        self._started = self.folder / "started"
        self._outcome = self.folder / "outcome.json"

    @property
    def root_text(self) -> str:
        """As it stands in the mark that every process of the attempt carries."""
        return str(self.root)

    def create(self) -> None:
        """The folder with what a server needs. Only its owner may look into it."""
        for folder in (self.folder, self.home, self.tmp):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def delete_scratch(self) -> None:
        """What the servers kept in their home, temporary and cache folders; logs stay. Best effort."""
        for folder in (self.home, self.tmp, self.cache):
            shutil.rmtree(folder, ignore_errors=True)

    def write_problem(self) -> str | None:
        """Why nothing can be written into the folder; None when something can."""
        draft = self.folder / f".room.{secrets.token_hex(4)}"
        try:
            with draft.open("wb") as file:
                file.write(bytes(_ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return f"cannot write into {self.folder}: {error.strerror or error}"
        finally:
            draft.unlink(missing_ok=True)
        return None

    def write_job(self, job: TrialJob) -> None:
        """Atomic; creates the folder."""
        self.create()
        _replace(self._job, job.model_dump_json())

    def place_job(self, job: TrialJob) -> bool:
        """Write job.json, once and whole; False when somebody has done so before."""
        self.create()
        draft = self.folder / f".job.{secrets.token_hex(4)}"
        draft.write_text(job.model_dump_json(), encoding="utf-8")
        try:
            os.link(draft, self._job)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def has_job(self) -> bool:
        """Whether the attempt was ever submitted."""
        return self._job.exists()

    def read_job(self) -> TrialJob:
        """Raises FileNotFoundError."""
        return TrialJob.model_validate_json(self._job.read_bytes())

    def claim(self) -> None:
        """Take the attempt for this process. Raises AlreadyStarted for everyone but the first, for ever."""
        self.create()
        stat = process_stat(os.getpid())
        assert stat is not None
        runner = Runner(pid=os.getpid(), started=stat.started, host=socket.gethostname())
        draft = self.folder / f".started.{secrets.token_hex(4)}"
        _write(draft, json.dumps(runner._asdict()))
        try:
            os.link(draft, self._started)  # fails when it exists, and is never seen half written
        except FileExistsError as error:
            raise AlreadyStarted(f"attempt {self.uid} was started before") from error
        finally:
            draft.unlink()

    def runner(self) -> Runner | None:
        """Who claimed the attempt; None when nobody has."""
        try:
            return Runner(**json.loads(self._started.read_bytes()))
        except FileNotFoundError:
            return None

    def write_outcome(self, outcome: TrialOutcome) -> None:
        """Atomic and durable: its existence says that the attempt has ended."""
        _replace(self._outcome, outcome.model_dump_json())

    def outcome(self) -> TrialOutcome | None:
        """None while there is none."""
        try:
            return TrialOutcome.model_validate_json(self._outcome.read_bytes())
        except FileNotFoundError:
            return None

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def log_size(self, role: str) -> int:
        """In bytes; shrinks when the log's cap is reached."""
        try:
            return self.log(role).stat().st_size
        except FileNotFoundError:
            return 0

    def log_text(self, role: str, since: int = 0) -> str:
        """The log from byte `since` on: its first and its last MB, since a log may be 64 MB long."""
        try:
            with self.log(role).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = since if since <= size else 0
                file.seek(start)
                head = file.read(HEAD_BYTES)
                file.seek(max(size - TAIL_BYTES, start + len(head)))
                return (head + file.read(TAIL_BYTES)).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def log_tail(self, role: str) -> str:
        """The last 8 KB, from the start of a line."""
        try:
            with self.log(role).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_TAIL_BYTES))
                text = file.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return text if size <= LOG_TAIL_BYTES else text[text.find("\n") + 1 :]

    def device_log_text(self) -> str:
        """What the device runtime wrote into its own log folder, at most 1 MB of it, oldest file first."""
        if not self.device_logs.is_dir():
            return ""
        files = sorted((p for p in self.device_logs.rglob("*.log") if p.is_file()), key=lambda p: p.stat().st_mtime)
        text = b""
        for path in files:
            with path.open("rb") as file:
                text += file.read(TAIL_BYTES - len(text))
        return text.decode("utf-8", "replace")


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    _write(draft, text)
    draft.replace(path)
