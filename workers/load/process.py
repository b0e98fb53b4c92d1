"""The load process, as its attempt sees it: start, ask how far it is, take the result, stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from autotune.errors import AutotuneError
from workers.load.raw_streams import PATTERN
from workers.load.spec import LoadProgress, LoadResult, LoadSpec, LoadTally

SPEC_FILE = "load.json"
RESULT_FILE = "samples.json"
LOG_FILE = "load.log"
REASON_BYTES = 2_000
STOP_GRACE_S = 2.0


class LoadFailed(AutotuneError):
    """The load process gave no result, and that is not the server's fault. The message says why."""


class LoadProcess:
    """One run of a `LoadSpec` in a process group of its own.

    Nothing here waits but `stop`: the caller asks `poll` every now and then, and watches the server meanwhile.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        assert process.stdout is not None
        self._process = process
        self._folder = folder
        self._stdout = process.stdout
        self._progress = LoadProgress(phase="starting")
        self._tallies: dict[str, tuple[str | None, LoadTally]] = {}
        self._unread = b""
        os.set_blocking(self._stdout.fileno(), False)

    @classmethod
    def start(cls, spec: LoadSpec, folder: Path, env: Mapping[str, str]) -> Self:
        """Write load.json into the folder and start. `env` is the whole environment, nothing is inherited.

        Raises LoadFailed when the process can't be started.
        """
        result = folder / RESULT_FILE
        for old in (result, *folder.glob(PATTERN)):
            old.unlink(missing_ok=True)
        (folder / SPEC_FILE).write_text(spec.model_dump_json())
        # -P: a module of the current folder must not shadow ours.
        argv = [sys.executable, "-P", "-m", "workers.load", str(folder / SPEC_FILE), str(result)]
        try:
            with (folder / LOG_FILE).open("wb") as log:
                process = subprocess.Popen(
                    argv,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    process_group=0,
                )
        except OSError as error:
            raise LoadFailed(f"the load process does not start: {error}") from error
        return cls(process, folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended, well or not."""
        return self._process.poll() is not None

    def poll(self) -> LoadProgress:
        """The phase it is in, or was in when it ended."""
        if not self._stdout.closed:
            while piece := self._stdout.read(65_536):  # None where there is nothing yet, b"" at the end
                self._unread += piece
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._note(line)
        return self._progress

    def tally(self, phase: str) -> tuple[str | None, LoadTally] | None:
        """The newest word on the requests of this phase, with its level, as of the last `poll`; None without one."""
        return self._tallies.get(phase)

    def _note(self, line: bytes) -> None:
        """Anything else is a library's own word on our standard output."""
        with contextlib.suppress(ValidationError):
            self._progress = LoadProgress.model_validate_json(line)
            return
        with contextlib.suppress(ValidationError):
            self._tallies[self._progress.phase] = (self._progress.level, LoadTally.model_validate_json(line))

    def result(self) -> LoadResult:
        """What it measured. Raises LoadFailed when it has not ended, or ended without a result."""
        code = self._process.poll()
        if code is None:
            raise LoadFailed("the load process has not ended yet")
        self._close()
        if code != 0:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise LoadFailed(f"the load process {how}{self._last_words()}")
        try:
            return LoadResult.model_validate_json((self._folder / RESULT_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            raise LoadFailed(f"the load process left no readable result: {error}") from error

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the process and its group: asked first, killed after `grace_s`. Nothing happens when it has ended."""
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, wanted)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace_s)
        self._close()

    def _close(self) -> None:
        self.poll()
        self._stdout.close()

    def _last_words(self) -> str:
        try:
            text = (self._folder / LOG_FILE).read_bytes()[-REASON_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f": {text}" if text else ""
