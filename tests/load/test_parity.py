"""`autotune parity` with clients that are programs of their own and answer in the real ones' files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.load.mock_endpoint import MockEndpoint, Script
from tests.load.test_measure import argv_of, environment, workload
from workers.load.result_files import nearest_rank
from workers.parity.definitions import DEFINITIONS, OURS, READ_IN, Client
from workers.parity.peers import PEERS

LOAD = {
    "prompt_tokens": 12,
    "output_tokens": 6,
    "warmup_requests": 1,
    "levels": [{"concurrency": 2, "requests": 4}],
}
EVALSCOPE = """
from pathlib import Path
options = dict(zip(words[1::2], words[2::2]))
out = Path(after("--outputs-dir")) / "m" / "parallel_2_number_4"
out.mkdir(parents=True)
said("prompts", Path(after("--dataset-path")).read_text().splitlines())
(out / "benchmark_summary.json").write_text(json.dumps({
    "Total Requests": 4, "Failed Requests": 1, "Avg TTFT (ms)": 50.0, "Avg TPOT (ms)": 4.0, "Avg ITL (ms)": 4.5,
    "Avg Latency (s)": 0.07, "Output Throughput (tok/s)": 99.0, "Avg Input Tokens": 12.0, "Avg Output Tokens": 6.0}))
(out / "benchmark_percentile.json").write_text(json.dumps([
    {"Percentiles": "90%", "TTFT (ms)": 1.0, "TPOT (ms)": 1.0},
    {"Percentiles": "99%", "TTFT (ms)": 60.0, "TPOT (ms)": 5.0}]))
"""
VLLM = """
from pathlib import Path
out = Path(after("--result-dir"))
out.mkdir(parents=True)
lines = Path(after("--dataset-path")).read_text().splitlines()
said("prompts", [json.loads(line)["prompt"] for line in lines])
(out / after("--result-filename")).write_text(json.dumps({
    "num_prompts": 4, "completed": 4, "failed": 0, "mean_ttft_ms": 50.0, "p99_ttft_ms": 60.0, "mean_tpot_ms": 4.0,
    "p99_tpot_ms": 5.0, "mean_itl_ms": 4.5, "mean_e2el_ms": 70.0, "output_throughput": 99.0,
    "total_input_tokens": 48, "total_output_tokens": 24}))
"""
GUIDELLM = """
from pathlib import Path
out = Path(after("--output-dir"))
out.mkdir(parents=True)
said("prompts", [json.loads(line)["prompt"] for line in Path(after("--data")).read_text().splitlines()])
def good(mean, p99=None):
    return {"successful": {"mean": mean, "percentiles": {"p99": p99}}}
(out / "benchmarks.json").write_text(json.dumps({"benchmarks": [{"metrics": {
    "request_totals": {"successful": 4, "incomplete": 0, "errored": 0, "total": 4},
    "time_to_first_token_ms": good(50.0, 60.0), "inter_token_latency_ms": good(4.0, 5.0),
    "time_per_output_token_ms": good(12.0), "request_latency": good(0.07), "output_tokens_per_second": good(99.0),
    "prompt_token_count": good(12.0), "output_token_count": good(6.0)}}]}))
"""
BODIES = {Client.EVALSCOPE: EVALSCOPE, Client.VLLM: VLLM, Client.GUIDELLM: GUIDELLM}


def installed(folder: Path, client: Client, body: str) -> Path:
    """An environment with this client in it: its Python."""
    folder.mkdir()
    program = folder / PEERS[client].program
    head = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
def after(name):
    return words[words.index(name) + 1]
def said(name, content):
    with open({str(folder / "said.json")!r}, "w") as file:
        json.dump({{name: content, "words": words, "key": os.environ.get("OPENAI_API_KEY")}}, file)
"""
    program.write_text(head + body)
    program.chmod(0o755)
    python = folder / "python"
    python.symlink_to(sys.executable)
    return python


def parity(url: str, folder: Path, *words: str, load: dict[str, Any] = LOAD) -> subprocess.CompletedProcess[str]:
    argv = argv_of("parity", url, "--model", "m", "--workload", workload(folder, load), *words)
    return subprocess.run(
        argv, env=environment(folder, MY_KEY="sk-4711-xyz"), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("client", list(Client))
def test_the_same_load_and_the_differences_by_definition(client: Client, tmp_path: Path) -> None:
    python = installed(tmp_path / "bin", client, BODIES[client])
    with MockEndpoint() as mock:
        done = parity(mock.url, tmp_path, "--client", client, "--python", str(python), "--json")
        ours = [served.body["prompt"] for served in mock.served if isinstance(served.body["prompt"], str)]
    answer = json.loads(done.stdout)
    level = answer["levels"]["c2"]
    assert done.returncode == (level["trust"] == "invalid"), done.stderr
    told = json.loads((tmp_path / "bin" / "said.json").read_text())
    assert len(told["prompts"]) == 4
    assert all(len(prompt.split()) == 12 for prompt in (*told["prompts"], *ours))
    assert not set(told["prompts"]) & set(ours)  # no cache helps the second one
    assert len(set(ours)) == 2 * (4 + 1)  # two runs of ours, each with a warm-up
    assert (answer["client"], answer["definitions_read_in"]) == (client, READ_IN[client])
    assert (level["requests"], level["failed"]) == (4, int(client is Client.EVALSCOPE))
    ttft = level["figures"]["ttft_ms"]
    assert ttft["theirs"] == 50.0
    assert ttft["difference_pct"] == pytest.approx(100 * (50.0 / ttft["ours"] - 1))
    assert ttft["ours_again"] > 0
    assert ttft["their_definition"] == DEFINITIONS[client]["ttft_ms"].theirs
    assert level["figures"]["e2e_ms"]["theirs"] == pytest.approx(70.0)
    if client is Client.GUIDELLM:
        whole = level["figures"]["whole_latency_per_token_ms"]
        assert (whole["theirs"], whole["ours"], whole["difference_pct"]) == (12.0, None, None)
        assert whole["by_their_definition"] == pytest.approx(level["figures"]["e2e_ms"]["ours"] / 6)


def test_words_for_people_and_a_rank_of_their_own(tmp_path: Path) -> None:
    python = installed(tmp_path / "bin", Client.EVALSCOPE, EVALSCOPE)
    with MockEndpoint() as mock:
        kept = tmp_path / "kept"
        done = parity(mock.url, tmp_path, "--python", str(python), "--keep", str(kept))
    assert "definitions, as read in evalscope 1.14.1" in done.stdout, done.stderr
    assert "1 of 4 requests of evalscope failed" in done.stdout
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("ttft_p99_ms"))
    samples = json.loads((kept / "c2" / "ours" / "samples.json").read_text())["levels"]["c2"]
    times = sorted(sample["ttft_ms"] for sample in samples if sample["ttft_ms"] is not None)
    assert float(row[-2]) == pytest.approx(nearest_rank(times, 99), rel=1e-3)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no such flag')", "evalscope ended with code 1: no such flag"),
        ("print('done')", "left no result that can be read"),
    ],
)
def test_a_client_that_fails(body: str, said: str, tmp_path: Path) -> None:
    python = installed(tmp_path / "bin", Client.EVALSCOPE, body)
    with MockEndpoint(Script(first_s=0.001, gap_s=0.001)) as mock:
        done = parity(mock.url, tmp_path, "--python", str(python))
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert said in done.stderr


def test_a_key_goes_through_the_environment_or_not_at_all(tmp_path: Path) -> None:
    python = installed(tmp_path / "bin", Client.VLLM, VLLM)
    with MockEndpoint() as mock:
        done = parity(mock.url, tmp_path, "--client", "vllm", "--python", str(python), "--api-key-env", "MY_KEY")
        told = json.loads((tmp_path / "bin" / "said.json").read_text())
        assert told["key"] == "sk-4711-xyz", done.stderr
        assert "sk-4711-xyz" not in " ".join(told["words"]) + done.stdout + done.stderr
        other = installed(tmp_path / "other", Client.EVALSCOPE, EVALSCOPE)
        done = parity(mock.url, tmp_path, "--python", str(other), "--api-key-env", "MY_KEY")
    assert done.returncode == 2
    assert "only on its command line" in done.stderr


def test_what_can_not_be_compared(tmp_path: Path) -> None:
    done = parity("http://127.0.0.1:9", tmp_path, "--python", str(tmp_path / "python"))
    assert (done.returncode, "nothing is installed by this command" in done.stderr) == (1, True), done.stderr
    timed = {**LOAD, "levels": [{"concurrency": 2, "duration_s": 3}]}
    done = parity("http://127.0.0.1:9", tmp_path, load=timed)
    assert (done.returncode, "leave out durations" in done.stderr) == (2, True), done.stderr


def test_every_definition_is_of_a_figure_that_we_define() -> None:
    for client, definitions in DEFINITIONS.items():
        assert set(definitions) <= set(OURS), client
        assert all(one.theirs and one.effect for one in definitions.values())
