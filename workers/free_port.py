"""A port that nobody listens on."""

from __future__ import annotations

import contextlib
import secrets
import socket

# Below the range from which kernels take ports for outgoing connections (32768 and up on Linux): a server
# may need minutes before it binds.
_LOW, _HIGH = 20_000, 32_000


def free_port(host: str = "127.0.0.1") -> int:
    """A fresh port for each call.

    Random, since engines bind with SO_REUSEPORT: on a port of a predecessor that has not quite ended, both
    would answer in turn and nothing would fail.
    """
    for _ in range(100):
        port = _LOW + secrets.randbelow(_HIGH - _LOW)
        with contextlib.suppress(OSError):
            return _bound(host, port)
    return _bound(host, 0)


def _bound(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.bind((host, port))
        return int(probe.getsockname()[1])
