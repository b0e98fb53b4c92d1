"""The simulated server as a real process over HTTP."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.simulator.server_process import (
    PLAIN,
    SEED,
    SYSTEM,
    body,
    command,
    counter,
    environment,
    events,
    serving,
)
from workers.host_templates import HostTemplates, library_path
from workers.simulator.http.engine import MOST_AHEAD_S
from workers.simulator.http.pace import PACE_FILE_ENV, read_pace
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.system import load_system
from workers.simulator.serving.noise import Noise
from workers.simulator.start.random_faults import freeze_after_steps
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags

DRAFTING = (
    *("-tp", "2", "--max-num-seqs", "16", "--max-model-len", "4096"),
    *("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[5,20,40]}'),
    *("--speculative-config", '{"method":"mtp","num_speculative_tokens":4}'),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("plain") / "log", *PLAIN) as (client, _):
        yield client


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("drafting") / "log", *DRAFTING) as (client, _):
        yield client


def expected(flags: tuple[str, ...]) -> tuple[CostModel, float]:
    system = load_system(SYSTEM)
    config = configure(parse_flags(["serve", "x", *flags]), {}, [], system)
    return CostModel(system, config), Noise(SEED["AUTOTUNE_SIM_SEED"]).launch_factor


def test_it_says_who_it_is(plain: httpx.Client) -> None:
    (card,) = plain.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("sim", 4096)
    assert plain.get("/version").json() == {"version": "0.22.0rc1"}
    assert plain.post("/reset_prefix_cache").status_code == 200
    assert plain.get("/nothing").status_code == 404
    assert plain.get("/v1/completions").status_code == 405


def test_tpot_follows_the_cost_model(plain: httpx.Client) -> None:
    model, factor = expected(PLAIN)
    steady = (model.decode_step_ms(1) - model.cache_miss_ms()) * factor
    name = "request_time_per_output_token_seconds_sum"
    at_server = []
    for _ in range(3):
        before = counter(plain, name)
        started = time.monotonic()
        events(plain, "/v1/completions", body(64, 80))
        elapsed_ms = (time.monotonic() - started) * 1e3
        at_server.append((counter(plain, name) - before) * 1e3)
        assert elapsed_ms >= 79 * at_server[-1], "tokens came before the engine had computed them"
    # The server counts on its schedule, so a busy machine can't move it; a run may hold a miss of 16 ms or two.
    assert min(at_server) == pytest.approx(steady, rel=0.02)


def test_no_token_leaves_before_it_is_due(tmp_path: Path) -> None:
    pace = tmp_path / "pace"
    with serving(tmp_path / "log", *PLAIN, env={PACE_FILE_ENV: str(pace)}) as (client, process):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: events(client, "/v1/completions", body(16 + n, 40)), range(4)))
        schedule_s = counter(client, "inter_token_latency_seconds_sum")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    rows = read_pace(pace)
    assert len(rows) == 4 * 40
    assert all(sent >= due - MOST_AHEAD_S * 1e9 for _, _, due, sent in rows)
    planned_ns = 0
    for number in {row[0] for row in rows}:
        due = [row[2] for row in rows if row[0] == number]
        assert [row[1] for row in rows if row[0] == number] == list(range(40))
        planned_ns += due[-1] - due[0]
    assert planned_ns / 1e9 == pytest.approx(schedule_s, rel=1e-6)


def test_drafted_tokens_come_several_to_an_event(drafting: httpx.Client) -> None:
    before = drafting.get("/metrics").text
    found = [event for _, event in events(drafting, "/v1/completions", body(32, 120)) if event["choices"]]
    counts = [event["choices"][0]["text"].count(" token") for event in found]
    assert sum(counts) == 120
    assert counts[0] == 1
    assert max(counts) == 5
    assert "spec_decode_num_drafts_total" in before
    assert counter(drafting, "spec_decode_num_drafts_total") == len(counts) - 1
    assert counter(drafting, "spec_decode_num_draft_tokens_total") == 4 * (len(counts) - 1)
    accepted = counter(drafting, "spec_decode_num_accepted_tokens_total")
    assert 119 <= len(counts) - 1 + accepted <= 124  # the last cycle may be cut


def test_metrics_carry_the_names_of_vllm_and_count(plain: httpx.Client) -> None:
    names = ["prompt_tokens_total", "generation_tokens_total", "request_success_total"]
    names += [
        f"{name}_{part}"
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
        )
        for part in ("sum", "count")
    ]
    before = {name: counter(plain, name) for name in names}
    plain.post("/v1/completions", json=body(30, 10))
    gained = {name: counter(plain, name) - before[name] for name in names}
    assert gained["prompt_tokens_total"] == 30
    assert gained["generation_tokens_total"] == 10
    assert gained["inter_token_latency_seconds_count"] == 9
    counts = [gained[name] for name in names if name.endswith("_count") and not name.startswith("inter")]
    assert counts == [1, 1, 1]
    assert gained["request_success_total"] == 1
    assert (counter(plain, "num_requests_running"), counter(plain, "num_requests_waiting")) == (0, 0)


def test_concurrent_streams_share_steps_and_a_client_that_leaves_frees_its_place(plain: httpx.Client) -> None:
    kept = []  # a forgotten iterator closes its connection
    with ExitStack() as streams:
        for _ in range(3):
            request = body(16, 3000, stream=True)
            response = streams.enter_context(plain.stream("POST", "/v1/completions", json=request))
            kept.append(response.iter_lines())
            next(kept[-1])
        assert counter(plain, "num_requests_running") == 3
    deadline = time.monotonic() + 30
    while counter(plain, "num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert counter(plain, "num_requests_running") == 0


def test_sigterm_ends_it_cleanly_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    with serving(tmp_path / "log", *PLAIN) as (client, process):
        with client.stream("POST", "/v1/completions", json=body(16, 3000, stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert '"error"' in rest
        assert process.wait(timeout=30) == 0
    assert "Application startup complete." in (tmp_path / "log").read_text()


def test_running_out_of_memory_under_load_ends_the_process(tmp_path: Path) -> None:
    with serving(tmp_path / "log", *PLAIN, env={"HCCL_BUFFSIZE": "1900"}) as (client, process):
        assert client.post("/v1/completions", json=body(16, 2)).status_code == 200
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(client.post, "/v1/completions", json=body(500, 400)) for _ in range(8)]
            assert process.wait(timeout=60) == 1
            failed = [f.exception() is not None or f.result().status_code == 500 for f in futures]
        assert all(failed)
    log = (tmp_path / "log").read_text()
    assert log.index("NPU out of memory. Tried to allocate") < log.index("EngineDeadError")


def test_a_preloaded_jemalloc_counts_only_when_it_is_there(tmp_path: Path) -> None:
    library = library_path(HostTemplates().template("simulated-910c"), "jemalloc")
    probe = "from workers.simulator.http.server import loaded_libraries as f; print(any('jemalloc' in p for p in f()))"
    for path, there in [(library, "True"), (tmp_path / "libjemalloc.so", "False")]:
        done = subprocess.run(
            [sys.executable, "-c", probe],
            env=environment({"LD_PRELOAD": str(path)}),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == there


def ended(argv: list[str]) -> tuple[int, str]:
    """Exit status and everything that a server which does not get ready says."""
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_taken_port_is_said() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        code, said = ended(command(port=holder.getsockname()[1]))
    assert code == 1
    assert "OSError: [Errno 98] Address already in use" in said
    assert "loading" not in said.lower(), "the port is tried before anything else"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-num-seqs", "many"), "error: argument --max-num-seqs: invalid int value: 'many'"),
        (("--no-such-flag",), "error: unrecognized arguments: --no-such-flag"),
        (("--compilation-config", "{"), "error: argument --compilation-config"),
        (("--max-num-seqs",), "error: argument --max-num-seqs: expected one argument"),
    ],
)
def test_wrong_arguments_end_with_argparse(flags: tuple[str, ...], said: str) -> None:
    code, text = ended(command(*flags, port=0))
    assert code == 2
    assert said in text
    assert "usage:" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "1024", "--max-model-len", "4096"),
            [
                "1 validation error for SchedulerConfig",
                "Value error, max_num_batched_tokens (1024)",
                "[type=value_error",
            ],
        ),
        (("-tp", "2", "--max-model-len", "9999999"), ["1 validation error for ModelConfig", "max_model_len (9999999)"]),
    ],
)
def test_a_refused_configuration_ends_with_a_validation_error(flags: tuple[str, ...], said: list[str]) -> None:
    code, text = ended(command(*flags, port=0))
    assert code == 1
    assert [words for words in said if words not in text] == []
    assert "EngineCore" not in text, "nothing touches a device"


def test_a_missing_model_is_said(tmp_path: Path) -> None:
    code, said = ended(command(port=0, system=tmp_path / "nothing.yaml"))
    assert code == 1
    assert f"Invalid repository ID or local directory specified: '{tmp_path}/nothing.yaml'" in said


def test_a_model_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    secret = tmp_path / "folder.yaml"
    secret.mkdir()  # also for root, whom no permission stops
    code, said = ended(command(port=0, system=secret))
    assert code == 1
    assert "Invalid repository ID or local directory specified" in said


def test_sigterm_ends_a_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(*PLAIN, port=0), stderr=out, env=environment({"AUTOTUNE_SIM_START_S": "100"})
        )
    try:
        deadline = time.monotonic() + 60
        while not log.stat().st_size and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) in (-signal.SIGTERM, 143, 0)
    finally:
        process.kill()
        process.wait()
    assert "Application startup complete." not in log.read_text()


def test_a_frozen_engine_lives_and_yields_nothing_until_it_is_told_to_end(tmp_path: Path) -> None:
    hang = {"AUTOTUNE_SIM_FAULT": "load-hang"}
    steps = freeze_after_steps(environment(hang))
    assert steps is not None
    with serving(tmp_path / "log", *PLAIN, env=hang) as (client, process):
        with client.stream("POST", "/v1/completions", json=body(16, 3000, stream=True)) as response:
            deadline = time.monotonic() + 60
            while counter(client, "generation_tokens_total") < steps and time.monotonic() < deadline:
                time.sleep(0.05)
            assert client.get("/health").status_code == 200
            process.send_signal(signal.SIGTERM)
            said = response.read().decode()
        assert said.count('"text":" token"') == steps
        assert process.wait(timeout=30) == 0
