"""Log lines in vLLM's form, the part of a server that failure classification reads."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TextIO

from workers.simulator.faults import EngineFailed

# Where an exception comes up when it is not in a worker process, by the function that raises it.
IN_CORE = frozenset({"get_kv_cache_configs", "register_platform"})


class ServerLog:
    """Writes whole lines at once. `APIServer` is the front end, `EngineCore` the scheduler, `Worker_TP0` a rank."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, message: str, source: str, process: str = "EngineCore") -> None:
        self._line(process, "INFO", message, source)

    def warn(self, message: str, source: str, process: str = "EngineCore") -> None:
        self._line(process, "WARNING", message, source)

    def native(self, message: str) -> None:
        """A line of a native library, which has its own form."""
        self._write(f"[W{datetime.now(UTC):%m%d %H:%M:%S}.000000 compiler_depend.ts:164] {message}")

    def progress(self, bar: str, *, ended: bool) -> None:
        """A state of a progress bar, which the next one overwrites."""
        self._out.write(bar + ("\n" if ended else "\r"))
        self._out.flush()

    def rejected(self, message: str) -> None:
        """A configuration that the front end refuses, as a traceback without a wrapper."""
        text = (
            message if message.startswith(("1 validation", "2 validation", "OSError: ")) else f"ValueError: {message}"
        )
        self._write(
            "(APIServer) Traceback (most recent call last):",
            '(APIServer)   File "vllm/entrypoints/cli/serve.py", line 62, in cmd',
            '(APIServer)   File "vllm/engine/arg_utils.py", line 1411, in create_engine_config',
            *(f"(APIServer) {line}" for line in text.splitlines()),
        )

    def engine_failed(self, failure: EngineFailed) -> None:
        """The root cause in the middle, wrappers that say nothing after it."""
        core = self._prefix("EngineCore", "ERROR") + "[core.py:1100] "
        cause = f"{failure.kind}: {failure.message}".splitlines()
        if failure.stage not in IN_CORE:
            self._worker("WorkerProc failed to start.", failure.stage, cause)
            cause = [
                "Exception: WorkerProc initialization failed due to an exception in a background process. See stack "
                "trace for root cause."
            ]
        self._write(
            core + "EngineCore failed to start.",
            core + "Traceback (most recent call last):",
            core + '  File "vllm/v1/engine/core.py", line 1091, in run_engine_core',
            core + f'  File "vllm/v1/engine/core.py", line 127, in {_core_stage(failure.stage)}',
            *(core + line for line in cause),
            "(APIServer) Traceback (most recent call last):",
            '(APIServer)   File "vllm/entrypoints/openai/api_server.py", line 610, in run_server',
            '(APIServer)   File "vllm/v1/engine/utils.py", line 988, in wait_for_engine_startup',
            "(APIServer) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
            "{'EngineCore_DP0': 1}",
        )

    def engine_died(self, failure: EngineFailed) -> None:
        """The engine core ends under load."""
        cause = f"{failure.kind}: {failure.message}".splitlines()
        self._worker("WorkerProc hit an exception.", failure.stage, cause)
        core = self._prefix("EngineCore", "ERROR") + "[core.py:1110] "
        self._write(
            core + "EngineCore encountered a fatal error.",
            core + "Traceback (most recent call last):",
            core + '  File "vllm/v1/engine/core.py", line 1102, in run_busy_loop',
            core + '  File "vllm/v1/executor/multiproc_executor.py", line 305, in execute_model',
            *(core + line for line in cause),
            "(APIServer) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
            "(above) for the root cause.",
        )

    def _worker(self, what: str, stage: str, cause: list[str]) -> None:
        worker = self._prefix("Worker_TP0", "ERROR") + "[multiproc_executor.py:671] "
        self._write(
            worker + what,
            worker + "Traceback (most recent call last):",
            worker + '  File "vllm/v1/executor/multiproc_executor.py", line 640, in worker_main',
            worker + f'  File "vllm_ascend/worker/worker.py", line 388, in {stage}',
            *(worker + line for line in cause),
        )

    def _line(self, process: str, level: str, message: str, source: str) -> None:
        self._write(f"{self._prefix(process, level)}[{source}] {message}")

    def _prefix(self, process: str, level: str) -> str:
        return f"({process} pid={os.getpid()}) {level} {datetime.now(UTC):%m-%d %H:%M:%S} "

    def _write(self, *lines: str) -> None:
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()


def _core_stage(stage: str) -> str:
    return stage if stage in IN_CORE else "_init_executor"
