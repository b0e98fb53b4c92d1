"""Endpoints that run already: measured, never touched, and only where this host allows it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from autotune.domain.export import to_sh
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.launcher import Attach
from autotune.domain.template import LaunchTemplate, RoleTemplate
from autotune.errors import InvalidTemplate
from tests.recipes import recipe
from tests.simulator.server_process import serving
from tests.workers.launching import FAKE_SERVER, MODEL, QUICK, endless, is_alive, job, left, run, wait_for
from workers.free_port import free_port
from workers.launchers.attach import allow_list, allowed_url


def attached(url: str, model: str = MODEL, **changes: object) -> LaunchTemplate:
    settings = {
        "name": "fake",
        "engine": "fake",
        "roles": {"server": {"url": url}},
        "models": {MODEL: model},
        "attach": {},
        "deadlines": QUICK.model_dump(),
        "simulated": True,
    }
    return LaunchTemplate.model_validate(settings | changes)


@contextmanager
def running(*words: str, model: str = MODEL) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server that nobody of ours has started."""
    port = free_port()
    argv = [sys.executable, "-S", str(FAKE_SERVER), "--port", str(port), "--served-model-name", model, *words]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            wait_for(lambda: answers(url))
            yield url, process
        finally:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_a_running_server_is_measured_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    with running(model="/models/its-own-name") as (url, process):
        outcome = run(root, job(), attached(url, model="/models/its-own-name"))
        assert outcome.failure is None
        assert outcome.measurement is not None
        assert is_alive(process.pid)
        assert left(root) == {}
    assert outcome.provenance is not None
    assert outcome.provenance.commands == {"server": ()}
    assert outcome.provenance.roles["server"].url == url
    script = to_sh(recipe(roles=outcome.provenance.roles))
    assert f"server runs already, at {url}: nothing is started" in script
    assert "exec" not in script


def test_a_simulated_endpoint_that_the_test_started_is_measured(tmp_path: Path) -> None:
    with serving(tmp_path / "server.log", "--tensor-parallel-size", "2") as (client, process):
        name = client.get("/v1/models").json()["data"][0]["id"]
        url = str(client.base_url).rstrip("/")
        outcome = run(tmp_path / "attempts", job(), attached(url, model=name, engine="vllm-ascend"))
        assert is_alive(process.pid)
        assert answers(url)
    assert outcome.failure is None
    assert outcome.measurement is not None


def test_a_plan_that_needs_a_launch_is_refused(tmp_path: Path) -> None:
    with running() as (url, _):
        outcome = run(tmp_path / "attempts", job("--max-num-seqs", "8"), attached(url))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert "nothing can be set at their launch" in outcome.failure.summary
    assert "--max-num-seqs" in (outcome.failure.decisive_line or "")


def test_a_server_that_dies_shows_as_failed_requests(tmp_path: Path) -> None:
    with running("--die-at-request", "20") as (url, _):
        level = endless().levels[0].model_copy(update={"requests": 60})
        load = endless().model_copy(update={"levels": (level,)})
        outcome = run(tmp_path / "attempts", job(workload=load), attached(url))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.REQUEST_ERRORS
    assert outcome.failure.phase in {Phase.WARM_UP, Phase.LOAD}


def test_a_server_that_is_not_there_does_not_blame_the_candidate(tmp_path: Path) -> None:
    limits = QUICK.model_copy(update={"ready_s": 1.0})
    launch = attached(f"http://127.0.0.1:{free_port()}", deadlines=limits.model_dump())
    outcome = run(tmp_path / "attempts", job(), launch)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "not ready after" in outcome.failure.summary


def test_another_model_is_not_measured(tmp_path: Path) -> None:
    with running(model="other") as (url, _):
        outcome = run(tmp_path / "attempts", job(), attached(url))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "serves other instead of" in outcome.failure.summary


# --- addresses ------------------------------------------------------------------------------


def test_an_address_that_nobody_allowed_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    outcome = run(tmp_path / "attempts", job(), attached("http://192.0.2.7:8000"))
    assert outcome.failure is not None
    assert outcome.failure.phase is Phase.PLACE
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "192.0.2.7 is neither loopback nor listed" in outcome.failure.summary
    assert "attach-hosts" in outcome.failure.summary


def test_the_hosts_own_list_allows_addresses_and_networks(tmp_path: Path) -> None:
    path = tmp_path / "attach-hosts"
    assert allow_list(path) == ()
    path.write_text("# the test cluster\n192.0.2.7  # node 7\n\n198.51.100.0/24\n2001:db8::/32\n")
    listed = allow_list(path)
    assert allowed_url("url", "http://192.0.2.7:8000", listed) == "http://192.0.2.7:8000"
    assert allowed_url("url", "http://198.51.100.9", listed) == "http://198.51.100.9:80"
    assert allowed_url("url", "http://[2001:db8::1]:8000", listed) == "http://[2001:db8::1]:8000"
    assert allowed_url("url", "http://127.0.0.1:8000/", ()) == "http://127.0.0.1:8000"
    for refused in ("http://192.0.2.8:8000", "http://[2001:db9::1]:8000", "http://169.254.169.254"):
        with pytest.raises(InvalidTemplate, match="may not be measured from this host"):
            allowed_url("url", refused, listed)
    path.write_text("10.0.0.0/99\n")
    with pytest.raises(InvalidTemplate) as caught:
        allow_list(path)
    assert "neither an address nor a network" in str(caught.value.problems[0])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://127.0.0.1:8000", "end TLS in front of it"),
        ("ftp://127.0.0.1", "is no address"),
        ("http://user:secret@127.0.0.1:8000", "without user"),
        ("http://127.0.0.1:8000/v1", "without user, path or query"),
        ("http://127.0.0.1:99999", "no number from 0 to 65535"),
    ],
)
def test_an_address_of_another_form_is_refused_with_the_template(url: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        attached(url)


def test_what_does_not_fit_an_attached_server_is_refused() -> None:
    url = "http://127.0.0.1:8000"
    with pytest.raises(ValidationError, match="needs `url`, and neither"):
        attached(url, roles={"server": {"url": url, "argv": ["serve"]}})
    with pytest.raises(ValidationError, match="a `url` goes with `attach`"):
        attached(url, attach=None)
    with pytest.raises(ValidationError, match="exclude each other"):
        attached(url, container={"image": "some:1"})
    with pytest.raises(ValidationError, match="remove `libraries`"):
        attached(url, libraries={"jemalloc": "/x.so"})
    with pytest.raises(ValidationError, match="may not be handed to a server"):
        attached(url, attach={"api_key_env": "RAY_AUTH_TOKEN"})


class Guarded(BaseHTTPRequestHandler):
    """Sends everybody elsewhere, and notes what it was told."""

    protocol_version = "HTTP/1.1"
    target = ""
    seen: list[str | None]

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("authorization"))
        self.send_response(307)
        self.send_header("Location", self.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with running() as (url, _):
        handler = type("Redirecting", (Guarded,), {"target": url, "seen": []})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                limits = QUICK.model_copy(update={"ready_s": 1.5}).model_dump()
                launch = attached(f"http://127.0.0.1:{server.server_address[1]}", deadlines=limits)
                outcome = run(tmp_path / "attempts", job(), launch)
            finally:
                server.shutdown()
                thread.join()
    assert outcome.failure is not None
    assert "answers 307" in outcome.failure.summary


def test_an_api_key_reaches_the_server_and_nothing_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "measure-me-0123456789"
    root = tmp_path / "attempts"
    with running("--api-key", key) as (url, _):
        launch = attached(url, attach=Attach(api_key_env="ENDPOINT_KEY").model_dump())
        without = run(root, job(uid="s1-t0-a1"), launch)
        monkeypatch.setenv("ENDPOINT_KEY", key)
        outcome = run(root, job(uid="s1-t0-a2"), launch)
    assert without.failure is not None
    assert "ENDPOINT_KEY is not set in the worker's environment" in without.failure.summary
    assert outcome.failure is None
    assert outcome.measurement is not None
    kept = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert not any(key.encode() in content for content in kept)
    spec = json.loads((root / "s1-t0-a2" / "load.json").read_text())
    assert spec["api_key_env"] == "ENDPOINT_KEY"


def test_a_role_without_address_or_command_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs `argv`"):
        LaunchTemplate(name="x", engine="fake", roles={"server": RoleTemplate()}, models={"m": "/m"})
