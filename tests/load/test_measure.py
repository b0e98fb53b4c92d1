"""`autotune measure` as a process: against a simulated server, and against endpoints that can't be measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.load.mock_endpoint import MockEndpoint, Script
from tests.simulator.server_process import PLAIN, serving
from workers.free_port import free_port
from workers.measure.__main__ import main

KEY = "sk-not-to-be-seen-4711"
MODELS = json.dumps({"data": [{"id": "one"}, {"id": "other"}]})
SHORT = {"prompt_tokens": 24, "output_tokens": 4, "warmup_requests": 1, "request_timeout_s": 30}
TWO_LEVELS = {**SHORT, "levels": [{"concurrency": 1, "requests": 2}, {"concurrency": 2, "requests": 4}]}


def argv_of(command: str, url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "autotune.cli.main", command, "--url", url, *words]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "HTTP_PROXY": "http://127.0.0.1:9", **more}


def autotune(url: str, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv_of("measure", url, *words),
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def workload(folder: Path, content: dict[str, Any]) -> str:
    file = folder / "workload.yaml"
    file.write_text(json.dumps(content))  # JSON is YAML
    return str(file)


Refused = Callable[..., None]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """The program in this process, where it comes to no load: `refused(exit code, its words, url, *options)`."""
    before = signal.getsignal(signal.SIGTERM)

    def run(code: int, said: str, url: str, *words: str) -> None:
        found = main(["--url", url, *words])
        out, err = capsys.readouterr()
        assert (found, out) == (code, ""), err
        assert said in err
        assert "secret" not in err

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("sim") / "server.log", *PLAIN) as (client, _):
        yield str(client.base_url)


def test_json_has_units_counters_and_the_exit_code_of_its_trust(simulated: str, tmp_path: Path) -> None:
    out = tmp_path / "results" / "vllm.json"
    words = ["--workload", workload(tmp_path, TWO_LEVELS), "--seed", "5", "--slo", "ttft_p99_ms <= 60000"]
    done = autotune(f"{simulated}/v1/", tmp_path, *words, "--json", "--format", "vllm", "--out", str(out))
    answer = json.loads(done.stdout)
    measurement = answer["measurement"]
    assert done.returncode == (measurement["trust"] == "invalid"), done.stderr
    assert (answer["url"], answer["model"], answer["api"], answer["seed"]) == (simulated, "sim", "completions", 5)
    assert set(measurement["levels"]) == {"c1", "c2"}
    level = measurement["levels"]["c2"]
    assert (level["sent"], level["failed"], level["prompt_tokens_mean"], level["output_tokens_mean"]) == (4, 0, 24, 4)
    assert level["ttft_ms"]["n"] == 4
    assert level["server"]["server"]["engine"] == "vllm"
    assert (level["server"]["server"]["finished"], level["server"]["server"]["generation_tokens"]) == (4, 16)
    assert {(margin["level"], margin["excess"] < 0) for margin in answer["margins"]} == {("c1", True), ("c2", True)}
    assert answer["workload"]["output_tokens"] == 4
    for name in ("vllm.c1.json", "vllm.c2.json"):
        assert json.loads(out.with_name(name).read_text())["model_id"] == "sim"
    assert "c2" in done.stderr.splitlines()  # progress
    assert list(tmp_path.glob("autotune-*")) == []


def test_the_table_shows_the_servers_own_counters_and_why_it_is_not_trusted(simulated: str, tmp_path: Path) -> None:
    words = ["--workload", workload(tmp_path, TWO_LEVELS), "--keep", str(tmp_path / "kept"), "--keep-cache"]
    done = autotune(simulated, tmp_path, *words)
    rows = {line[:34].strip(): line[34:].split() for line in done.stdout.splitlines()}
    assert next(line for line in done.stdout.splitlines() if line.split() == ["c1", "c2"])
    assert any(line.split() == ["requests", "2", "4"] for line in done.stdout.splitlines())
    assert any(line.split() == ["generated", "tokens", "8", "16"] for line in done.stdout.splitlines())
    assert any("by the counters of server (vllm)" in line for line in rows)
    assert "TPOT mean (ms)" in done.stdout
    assert "trust: " in done.stdout
    assert "2 requests show a large difference at most" in done.stdout  # a reason
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"load.json", "samples.json", "streams.gz"}


def test_repeats_have_prompts_of_their_own_and_the_middle_one_stands(tmp_path: Path) -> None:
    with MockEndpoint() as mock:
        words = ["--model", "m", "--workload", workload(tmp_path, TWO_LEVELS), "--repeats", "3", "--json"]
        done = autotune(mock.url, tmp_path, *words)
        levels = json.loads(done.stdout)["measurement"]["levels"]
        assert [level["repeats"] for level in levels.values()] == [3, 3]
        assert [level["sent"] for level in levels.values()] == [2, 4]
        prompts = [served.prompt for served in mock.served if len(served.prompt) == 24]
        assert len(prompts) >= 3 * 7
        assert len(set(prompts)) >= 3 * 7


def test_a_key_comes_from_the_environment_and_stays_there(tmp_path: Path) -> None:
    with MockEndpoint() as mock:
        kept, out = tmp_path / "kept", tmp_path / "out.json"
        words = ["--model", "m", "--preset", "smoke", "--api-key-env", "MY_KEY", "--keep", str(kept), "--out", str(out)]
        done = autotune(mock.url, tmp_path, *words, MY_KEY=KEY)
        assert done.returncode in (0, 1), done.stderr
        heads = [served.head.lower() for served in mock.served]
        assert len(heads) >= 5
        assert all(f"authorization: bearer {KEY}".lower().encode() in head for head in heads)
        for path in (out, *kept.rglob("*")):
            assert KEY.encode() not in path.read_bytes()
        assert KEY not in done.stdout + done.stderr


def test_chat(tmp_path: Path) -> None:
    with MockEndpoint(Script(channel="content", role_event=True)) as mock:
        done = autotune(mock.url, tmp_path, "--model", "m", "--preset", "smoke", "--api", "chat", "--json")
        assert json.loads(done.stdout)["api"] == "chat", done.stderr
        assert {served.path for served in mock.served} == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    ("script", "words", "code", "said"),
    [
        (Script(status=401), (), 1, "the server wants a key; --api-key-env"),
        (Script(status=404), (), 1, "does not serve m; it serves one, other"),
        (Script(status=500), (), 1, "refuses a request with 500: busy"),
        (Script(usage=False), (), 1, "reports no usage"),
        (Script(framing="length"), (), 1, "answers without a stream"),
        (Script(error_after=0), (), 1, "answers with an error"),
        (Script(), ("--api-key-env", "NOT_SET"), 2, "NOT_SET is not set"),
        (Script(), ("--slo", "ttft_ms <= 4 at c9"), 2, "there is no level c9 (allowed: c1)"),
        (Script(), ("--slo", "speed > 1"), 2, "unknown metric speed"),
        (Script(), ("--format", "evalscope"), 2, "needs --out"),
        (Script(), ("--out", "/"), 2, "is a folder; name a file"),
        (Script(), ("--repeats", "0"), 2, "not from 1 to 99"),
    ],
)
def test_refusals(script: Script, words: tuple[str, ...], code: int, said: str, refused: Refused) -> None:
    with MockEndpoint(script) as mock:
        mock.pages["/v1/models"] = MODELS
        refused(code, said, mock.url, "--model", "m", "--preset", "smoke", *words)


def test_a_load_that_is_no_load(refused: Refused, tmp_path: Path) -> None:
    invalid = workload(tmp_path, {**SHORT, "prompt_tokens": 0, "levels": [{"concurrency": 1, "burstiness": 2}]})
    file = tmp_path / "requests.jsonl"
    file.write_text("no json")
    own = {**SHORT, "requests_file": str(file), "levels": [{"concurrency": 1, "requests": 2}]}
    (tmp_path / "own").mkdir()
    for words, said in (
        (("--preset", "fast"), "there is no preset fast"),
        ((), "name either a preset or the file"),
        (("--workload", str(tmp_path / "absent.yaml")), "can't be read"),
        (("--workload", invalid), "prompt_tokens"),
    ):
        refused(2, said, "http://127.0.0.1:9", *words)
    refused(2, "a URL with a password", "http://u:secret@h", "--preset", "smoke")
    with MockEndpoint() as mock:
        found = ("--model", "m", "--workload", workload(tmp_path / "own", own))
        refused(2, "line 1: is no JSON", mock.url, *found)


def test_nobody_answers_and_nobody_says_which_model(refused: Refused) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    refused(1, "can't be reached", url, "--preset", "smoke")
    with MockEndpoint() as mock:
        mock.pages["/v1/models"] = MODELS
        refused(2, "--model: one, other", mock.url, "--preset", "smoke")


def test_ctrl_c_ends_the_load_too_and_leaves_nothing(tmp_path: Path) -> None:
    with MockEndpoint(lambda number: Script() if number == 0 else Script(stall_after=1)) as mock:
        process = subprocess.Popen(
            argv_of("measure", mock.url, "--model", "m", "--preset", "smoke"),
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while len(mock.served) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            assert children  # the load process
            # A shell that starts us in the background has it ignored, and so have all processes below.
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert list(tmp_path.glob("autotune-*")) == []
