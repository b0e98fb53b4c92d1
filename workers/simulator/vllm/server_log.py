"""Log lines in vLLM's form, the part of a server that failure classification reads."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TextIO

from workers.simulator.faults import EngineFailed


class ServerLog:
    """Writes whole lines at once. `APIServer` is the front end, `EngineCore` the part that owns the device."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, message: str, source: str, process: str = "EngineCore") -> None:
        self._line(process, "INFO", message, source)

    def warn(self, message: str, source: str, process: str = "EngineCore") -> None:
        self._line(process, "WARNING", message, source)

    def native(self, message: str) -> None:
        """A line of a native library, which has its own form."""
        self._write(f"[W{datetime.now(UTC):%m%d %H:%M:%S}.000000 compiler_depend.ts:164] {message}")

    def rejected(self, message: str) -> None:
        """A configuration that the front end refuses, as a traceback without a wrapper."""
        text = message if message.startswith(("1 validation", "2 validation")) else f"ValueError: {message}"
        self._write(
            "(APIServer) Traceback (most recent call last):",
            '(APIServer)   File "vllm/entrypoints/cli/serve.py", line 62, in cmd',
            '(APIServer)   File "vllm/engine/arg_utils.py", line 1411, in create_engine_config',
            *(f"(APIServer) {line}" for line in text.splitlines()),
        )

    def engine_failed(self, failure: EngineFailed) -> None:
        """The root cause in the middle, the wrapper that says nothing at the end."""
        prefix = self._prefix("EngineCore", "ERROR") + "[core.py:1100] "
        cause = f"{failure.kind}: {failure.message}".splitlines()
        self._write(
            prefix + "EngineCore failed to start.",
            prefix + "Traceback (most recent call last):",
            prefix + '  File "vllm/v1/engine/core.py", line 1091, in run_engine_core',
            prefix + f'  File "vllm_ascend/worker/worker.py", line 388, in {failure.stage}',
            *(prefix + line for line in cause),
            "(APIServer) Traceback (most recent call last):",
            '(APIServer)   File "vllm/entrypoints/openai/api_server.py", line 610, in run_server',
            '(APIServer)   File "vllm/v1/engine/utils.py", line 988, in wait_for_engine_startup',
            "(APIServer) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
            "{'EngineCore_DP0': 1}",
        )

    def engine_died(self, failure: EngineFailed) -> None:
        """The engine core ends under load."""
        prefix = self._prefix("EngineCore", "ERROR") + "[core.py:1110] "
        self._write(
            prefix + "EngineCore encountered a fatal error.",
            prefix + "Traceback (most recent call last):",
            prefix + f'  File "vllm_ascend/worker/model_runner_v1.py", line 2204, in {failure.stage}',
            *(prefix + line for line in f"{failure.kind}: {failure.message}".splitlines()),
            "(APIServer) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
            "(above) for the root cause.",
        )

    def _line(self, process: str, level: str, message: str, source: str) -> None:
        self._write(f"{self._prefix(process, level)}[{source}] {message}")

    def _prefix(self, process: str, level: str) -> str:
        return f"({process} pid={os.getpid()}) {level} {datetime.now(UTC):%m-%d %H:%M:%S} "

    def _write(self, *lines: str) -> None:
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()
