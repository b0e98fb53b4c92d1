"""What shared hosts do to an attempt: each condition through the real attempt, on real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.domain.early_abort import HopelessAbove, least_objective
from autotune.domain.failure import Failure, FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.template import Deadlines, LaunchTemplate
from autotune.domain.workload import LoadLevel, Workload
from tests.workers.launching import (
    MODEL,
    QUICK,
    OneTemplate,
    endless,
    is_alive,
    job,
    left,
    number_in,
    run,
    template,
    wait_for,
)
from tests.workers.simulated_job import simulated_job
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.capped_log import CAP_BYTES, HEAD_BYTES
from workers.devices.held_memory import DEVICES_DIR, hold
from workers.host_templates import BUILT_IN, HostTemplates
from workers.marked_processes import process_stat

PATIENT = Deadlines(ready_s=170, stall_s=170, warm_up_s=170, load_s=170, stop_s=2)


class Background:
    """An attempt in a thread, so that a test can watch or disturb it."""

    def __init__(self, root: Path, one: TrialJob, launch: LaunchTemplate | None = None) -> None:
        self.folder = root / one.uid
        self._cancelled = threading.Event()
        self._outcome: TrialOutcome | None = None
        self._thread = threading.Thread(target=self._run, args=(root, one, launch or template(deadlines=PATIENT)))

    def _run(self, root: Path, one: TrialJob, launch: LaunchTemplate) -> None:
        self._outcome = run_attempt(one, root, OneTemplate(launch), self._cancelled)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._thread.join()

    def cancel(self) -> None:
        self._cancelled.set()

    def outcome(self) -> TrialOutcome:
        self._thread.join()
        assert self._outcome is not None
        return self._outcome

    def server(self) -> int:
        """The server's process, once it runs."""
        file = self.folder / "pid"
        wait_for(lambda: number_in(file))
        pid = number_in(file)
        assert pid is not None
        return pid

    def port(self) -> int:
        words = Path(f"/proc/{self.server()}/cmdline").read_bytes().decode().split("\0")
        return int(words[words.index("--port") + 1])


@contextlib.contextmanager
def stale_server(port: int, *models: str, shared: bool = False) -> Iterator[None]:
    """Somebody else's healthy server on this port; `shared` by SO_REUSEPORT."""
    listing = json.dumps({"data": [{"id": model} for model in models]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(listing)

    class Server(ThreadingHTTPServer):
        allow_reuse_port = shared

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def failure_of(outcome: TrialOutcome) -> Failure:
    assert outcome.failure is not None
    return outcome.failure


# --- ports ------------------------------------------------------------------------------------


def test_a_stale_server_with_the_same_model_on_our_port_is_never_measured(tmp_path: Path) -> None:
    with Background(tmp_path, job("--deaf")) as attempt, stale_server(attempt.port(), MODEL):
        failure = failure_of(attempt.outcome())
    assert (failure.phase, failure.failure_class) == (Phase.READY, FailureClass.INFRASTRUCTURE), failure
    assert left(tmp_path) == {}


def test_a_second_listener_on_our_port_is_noticed_although_ours_answers_too(tmp_path: Path) -> None:
    with Background(tmp_path, job("--reuse-port", "--healthy-when", "go")) as attempt:
        port = attempt.port()
        wait_for(lambda: listens(port))
        with stale_server(port, MODEL, f"{MODEL}-another", shared=True):
            (attempt.folder / "go").touch()
            failure = failure_of(attempt.outcome())
    assert failure.failure_class is FailureClass.INFRASTRUCTURE, failure
    assert f"instead of {MODEL}-s1-t0-a1" in failure.summary
    assert left(tmp_path) == {}


def test_the_name_with_the_token_stays_out_of_what_an_export_is_made_of(tmp_path: Path) -> None:
    outcome = run(tmp_path, job(), template(deadlines=PATIENT))
    assert outcome.provenance is not None
    assert MODEL in outcome.provenance.roles["server"].argv
    assert f"{MODEL}-s1-t0-a1" in outcome.provenance.commands["server"]
    assert outcome.provenance.devices.keys() == {"server"}
    assert outcome.provenance.code


# --- devices ----------------------------------------------------------------------------------


def test_a_leftover_that_holds_device_memory_is_not_blamed_on_the_candidate(tmp_path: Path) -> None:
    registry = tmp_path / "devices"
    content = yaml.safe_load((BUILT_IN / "simulated-910c.yaml").read_text(encoding="utf-8"))
    content["name"] = "crowded"
    content["roles"]["server"]["env"] = {DEVICES_DIR: str(registry)}
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "crowded.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    one = simulated_job("s1-t0-a1")
    one = one.model_copy(update={"deployment": one.deployment.model_copy(update={"template": "crowded"})})
    with subprocess.Popen(["/bin/sleep", "600"]) as leftover:
        try:
            hold(registry, range(2), 40.0, leftover.pid)
            failure = failure_of(run_attempt(one, tmp_path / "attempts", HostTemplates(folder)))
        finally:
            leftover.kill()
    assert failure.phase is Phase.READY
    assert failure.failure_class is FailureClass.INFRASTRUCTURE, failure


# --- logs -------------------------------------------------------------------------------------

LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); "
LIMITED += "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


def run_with_small_files(tmp_path: Path, limit_bytes: int, one: TrialJob, deadlines: Deadlines) -> TrialOutcome | None:
    """The attempt in processes that can't write a file beyond the limit, as on a disk that is full."""
    folder = tmp_path / "templates"
    folder.mkdir()
    content = template(deadlines=deadlines).model_dump(mode="json")
    (folder / "fake.yaml").write_text(yaml.safe_dump(content))
    root = tmp_path / "attempts"
    files = AttemptFiles(root, one.uid)
    files.write_job(one)
    words = ["-m", "workers.attempt", "--attempts", str(root), "--templates", str(folder), one.uid]
    subprocess.run([sys.executable, "-c", LIMITED, str(limit_bytes), *words], check=False, timeout=150)
    assert left(root) == {}
    return files.outcome()


def test_a_log_for_which_there_is_no_room_does_not_stop_a_good_server(tmp_path: Path) -> None:
    outcome = run_with_small_files(tmp_path, 600_000, job("--flood-mb", "5"), PATIENT)
    assert outcome is not None
    assert outcome.failure is None, outcome.failure
    assert (tmp_path / "attempts/s1-t0-a1/server.log").stat().st_size <= 600_000


def test_no_candidate_is_blamed_on_a_full_disk(tmp_path: Path) -> None:
    silent = QUICK.model_copy(update={"stall_s": 1.0})
    outcome = run_with_small_files(tmp_path, 100_000, job("--flood-mb", "1", "--deaf"), silent)
    assert outcome is not None
    failure = failure_of(outcome)
    assert failure.failure_class is FailureClass.INFRASTRUCTURE, failure
    assert "cannot write into" in failure.summary


def test_a_flood_of_a_gigabyte_leaves_a_small_log_with_its_head_and_its_tail(tmp_path: Path) -> None:
    outcome = run(tmp_path, job("--say", "the first word", "--flood-mb", "1024"), template(deadlines=PATIENT))
    assert outcome.failure is None, outcome.failure
    log = AttemptFiles(tmp_path, outcome.uid).log("server")
    assert HEAD_BYTES < log.stat().st_size <= CAP_BYTES
    with log.open("rb") as file:
        assert file.readline() == b"the first word\n"
    assert "/v1/completions" in outcome.log_tail
    text = log.read_bytes()
    assert text.count(b"bytes of this log were dropped here") >= 1


def test_an_attempt_can_be_cancelled_in_the_middle_of_a_flood(tmp_path: Path) -> None:
    with Background(tmp_path, job("--flood-mb", "1000000"), template(deadlines=PATIENT)) as attempt:
        files = AttemptFiles(tmp_path, "s1-t0-a1")
        server = attempt.server()
        wait_for(lambda: files.log_size("server") > 4 * HEAD_BYTES, limit_s=120)
        attempt.cancel()
        failure = failure_of(attempt.outcome())
    assert (failure.failure_class, failure.summary) == (FailureClass.INFRASTRUCTURE, "cancelled")
    assert not is_alive(server)
    assert left(tmp_path) == {}


def test_a_log_in_no_encoding_at_all_is_read(tmp_path: Path) -> None:
    noise = bytes(range(256)).hex() + "ffc0c1fe"
    said = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.96 GiB total capacity)"
    outcome = run(tmp_path, job("--say-bytes", noise, "--say", said, "--exit", "1"), template(deadlines=PATIENT))
    failure = failure_of(outcome)
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert failure.decisive_line == said
    assert TrialOutcome.model_validate_json(outcome.model_dump_json()) == outcome
    assert run(tmp_path, job("--say-bytes", noise, uid="s1-t1-a1"), template(deadlines=PATIENT)).measurement is not None


# --- secrets ----------------------------------------------------------------------------------

OURS = "hf_0urVery0wnSecretValue42"
THEIRS = "k3y-the-server-read-from-a-file-of-its-own"


def test_no_secret_is_left_in_any_file_or_outcome(tmp_path: Path) -> None:
    said = f"OSError: 401 for {OURS}, api_key='{THEIRS}', Authorization: Bearer {THEIRS}\nHF_TOKEN={THEIRS}"
    one = job("--say-bytes", said.encode().hex(), "--exit", "1")
    outcome = run(tmp_path, one, template(env={"HF_TOKEN": OURS}, deadlines=PATIENT))
    assert "401 for ***" in (failure_of(outcome).decisive_line or "")
    places = {path: path.read_bytes() for path in (tmp_path / outcome.uid).rglob("*") if path.is_file()}
    assert any(path.name == "server.log" for path in places)
    for name, text in [*places.items(), ("outcome", outcome.model_dump_json().encode())]:
        assert OURS.encode() not in text, name
        assert THEIRS.encode() not in text, name


TOKENS = {
    "RAY_AUTH_TOKEN": "ray-token-of-ours-0",
    "AUTOTUNE_TOKEN": "at_1_token-of-ours",
    "HF_TOKEN": "hf_token-of-the-worker",
    "AWS_SECRET_ACCESS_KEY": "aws-secret-of-ours",
    "HTTPS_PROXY": "http://user:pass-of-ours@proxy",
    "OMP_NUM_THREADS": "threads-of-ours",
    "LD_LIBRARY_PATH": "/lib/of/ours",
    "PYTHONSTARTUP": "/of/ours",
}
BASE = {"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "AUTOTUNE_ATTEMPT", "AUTOTUNE_ATTEMPTS_ROOT"}
CACHES = {"VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "ASCEND_CACHE_PATH"}
ASCEND = {"ASCEND_RT_VISIBLE_DEVICES", "ASCEND_PROCESS_LOG_PATH"}


def test_the_servers_environment_holds_what_is_allowed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    launch = template(env={"OWN": "1"}, engine="vllm-ascend", deadlines=PATIENT)
    with Background(tmp_path, job("--deaf", env={"HCCL_BUFFSIZE": "200"}), launch) as attempt:
        server = attempt.server()
        stat = process_stat(server)
        assert stat is not None
        of_server = environment(server)
        of_supervisor = environment(stat.parent)
    assert of_server.keys() == BASE | CACHES | ASCEND | {"OWN", "HCCL_BUFFSIZE"}
    for env in (of_server, of_supervisor):
        assert not any(value in text for value in TOKENS.values() for text in env.values())
    inside = str(attempt.folder.resolve())
    own = {"HOME", "TMPDIR", "ASCEND_PROCESS_LOG_PATH", *CACHES}
    assert all(of_server[name].startswith(inside) for name in own)


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


# --- the end of a server ----------------------------------------------------------------------


def test_a_server_that_dies_under_load_ends_the_attempt_at_once(tmp_path: Path) -> None:
    with Background(tmp_path, job(workload=endless()), template(deadlines=PATIENT)) as attempt:
        server = attempt.server()
        load = attempt.folder / "load.json"
        wait_for(load.exists)
        wait_for(lambda: b"/v1/completions" in AttemptFiles(tmp_path, "s1-t0-a1").log_tail("server").encode())
        os.kill(server, signal.SIGKILL)
        killed = time.monotonic()
        failure = failure_of(attempt.outcome())
        assert time.monotonic() - killed < 60  # and not the 170 s of the deadlines
    assert failure.failure_class is FailureClass.CRASH
    assert "SIGKILL" in failure.summary


MANY = Workload.model_validate(
    {
        "prompt_tokens": 8,
        "output_tokens": 8,
        "levels": [{"concurrency": 2, "requests": 5_000}],
        "warmup_requests": 1,
        "request_timeout_s": 170,
    }
)


@pytest.mark.parametrize(
    ("flags", "stall_s", "phase", "failure_class", "words"),
    [
        (("--stall-after", "20"), 1.5, Phase.LOAD, FailureClass.HANG, "no token for 1.5 s"),
        (("--stall-requests",), 1.5, Phase.WARM_UP, FailureClass.HANG, "no token for 1.5 s"),
        (("--fail-after", "1"), 170, Phase.LOAD, FailureClass.REQUEST_ERRORS, "requests failed"),
        (("--fail-requests",), 170, Phase.WARM_UP, FailureClass.REQUEST_ERRORS, "warm_up: 1 of 1 requests failed"),
    ],
    ids=["stalls-under-load", "stalls-in-warm-up", "errors-under-load", "errors-in-warm-up"],
)
def test_a_lost_cause_is_not_waited_for(
    tmp_path: Path, flags: tuple[str, ...], stall_s: float, phase: Phase, failure_class: FailureClass, words: str
) -> None:
    limits = PATIENT.model_copy(update={"token_stall_s": stall_s})
    failure = failure_of(run(tmp_path, job(*flags, workload=MANY), template(deadlines=limits)))
    assert (failure.phase, failure.failure_class) == (phase, failure_class), failure
    assert words in failure.summary
    assert left(tmp_path) == {}


def test_a_hopeless_load_is_cut_and_tells_the_least_that_the_trial_would_cost(tmp_path: Path) -> None:
    one = simulated_job("s1-t0-a1")
    load = one.workload.model_copy(update={"levels": (LoadLevel(concurrency=1, requests=5_000),)})
    above = HopelessAbove(limits_ms={"c1": 1e-3}, objective_ms=12.5, trial=3)
    one = one.model_copy(update={"workload": load, "hopeless_above": above})
    failure = failure_of(run_attempt(one, tmp_path, HostTemplates(None)))
    assert (failure.phase, failure.failure_class) == (Phase.LOAD, FailureClass.HOPELESS), failure
    assert failure.summary.startswith("c1: at least ")
    assert least_objective(failure) == 12.5
    assert left(tmp_path) == {}


# --- phases of a start ------------------------------------------------------------------------

BEGIN, END = "Starting to load model tiny...", "Loading model weights took 1.2000 GB"


def test_a_part_of_the_start_has_a_limit_of_its_own(tmp_path: Path) -> None:
    limits = PATIENT.model_copy(update={"weights_s": 1.0})
    launch = template(engine="vllm-test", deadlines=limits)
    failure = failure_of(run(tmp_path, job("--say", BEGIN, "--chatter-s", "160"), launch))
    assert (failure.phase, failure.failure_class) == (Phase.READY, FailureClass.START_TIMEOUT), failure
    assert failure.summary.startswith("weights not over after 1 s")


COMPILES = "Using cache directory: /c/torch_compile_cache for vLLM's torch.compile"


def test_an_engine_that_compiles_is_not_called_silent(tmp_path: Path) -> None:
    limits = PATIENT.model_copy(update={"stall_s": 0.5, "ready_s": 4})
    launch = template(engine="vllm-test", deadlines=limits)
    failure = failure_of(run(tmp_path, job("--say", COMPILES, "--deaf"), launch))
    assert failure.failure_class is FailureClass.START_TIMEOUT, failure
    assert failure.summary.startswith("not ready after")


def test_the_parts_of_a_start_are_among_the_durations(tmp_path: Path) -> None:
    outcome = run(tmp_path, job("--say", f"{BEGIN}\n{END}"), template(engine="vllm-test", deadlines=PATIENT))
    assert outcome.failure is None
    assert outcome.durations_s["weights"] >= 0


def test_scratch_folders_are_deleted_and_logs_are_kept(tmp_path: Path) -> None:
    outcome = run(tmp_path, job("--exit", "1"), template(deadlines=PATIENT))
    kept = {path.name for path in (tmp_path / outcome.uid).iterdir()}
    assert not kept & {"home", "tmp", "cache"}
    assert {"server.log", "outcome.json", "started"} <= kept
