"""Command lines of containers, and what a template may say of them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.domain.export import to_env, to_json, to_sh
from autotune.domain.job import LaunchedRole
from autotune.domain.launcher import Container, Mount, environment_words
from autotune.domain.template import LaunchTemplate
from tests.recipes import recipe

NAMES = st.from_regex(r"/[a-z]{1,6}(/[a-z0-9._-]{1,6}){0,2}", fullmatch=True).filter(lambda p: "/.." not in p)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
ENV = st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True), VALUES, max_size=5)
MOUNTS = st.lists(
    st.tuples(NAMES, NAMES, st.booleans()).map(lambda m: {"host": m[0], "container": f"/in{m[1]}", "writable": m[2]}),
    max_size=4,
    unique_by=lambda m: m["container"],
)
NODES = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/davinci{device}"]


def template(**container: object) -> dict[str, object]:
    role = {"argv": ["vllm", "serve", "{model_path}", "--port", "{port}"]}
    settings = {"image": "quay.io/ascend/vllm-ascend:v0.23.0-a3", **container}
    return {
        "name": "x",
        "engine": "vllm-ascend",
        "roles": {"server": role},
        "models": {"m": "/models/m"},
        "container": settings,
    }


def docker(words: list[str]) -> argparse.Namespace:
    """As the real client reads them: its options end with the image, all else is the server's."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for flag in ("--rm", "--init"):
        parser.add_argument(flag, action="store_true")
    for option in ("--network", "--pull", "--log-driver", "--ipc", "--shm-size", "--user", "--workdir", "--entrypoint"):
        parser.add_argument(option)
    for option in ("--device", "-v", "-e"):
        parser.add_argument(option, action="append", default=[])
    return parser.parse_args(words)


@settings(max_examples=80, deadline=None)
@given(MOUNTS, ENV, st.lists(st.integers(0, 15).map(str), max_size=4, unique=True), st.sampled_from([None, "64g"]))
def test_every_setting_arrives_as_one_word(
    mounts: list[dict[str, object]], env: dict[str, str], numbers: list[str], shm: str | None
) -> None:
    asked = {"image": "a:1", "mounts": mounts, "devices": NODES, "shm_size": shm}
    container = Container.model_validate(asked)
    folder = Mount(host="/data/a1", container="/data/a1", writable=True)
    program, verb, *words = container.words(numbers, [folder], "/data/a1")
    assert (program, verb) == ("docker", "run")
    read = docker([*words, *(word for word in environment_words(env))])
    assert read.rm
    assert read.init
    assert (read.network, read.pull, read.shm_size) == ("host", "never", shm)
    assert read.device == [*NODES[:3], *(f"/dev/davinci{n}" for n in numbers)]
    wanted = [f"{m['host']}:{m['container']}:{'rw' if m['writable'] else 'ro'}" for m in mounts]
    assert read.v == [*wanted, "/data/a1:/data/a1:rw"]
    assert dict(pair.split("=", 1) for pair in read.e) == env


def test_a_secret_is_given_by_name() -> None:
    assert environment_words({"A": "1", "K": "secret"}, frozenset({"K"})) == ("-e", "A=1", "-e", "K")


def test_a_path_is_found_on_the_host_through_the_deepest_mount() -> None:
    mounts = [{"host": "/srv", "container": "/opt"}, {"host": "/fast", "container": "/opt/models"}]
    container = Container.model_validate({"image": "a:1", "mounts": mounts})
    assert container.of_host("/opt/models/m/x.gguf") == "/fast/m/x.gguf"
    assert container.of_host("/opt/lib.so") == "/srv/lib.so"
    assert container.of_host("/optional") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"mounts": [{"host": "models", "container": "/models"}]},
            "host's side of a mount 'models' must be an absolute",
        ),
        ({"mounts": [{"host": "/a,b", "container": "/models"}]}, "without `..`, blank, comma or colon"),
        ({"mounts": [{"host": "/a/../b", "container": "/models"}]}, "without `..`"),
        ({"mounts": [{"host": "/a", "container": "/dev"}]}, "nothing can be mounted over /dev"),
        ({"mounts": [{"host": "/a", "container": "/"}]}, "nothing can be mounted over /"),
        (
            {"mounts": [{"host": "/a", "container": "/m"}, {"host": "/b", "container": "/m/"}]},
            "two mounts claim /m in the container",
        ),
        ({"devices": ["/etc/passwd"]}, "must be a node below /dev"),
        ({"image": "--privileged"}, "image"),
        ({"image": "a:{port}"}, "no other placeholder than {stack}"),
        ({"image": "a:{stack}"}, "lists no `stacks`"),
        ({"engine": "lxc"}, "engine"),
        ({"client": "bin/docker"}, "the client"),
        ({"shm_size": "much"}, "shm_size"),
        ({"privileged": True}, "privileged"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_template(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LaunchTemplate.model_validate(template(**changes))


def test_paths_of_the_host_are_no_paths_of_a_container() -> None:
    one = template()
    with pytest.raises(ValidationError, match="name the container's, as python3"):
        LaunchTemplate.model_validate({**one, "roles": {"server": {"argv": ["{python}"]}}})
    with pytest.raises(ValidationError, match="give a path of the container"):
        LaunchTemplate.model_validate({**one, "models": {"m": "package:llm/x.gguf"}})


def test_images_can_be_the_stacks_of_a_template() -> None:
    stacks = {"v0.22": {"value": "v0.22.0"}, "v0.23": {"value": "v0.23.0"}}
    one = LaunchTemplate.model_validate({**template(image="vllm-ascend:{stack}"), "stacks": stacks})
    assert one.takes_stack("server")


def in_container(folder: Path, env: dict[str, str]) -> LaunchedRole:
    """A `docker` that writes down what it was told."""
    client = folder / "docker"
    tell = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('told.json', 'w'))"
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "{tell}" "$@"\n')
    client.chmod(0o755)
    container = Container(image="a:1", client=str(client), devices=tuple(NODES))
    words = container.words(["0", "1"], [], "{trial_dir}")
    argv = ("vllm", "serve", "--port", "{port}", "--json", '{"a": "it\'s $HOME"}')
    return LaunchedRole(argv=argv, env=env, run=words, image="a:1", client_env={"DOCKER_HOST": "unix:///d.sock"})


def test_an_exported_script_runs_the_same_container(tmp_path: Path) -> None:
    role = in_container(tmp_path, {"HCCL_BUFFSIZE": "200", "HF_TOKEN": "***", "LOGS": "{trial_dir}/plog"})
    script = tmp_path / "start.sh"
    script.write_text(to_sh(recipe(roles={"server": role})))
    run_dir = tmp_path / "run here"
    env = {"PATH": "/bin:/usr/bin", "PORT": "9001", "RUN_DIR": str(run_dir), "HF_TOKEN": "hf_1"}
    done = subprocess.run(["bash", str(script)], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words, client_env = json.loads((run_dir / "told.json").read_text())
    at = words.index("a:1")
    read = docker(words[1:at])
    assert words[at + 1 :] == ["vllm", "serve", "--port", "9001", "--json", '{"a": "it\'s $HOME"}']
    assert {"HCCL_BUFFSIZE=200", f"LOGS={run_dir}/plog", "HF_TOKEN", f"HOME={run_dir}/home"} <= set(read.e)
    assert read.device[-2:] == ["/dev/davinci0", "/dev/davinci1"]
    assert client_env["DOCKER_HOST"] == "unix:///d.sock"
    assert client_env["HF_TOKEN"] == "hf_1"
    assert "HCCL_BUFFSIZE" not in client_env
    missing = subprocess.run(["bash", str(script)], env={**env, "HF_TOKEN": ""}, check=False, capture_output=True)
    assert b"is a secret that was not recorded" in missing.stderr


def test_other_exports_tell_the_settings_of_the_server(tmp_path: Path) -> None:
    one = recipe(roles={"server": in_container(tmp_path, {"HCCL_BUFFSIZE": "200"})})
    assert "HCCL_BUFFSIZE=200" in to_env(one)
    best = json.loads(to_json(one))["best"]
    assert best["argv"][0] == "vllm"
    assert best["roles"]["server"]["image"] == "a:1"
    assert best["roles"]["server"]["run"][1] == "run"
