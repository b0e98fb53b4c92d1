"""A log file that keeps its beginning and its end and never holds more than a cap. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

HEAD_BYTES = 1024 * 1024  # the root cause of a failed start stands at the beginning
CAP_BYTES = 64 * 1024 * 1024
MASK = b"***"

_LONGEST_LINE = 64 * 1024  # an unfinished line that is longer is written out before its end is known


class CappedLog:
    """Append-only. When the cap is reached, what lies between the head and the newest quarter is dropped.

    `secrets` never reach the file: each occurrence becomes `***`, also when it comes in two pieces. For
    that the last unfinished line is held back until its end, or `close`, comes.
    """

    def __init__(
        self, path: Path, secrets: Sequence[bytes] = (), head_bytes: int = HEAD_BYTES, cap_bytes: int = CAP_BYTES
    ) -> None:
        if head_bytes * 4 > cap_bytes:
            raise ValueError(f"a head of {head_bytes} bytes is more than a quarter of the cap of {cap_bytes}")
        # Longest first: a secret that is part of another must not leave the other's rest behind.
        self._secrets = sorted((s for s in secrets if s), key=len, reverse=True)
        self._head_bytes = head_bytes
        self._cap_bytes = cap_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._dropped = 0
        self._held = b""

    def write(self, data: bytes) -> None:
        """Append; data of any length, cut anywhere."""
        if self._secrets:
            data = self._held + data
            for secret in self._secrets:
                data = data.replace(secret, MASK)
            cut = data.rfind(b"\n") + 1
            if len(data) - cut > _LONGEST_LINE:
                cut = len(data) - len(self._secrets[0]) + 1
            data, self._held = data[:cut], data[cut:]
        self._append(data)

    def close(self) -> None:
        """Write what is held back and close the file."""
        if self._file >= 0:
            self._append(self._held)
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> None:
        for start in range(0, len(data), self._cap_bytes // 4):
            piece = data[start : start + self._cap_bytes // 4]
            if self._size + len(piece) > self._cap_bytes:
                self._compact()
            _write_all(self._file, piece, self._size)
            self._size += len(piece)

    def _compact(self) -> None:
        tail_bytes = min(self._cap_bytes // 4, self._size - self._head_bytes)
        tail = os.pread(self._file, tail_bytes, self._size - tail_bytes)
        self._dropped += self._size - self._head_bytes - len(tail)
        note = f"\n[autotune] {self._dropped} bytes of this log were dropped here\n".encode()
        os.ftruncate(self._file, self._head_bytes)
        self._size = self._head_bytes
        for piece in (note, tail):
            _write_all(self._file, piece, self._size)
            self._size += len(piece)


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
