"""A docker for tests, as a program: real processes in place of containers, with docker's own rules for its options.

State lies in the folder FAKE_DOCKER. A container is a process in a session of its own below this program's `daemon`
part, so that it goes on when the client that started it is killed, as with the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

STATE = Path(os.environ["FAKE_DOCKER"])
IMAGES = {"quay.io/fake/serve:1": "sha256:" + "1" * 64}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # docker has an exit code of its own
        fail(message)


def fail(message: str, code: int = 125) -> NoReturn:
    sys.stderr.write(f"docker: Error response from daemon: {message}\n")
    sys.exit(code)


def run_parser() -> Parser:
    parser = Parser(prog="docker run", allow_abbrev=False, add_help=False)
    for flag in ("--rm", "--init"):
        parser.add_argument(flag, action="store_true")
    for option in ("--name", "--pull", "--network", "--log-driver", "--ipc", "--shm-size", "--user", "--workdir"):
        parser.add_argument(option)
    parser.add_argument("--entrypoint")
    for option in ("--label", "--device", "-v", "-e"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def containers() -> list[dict[str, object]]:
    found = []
    for path in STATE.glob("c-*.json"):
        try:
            found.append(json.loads(path.read_text()))
        except (FileNotFoundError, ValueError):  # being written, or removed
            continue
    return [one for one in found if alive(int(str(one["pid"])))]


def run(words: list[str]) -> int:
    asked = run_parser().parse_args(words)
    with (STATE / "runs.jsonl").open("a") as log:
        log.write(json.dumps(words) + "\n")
    if asked.image not in IMAGES:
        fail(f"No such image: {asked.image}")
    if asked.pull != "never" or asked.network != "host" or not asked.rm:
        fail("unexpected option")
    if any(one["name"] == asked.name for one in containers()):
        fail(f"Conflict. The container name {asked.name} is already in use")
    for mount in asked.v:
        host, container, mode = mount.split(":")
        if not (host.startswith("/") and container.startswith("/") and mode in {"ro", "rw"}):
            fail(f"invalid mount {mount}")
        if not Path(host).exists():
            fail(f"bind source path does not exist: {host}")
    if os.environ.get("FAKE_DOCKER_REFUSES"):
        fail(os.environ["FAKE_DOCKER_REFUSES"])
    env = {"PATH": os.defpath}
    for pair in asked.e:
        name, equals, value = pair.partition("=")
        if equals:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
    argv = ([asked.entrypoint] if asked.entrypoint else []) + asked.words
    spec = {"argv": argv, "env": env, "cwd": asked.workdir, "name": asked.name, "labels": asked.label}
    # Twice: like the real daemon, what owns the container is no child of the client.
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', *sys.argv[1:]], start_new_session=True)"
    identifier = f"{os.getpid():012x}"
    daemon = {"FAKE_DOCKER": str(STATE), "PATH": os.defpath}
    command = [sys.executable, "-S", "-c", start, __file__, "daemon", identifier, json.dumps(spec)]
    subprocess.run(command, env=daemon, cwd="/", check=True)

    def proxy(number: int, _frame: object) -> None:
        for one in containers():
            if one["id"] == identifier:
                os.kill(int(str(one["pid"])), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, proxy)
    done = STATE / f"done-{identifier}"
    while not done.exists():
        time.sleep(0.01)
    code = int(done.read_text() or "0")
    if code in {126, 127}:
        fail(f"exec: {argv[0]!r}: executable file not found in $PATH: unknown.", code)
    return code


def daemon(identifier: str, text: str) -> int:
    """Owns one container; its output goes where the client's goes."""
    spec = json.loads(text)
    os.chdir("/")
    try:
        process = subprocess.Popen(spec["argv"], env=spec["env"], cwd=spec["cwd"], start_new_session=True)
    except OSError:
        finish(identifier, 127)
        return 0
    note = {"id": identifier, "pid": process.pid, "name": spec["name"], "labels": spec["labels"]}
    draft = STATE / f".{identifier}"
    draft.write_text(json.dumps(note))
    draft.rename(STATE / f"c-{identifier}.json")
    code = process.wait()
    (STATE / f"c-{identifier}.json").unlink(missing_ok=True)
    finish(identifier, code if code >= 0 else 128 - code)
    return 0


def finish(identifier: str, code: int) -> None:
    draft = STATE / f".done-{identifier}"
    draft.write_text(str(code))
    draft.rename(STATE / f"done-{identifier}")


def ps(words: list[str]) -> int:
    parser = Parser(prog="docker ps", allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--filter", action="append", default=[])
    asked = parser.parse_args(words)
    wanted = [one.removeprefix("label=") for one in asked.filter]
    if (STATE / "deaf").exists():
        sys.stderr.write("Cannot connect to the Docker daemon. Is the docker daemon running?\n")
        return 1
    for one in containers():
        labels = one["labels"]
        assert isinstance(labels, list)
        if all(label in labels for label in wanted):
            sys.stdout.write(f"{one['id']}\n")
    return 0


def rm(words: list[str]) -> int:
    parser = Parser(prog="docker rm", allow_abbrev=False)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("ids", nargs="+")
    asked = parser.parse_args(words)
    for one in containers():
        if one["id"] in asked.ids:
            os.kill(int(str(one["pid"])), signal.SIGKILL)
    return 0


def image(words: list[str]) -> int:
    parser = Parser(prog="docker image", allow_abbrev=False)
    parser.add_argument("verb", choices=["inspect"])
    parser.add_argument("name")
    asked = parser.parse_args(words)
    if asked.name not in IMAGES:
        sys.stdout.write("[]\n")
        sys.stderr.write(f"Error response from daemon: No such image: {asked.name}\n")
        return 1
    digest = f"quay.io/fake/serve@{IMAGES[asked.name]}"
    sys.stdout.write(json.dumps([{"Id": IMAGES[asked.name], "RepoDigests": [digest]}]))
    return 0


def main() -> int:
    verb, *words = sys.argv[1:]
    if verb == "daemon":
        return daemon(words[0], words[1])
    return {"run": run, "ps": ps, "rm": rm, "image": image}[verb](words)


if __name__ == "__main__":
    sys.exit(main())
