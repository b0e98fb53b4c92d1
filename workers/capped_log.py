"""A log file that keeps its beginning and its end and never holds more than a cap. Standard library only."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from workers.redaction import redact_told

HEAD_BYTES = 1024 * 1024  # the root cause of a failed start stands at the beginning
CAP_BYTES = 64 * 1024 * 1024
MASK = b"***"

_LONGEST_LINE = 64 * 1024  # an unfinished line that is longer is written out before its end is known
_LONGEST_TOLD = 256  # what stays behind of such a line, so that no secret is cut in two
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class CappedLog:
    """Append-only. When the cap is reached, what lies between the head and the newest quarter is dropped.

    `secrets` never reach the file, nor does what a line names a key or a password: each becomes `***`, also when
    it comes in two pieces. For that the last unfinished line is held back until its end, or `close`, comes; a
    progress bar's lines end with a carriage return.

    A full disk never stops the server that writes: what does not fit is dropped and counted.
    """

    def __init__(
        self, path: Path, secrets: Sequence[bytes] = (), head_bytes: int = HEAD_BYTES, cap_bytes: int = CAP_BYTES
    ) -> None:
        if head_bytes * 4 > cap_bytes:
            raise ValueError(f"a head of {head_bytes} bytes is more than a quarter of the cap of {cap_bytes}")
        # Longest first: a secret that is part of another must not leave the other's rest behind.
        self._secrets = sorted((s for s in secrets if s), key=len, reverse=True)
        self._longest_held = max([_LONGEST_TOLD, *map(len, self._secrets)])
        self._head_bytes = head_bytes
        self._cap_bytes = cap_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._dropped = 0
        self._told = 0  # of the dropped bytes, how many a note in the file tells of
        self._held = b""

    @property
    def dropped(self) -> int:
        """How many bytes are not in the file: too many of them, or no room on the disk."""
        return self._dropped

    def write(self, data: bytes) -> None:
        """Append; data of any length, cut anywhere."""
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, MASK)
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - cut > _LONGEST_LINE:
            cut = len(data) - self._longest_held
        self._held = data[cut:]
        self._append(redact_told(data[:cut]))

    def close(self) -> None:
        """Write what is held back and close the file."""
        if self._file >= 0:
            self._append(redact_told(self._held))
            if self._told < self._dropped:
                self._put(self._note())
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> None:
        for start in range(0, len(data), self._cap_bytes // 4):
            piece = data[start : start + self._cap_bytes // 4]
            if self._size + len(piece) > self._cap_bytes:
                self._compact(self._cap_bytes // 4)
            rest = self._put(piece)
            if rest and self._size > self._head_bytes + self._cap_bytes // 32:
                self._compact((self._size - self._head_bytes) // 4)  # the middle's room is ours to use
                rest = self._put(rest)
            self._dropped += len(rest)

    def _compact(self, tail_bytes: int) -> None:
        tail_bytes = max(min(tail_bytes, self._size - self._head_bytes), 0)
        tail = os.pread(self._file, tail_bytes, self._size - tail_bytes)
        self._dropped += self._size - self._head_bytes - len(tail)
        os.ftruncate(self._file, self._head_bytes)
        self._size = self._head_bytes
        for piece in (self._note(), tail):
            self._dropped += len(self._put(piece))

    def _note(self) -> bytes:
        self._told = self._dropped
        return f"\n[autotune] {self._dropped} bytes of this log were dropped here\n".encode()

    def _put(self, data: bytes) -> bytes:
        """Write at the end of the file; gives what there was no room for."""
        try:
            while data:
                written = os.pwrite(self._file, data, self._size)
                self._size += written
                data = data[written:]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        return data
