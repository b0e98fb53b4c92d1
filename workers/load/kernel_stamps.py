"""Kernel arrival times are on before the first byte that counts arrives.

Linux stamps no packet while no socket on the host asks for stamps. The first socket that asks switches stamping
on by deferred work (net/core/dev.c, `net_enable_timestamp`), so that what arrives within the next moments, here
the first answer of a load on a busy host, carries none. One pair of sockets that asks for stamps as long as
the process lives, and waits for its first stamp, closes that gap.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import sys
import time

# Linux, include/uapi/asm-generic/socket.h: both the option and the type of the control message, on x86-64
# and arm64. Python's socket module has no name for it.
SO_TIMESTAMPNS = 35
PATIENCE_S = 0.25  # for the kernel's deferred work; a sandboxed kernel never stamps, and costs this once
_TIMESPEC = struct.Struct("@ll")
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def ask_for_stamps(sock: socket.socket) -> None:
    """Let reads of this socket carry the kernel's arrival time, where the kernel knows how."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def kernel_time_ns(control: list[tuple[int, int, bytes]]) -> int | None:
    """The arrival time (ns, wall clock) among the control messages of one read, None where it carries none."""
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None


@functools.cache
def keep_stamps_on() -> bool:
    """Switch stamping on for the life of this process; whether the kernel stamps. Waits at most PATIENCE_S."""
    if sys.platform != "linux":
        return False
    with contextlib.ExitStack() as unless_stamped:
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                sender = unless_stamped.enter_context(socket.create_connection(server.getsockname()))
                receiver = unless_stamped.enter_context(server.accept()[0])
        except OSError:
            return False
        receiver.settimeout(PATIENCE_S)
        ask_for_stamps(receiver)
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            try:
                sender.send(b".")
                _, control, _, _ = receiver.recvmsg(1, CONTROL_BYTES)
            except OSError:
                return False
            if kernel_time_ns(control) is not None:
                unless_stamped.pop_all()
                _KEPT.extend((sender.detach(), receiver.detach()))
                return True
            time.sleep(0.001)
    return False


_KEPT: list[int] = []  # descriptors, never used: closing the last asking socket switches stamping off
