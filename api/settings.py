"""Settings of the api process, from the environment (`AUTOTUNE_*`)."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from api.data_directory import DataDirectory, default_root


class Settings(BaseSettings):
    """Where the service keeps its data and where it listens.

    `data`: the data directory. `port` 0 takes a free one; `run/api.json` in the data directory says which.
    `database_url`: SQLite in the data directory when absent. Times are in s.
    """

    model_config = SettingsConfigDict(env_prefix="AUTOTUNE_", frozen=True, extra="ignore")

    data: Path = Field(default_factory=default_root)
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    database_url: str | None = None
    heartbeat_s: float = Field(default=15.0, gt=0)

    @field_validator("host")
    @classmethod
    def _loopback(cls, host: str) -> str:
        """The service starts programs and knows no users yet: nobody but this machine may reach it."""
        if host == "localhost" or _is_loopback(host):
            return host
        raise ValueError(
            f"{host} can be reached from other machines, and the api has no access control; "
            "use 127.0.0.1, ::1 or localhost (and a tunnel, for example ssh -L, from elsewhere)"
        )

    @property
    def directory(self) -> DataDirectory:
        """The paths in `data`."""
        return DataDirectory(self.data)

    @property
    def database(self) -> str:
        """The URL of the store."""
        return self.database_url or self.directory.database_url

    @property
    def run_file(self) -> Path:
        """Says where a running api listens: `{"url": ..., "pid": ...}`."""
        return self.directory.run / "api.json"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
