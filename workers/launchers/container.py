"""Servers in containers: the client of docker or podman runs in the foreground, below a supervisor."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob
from autotune.domain.launcher import Container, Mount, environment_words
from autotune.domain.template import CONSTANTS_VARIABLE, LaunchTemplate
from autotune.errors import InvalidTemplate, Problem
from workers.attempt_files import AttemptFiles
from workers.constants.hook import FOLDER as HOOK_FOLDER
from workers.container_end import ATTEMPT_LABEL, FOLDER_LABEL, end_containers, note_containers
from workers.devices.held_memory import DEVICES_DIR
from workers.environment import base_environment, role_devices
from workers.failures.classify import Finding
from workers.launchers.local import LocalLauncher
from workers.marked_processes import ATTEMPT_VARIABLE, ROOT_VARIABLE
from workers.redaction import is_secret
from workers.role_command import RoleCommand

_ANSWER_S = 20.0
_CLEAN = re.compile(r"[^:,\s]+")
# docker run: 125 the engine or its client failed, 126 and 127 the program cannot be run or is not in the image;
# podman run has the same. The last two may be a program's own code too: the client says so when it is not.
_ENGINE_FAILED = 125
_NOT_RUN = frozenset({126, 127})
_CLIENTS_WORDS = re.compile(r"^(docker|podman|Error)\b.*: .*", re.MULTILINE)
_SIGNAL_BASE = 128  # what a shell, and the init of a container, makes of a signal


class ContainerLauncher:
    """Implements Launcher on top of the one for processes: what runs here are the engine's clients."""

    secrets: tuple[str, ...] = ()
    api_key_env: str | None = None
    keeps_logs = True

    def __init__(self, job: TrialJob, template: LaunchTemplate, files: AttemptFiles, container: Container) -> None:
        self._job = job
        self._template = template
        self._files = files
        self._container = container
        self._clients = _Clients(job, template, files)
        self._codes: Mapping[str, int] = {}
        self._images: dict[str, str] = {}
        self.urls = self._clients.urls

    @property
    def oom_kills(self) -> int | None:
        return self._clients.oom_kills

    def commands(self) -> Mapping[str, RoleCommand]:
        """Asks the engine for each image too: raises InvalidTemplate where it is not there or does not answer."""
        folder = str(self._files.folder)
        if not _CLEAN.fullmatch(folder):
            problem = Problem(key="container", message=f"{folder} holds a blank, a comma or a colon", mend="move it")
            raise InvalidTemplate("the attempt's folder cannot be mounted", [problem])
        inner = self._clients.commands()
        images = {command.launched.image or "" for command in inner.values()}
        found = {image: self._identity(image) for image in sorted(images)}
        self._images = {role: found[command.launched.image or ""] for role, command in inner.items()}
        devices = role_devices(self._job, self._template)
        first = role_devices(self._job.model_copy(update={"host_devices": ()}), self._template)
        commands = {
            role: contained(
                command,
                self._container,
                self._template,
                self._files,
                role,
                _numbers(devices[role]),
                _numbers(first[role]),
            )
            for role, command in inner.items()
        }
        self._clients.replace(commands)
        return commands

    def provenance(self) -> Mapping[str, Any]:
        return {"images": self._images}

    def start(self, secrets: tuple[str, ...], /) -> None:
        note_containers(self._files.folder, self._container.program, self._client_environment())
        self._clients.start(secrets)

    def wait_started(self, tick: Callable[[], None]) -> None:
        self._clients.wait_started(tick)

    def poll(self) -> Mapping[str, int]:
        self._codes = dict(self._clients.poll())
        return {role: exit_code(code) for role, code in self._codes.items()}

    def finding(self, _phase: Phase, role: str | None, exit_code: int | None, /) -> Finding | None:
        code = self._codes.get(role) if role is not None and exit_code is not None else None
        if role is None or code is None:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            return Finding(FailureClass.INFRASTRUCTURE, f"the client of the container was ended by {name}")
        said = _CLIENTS_WORDS.search(self._files.log_tail(role))
        if code == _ENGINE_FAILED or (code in _NOT_RUN and said):
            words = f"{self._container.program} run ended with {code}"
            return Finding(FailureClass.INFRASTRUCTURE, said.group(0) if said else words)
        return None

    def stop(self) -> str | None:
        """The client hands SIGTERM on to its server; what does not go by itself is removed."""
        left = [words for words in (self._clients.stop(), end_containers(self._files.folder)) if words]
        return "; ".join(left) or None

    def _client_environment(self) -> dict[str, str]:
        """Without the attempt's marks: who cleans up must not be taken for what is to be cleaned up."""
        marks = {ATTEMPT_VARIABLE, ROOT_VARIABLE}
        base = {name: value for name, value in base_environment(self._files).items() if name not in marks}
        return base | self._container.client_env

    def _identity(self, image: str) -> str:
        """`sha256:... name@sha256:...`: what the name stands for on this host at this moment."""
        env = self._client_environment()
        program = shutil.which(self._container.program, path=env["PATH"])
        if program is None:
            mend = "install it, or give the path as `container.client`"
            raise self._refused("engine", f"{self._container.program} is not in {env['PATH']}", mend)
        argv = [program, "image", "inspect", image]
        try:
            done = subprocess.run(
                argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise self._refused("engine", f"does not answer within {_ANSWER_S:.0f} s", "is its daemon well?") from error
        except OSError as error:
            raise self._refused("client", f"cannot be run: {error}", "check the path and its rights") from error
        if done.returncode != 0:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()
            mend = f"if it is not on this host: {self._container.program} pull {image}"
            raise self._refused("image", f"{image}: {words[-1] if words else 'cannot be inspected'}", mend)
        try:
            (found,) = json.loads(done.stdout)
            return " ".join([str(found["Id"]), *map(str, found.get("RepoDigests") or ())])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._refused("image", f"{image}: the engine's answer has no Id", "check the client") from error

    def _refused(self, key: str, message: str, mend: str) -> InvalidTemplate:
        problem = Problem(key=f"container.{key}", message=message, mend=mend)
        return InvalidTemplate(f"template {self._template.name} cannot start a container on this host", [problem])


class _Clients(LocalLauncher):
    """The processes on this host."""

    def replace(self, commands: Mapping[str, RoleCommand]) -> None:
        self._commands = commands


def contained(
    command: RoleCommand,
    container: Container,
    template: LaunchTemplate,
    files: AttemptFiles,
    role: str,
    devices: list[str],
    open_devices: list[str],
) -> RoleCommand:
    """The command that runs a role's command in a container.

    Of the role's environment all but PATH goes in. A secret goes by way of the client's environment: command lines
    can be read by every user of a host. `devices` are the host's numbers, `open_devices` those for an export.
    """
    folder = str(files.folder)
    env = {name: value for name, value in command.env.items() if name != "PATH"}
    hidden = frozenset(name for name, value in env.items() if is_secret(name, value))
    mounts = [Mount(host=folder, container=folder, writable=True)]
    mounts += [Mount(host=p, container=p, writable=True) for p in (template.shared_cache, env.get(DEVICES_DIR)) if p]
    if CONSTANTS_VARIABLE in env:
        mounts.append(Mount(host=str(HOOK_FOLDER), container=str(HOOK_FOLDER)))
    program, verb, *options = container.words(devices, mounts, folder)
    names = ["--name", container_name(files, role)]
    names += ["--label", f"{ATTEMPT_LABEL}={files.uid}", "--label", f"{FOLDER_LABEL}={folder}"]
    image = command.launched.image or container.image
    shown = tuple(word.replace(folder, "{trial_dir}") for word in container.words(open_devices, mounts, folder))
    return replace(
        command,
        argv=(program, verb, *names, *options, *environment_words(env, hidden), image, *command.argv),
        env=base_environment(files) | container.client_env | {name: env[name] for name in hidden},
        launched=command.launched.model_copy(update={"run": shown, "client_env": container.client_env}),
    )


def container_name(files: AttemptFiles, role: str) -> str:
    """Unique on the host: the attempts of two data directories may have one name."""
    return f"autotune-{files.uid}-{role}-{zlib.crc32(files.root_text.encode()):08x}"


def exit_code(code: int) -> int:
    """A client's exit code as that of the server itself: negative for a signal."""
    number = code - _SIGNAL_BASE
    return -number if number in signal.valid_signals() else code


def _numbers(devices: str) -> list[str]:
    return devices.split(",") if devices else []
