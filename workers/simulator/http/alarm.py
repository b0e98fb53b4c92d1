"""Waking at a point of time: the kernel's own timer, because the event loop's are whole milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time

# Linux, include/uapi/linux/timerfd.h and time.h. Python has names for them from 3.13 on.
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """One timer of one event loop; one task at a time may wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where the kernel gives no timer."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = loop
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._rung: asyncio.Future[None] | None = None
        loop.add_reader(self._fd, self._ring)

    async def until(self, at_s: float) -> None:
        """Return at `at_s` of the monotonic clock, at the earliest; other tasks run at least once meanwhile."""
        if at_s <= time.monotonic():
            await asyncio.sleep(0)
            return
        seconds = int(at_s)
        setting = _Setting(_Timespec(0, 0), _Timespec(seconds, max(int((at_s - seconds) * 1e9), 1)))
        self._rung = self._loop.create_future()
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(setting), None)
        await self._rung

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
            if self._rung is not None and not self._rung.done():
                self._rung.set_result(None)
