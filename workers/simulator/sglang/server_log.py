"""Log lines in SGLang's form, the part of a server that failure classification reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

from workers.simulator.faults import EngineFailed


class ServerLog:
    """Writes whole lines at once. A line without a rank comes from the front end."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, message: str, rank: str = "TP0") -> None:
        """A line of one rank."""
        self._write(f"{_head(rank)} {message}")

    def front(self, message: str) -> None:
        """A line of the front end."""
        self._write(f"{_head()} {message}")

    def native(self, message: str) -> None:
        """A line of a native library, which has its own form."""
        self._write(f"[W{datetime.now(UTC):%m%d %H:%M:%S}.000000 compiler_depend.ts:164] {message}")

    def progress(self, bar: str, *, ended: bool) -> None:
        """A state of a progress bar, which the next one overwrites."""
        self._out.write(bar + ("\n" if ended else "\r"))
        self._out.flush()

    def uvicorn(self, message: str) -> None:
        self._write(f"INFO:     {message}")

    def rejected(self, message: str) -> None:
        """A configuration that the front end refuses, as a traceback without a wrapper."""
        kind, colon, rest = message.partition(": ")
        named = colon and kind.isidentifier() and kind.endswith(("Error", "Exception"))
        self._write(
            "Traceback (most recent call last):",
            '  File "sglang/launch_server.py", line 31, in <module>',
            "    server_args = prepare_server_args(sys.argv[1:])",
            '  File "sglang/srt/server_args.py", line 812, in __post_init__',
            *(f"{kind}: {rest}" if named else f"ValueError: {message}").splitlines(),
        )

    def scheduler_failed(self, failure: EngineFailed) -> None:
        """The root cause in the middle, the launcher's words that say nothing at the end."""
        self._exception("Scheduler hit an exception", failure)
        self._write(
            f"{_head()} Rank 0 scheduler is dead. Please check if there are relevant logs.",
            f"{_head()} Received sigquit from a child process. It usually means the child failed.",
        )

    def scheduler_died(self, failure: EngineFailed) -> None:
        """The scheduler ends under load."""
        self._exception("Scheduler hit an exception", failure)
        self._write(f"{_head()} Received sigquit from a child process. It usually means the child failed.")

    def _exception(self, what: str, failure: EngineFailed) -> None:
        self._write(
            f"{_head('TP0')} {what}: Traceback (most recent call last):",
            '  File "sglang/srt/managers/scheduler.py", line 3104, in run_scheduler_process',
            f'  File "sglang/srt/model_executor/model_runner.py", line 402, in {failure.stage}',
            *f"{failure.kind}: {failure.message}".splitlines(),
            "",
        )

    def _write(self, *lines: str) -> None:
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()


def _head(rank: str | None = None) -> str:
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    return f"[{now}]" if rank is None else f"[{now} {rank}]"
