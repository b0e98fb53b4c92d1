"""How a template's servers come to run other than as processes of the worker host: in containers, or already."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from autotune.domain.value import Value

DEVICE = "{device}"  # in a device node's path: once for each device of the role

_CLEAN_PATH = re.compile(r"/[^:,\s\0]*")
_SIZE = r"^[1-9][0-9]*[bkmg]?$"
_RESERVED = frozenset({"/", "/proc", "/sys", "/dev"})  # what stands there makes a container one


def _absolute(path: str, what: str) -> None:
    if not _CLEAN_PATH.fullmatch(path) or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{what} {path!r} must be an absolute path without `..`, blank, comma or colon")


class Mount(Value):
    """A file or folder of the host as the container sees it, read-only unless `writable`."""

    host: str
    container: str
    writable: bool = False

    @model_validator(mode="after")
    def _usable(self) -> Mount:
        _absolute(self.host, "the host's side of a mount")
        _absolute(self.container, "the container's side of a mount")
        if self.container.rstrip("/") in _RESERVED or not self.container.rstrip("/"):
            raise ValueError(f"nothing can be mounted over {self.container}; give a folder below it")
        return self

    @property
    def words(self) -> tuple[str, str]:
        return "-v", f"{self.host}:{self.container}:{'rw' if self.writable else 'ro'}"


class Container(Value):
    """One container for each role. All paths of the template but the host's side of `mounts` are the container's.

    `devices` are device nodes; `{device}` in one stands for the number of each device that the role was given. With
    `renumber_devices` a server counts from 0 the devices that it is given, as drivers do where the others are hidden.
    `client_env` is for the client, such as DOCKER_HOST. The network is the host's: servers listen on a port that the
    worker chose, and HCCL needs the host's interfaces. Without `entrypoint` the image's own runs, with `argv` as its
    arguments.
    """

    engine: Literal["docker", "podman"] = "docker"
    client: str | None = None
    image: str = Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9{][A-Za-z0-9._/:@{}-]*$")
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    renumber_devices: bool = True
    shm_size: str | None = Field(default=None, pattern=_SIZE)
    ipc: Literal["private", "host"] | None = None
    user: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    entrypoint: str | None = Field(default=None, min_length=1)
    client_env: dict[str, str] = Field(default_factory=dict)

    @field_validator("client")
    @classmethod
    def _client_is_a_path(cls, client: str | None) -> str | None:
        if client is not None:
            _absolute(client, "the client")
        return client

    @field_validator("devices")
    @classmethod
    def _device_nodes(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for device in devices:
            if not device.startswith("/dev/"):
                raise ValueError(f"device {device!r} must be a node below /dev, such as /dev/davinci{DEVICE}")
            _absolute(device, "the device")
        return devices

    @field_validator("image")
    @classmethod
    def _only_the_stack_is_open(cls, image: str) -> str:
        if "{" in image.replace("{stack}", "") or "}" in image.replace("{stack}", ""):
            raise ValueError(f"image {image!r} may hold no other placeholder than {{stack}}")
        return image

    @model_validator(mode="after")
    def _one_mount_for_each_place(self) -> Container:
        places = [mount.container.rstrip("/") for mount in self.mounts]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"two mounts claim {place} in the container; keep one")
        return self

    @property
    def program(self) -> str:
        """What is run on the host."""
        return self.client or self.engine

    def of_host(self, path: str) -> str | None:
        """Where a path of the container lies on the host; None when it is the image's own. The deepest mount counts."""
        for mount in sorted(self.mounts, key=lambda m: -len(m.container)):
            inside = PurePosixPath(path)
            if inside.is_relative_to(mount.container):
                return str(PurePosixPath(mount.host) / inside.relative_to(mount.container))
        return None

    def words(self, devices: Sequence[str], mounts: Sequence[Mount], workdir: str) -> tuple[str, ...]:
        """`docker run` up to, not with, the environment and the image. `mounts` come on top of the container's own."""
        words = [self.program, "run", "--rm", "--init", "--pull=never", "--network", "host", "--log-driver", "none"]
        for option, value in (("--ipc", self.ipc), ("--shm-size", self.shm_size), ("--user", self.user)):
            words += [option, value] if value is not None else []
        for node in self.devices:
            for name in dict.fromkeys(node.replace(DEVICE, number) for number in devices or [DEVICE]):
                words += ["--device", name] if DEVICE not in name else []
        taken = {mount.container for mount in self.mounts}
        for mount in (*self.mounts, *(m for m in dict.fromkeys(mounts) if m.container not in taken)):
            words += mount.words
        words += ["--workdir", workdir]
        words += ["--entrypoint", self.entrypoint] if self.entrypoint is not None else []
        return tuple(words)


def environment_words(env: Mapping[str, str], hidden: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """`-e NAME=VALUE` for each; `hidden` ones only by name, so that the client takes the value from its environment."""
    pairs = (name if name in hidden else f"{name}={value}" for name, value in env.items())
    return tuple(word for pair in pairs for word in ("-e", pair))


class Attach(Value):
    """The servers run already, at the `url` of each role: they are measured, never started, stopped or changed.

    `api_key_env` names a variable of the worker's environment; its value goes into requests and nowhere else.
    """

    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")


def address_problem(url: str) -> str | None:
    """Why a server's address cannot be used, whatever its host allows; None where it can."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return "is https, whose certificate names no address; end TLS in front of it, on the worker host"
    if parts.scheme != "http" or not parts.hostname:
        return "is no address such as http://127.0.0.1:8000"
    if parts.username or parts.password or parts.query or parts.fragment or parts.path.rstrip("/"):
        return "must be scheme, host and port alone, without user, path or query"
    try:
        parts.port  # noqa: B018  reading it checks it
    except ValueError:
        return "has a port that is no number from 0 to 65535"
    return None


def allows(entry: str, address: str) -> bool:
    """Whether an entry of the host's list, an address or a network such as `10.1.0.0/16`, covers the address.

    Raises ValueError for an entry that is neither.
    """
    return ipaddress.ip_address(address) in ipaddress.ip_network(entry, strict=False)
