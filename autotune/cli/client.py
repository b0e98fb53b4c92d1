"""The server's REST API as this program calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from autotune.errors import (
    AutotuneError,
    Conflict,
    InvalidCandidate,
    InvalidRequest,
    InvalidSpace,
    InvalidStudy,
    InvalidTemplate,
    NotFound,
    Problem,
    Unavailable,
)

T = TypeVar("T", bound=BaseModel)

TIMEOUT_S = 30.0
PAGE = 200

_BY_STATUS: Mapping[int, type[AutotuneError]] = {404: NotFound, 409: Conflict, 503: Unavailable}
_INVALID: Mapping[str, type[InvalidRequest]] = {
    kind.__name__: kind for kind in (InvalidStudy, InvalidSpace, InvalidCandidate, InvalidTemplate)
}


class Client:
    """One server. Every method raises Unavailable when it does not answer, and what the server raised otherwise."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        if not _names_a_server(self._url):
            raise InvalidRequest(f"{url} is no URL of a server; write http://HOST:PORT")
        # Proxies of the environment would see, or break, what stays on this machine.
        self._http = httpx.Client(base_url=f"{self._url}/api/v1", trust_env=False, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str, **query: Any) -> Any:
        """The answer as JSON; a query value of None is left out."""
        wanted = {key: value for key, value in query.items() if value is not None}
        return self._asked("GET", path, params=wanted)

    def post(self, path: str, body: Any = None) -> Any:
        return self._asked("POST", path, json=body)

    def read(self, model: type[T], path: str) -> T:
        """The answer as a value."""
        return self.understood(model, self.get(path))

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Every item of a list, however many pages it has."""
        offset = 0
        while True:
            page = self.get(path, offset=offset, limit=PAGE, **query)
            items = page.get("items") if isinstance(page, dict) else None
            if not isinstance(items, list):
                raise self._stranger("a list was expected")
            yield from items
            offset += len(items)
            if not items or offset >= int(page.get("total", 0)):
                return

    def understood(self, model: type[T], content: Any) -> T:
        """A part of an answer as a value."""
        try:
            return model.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._stranger(f"{where}: {first['msg']}") from error

    def _asked(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.ConnectError as error:
            raise Unavailable(f"no server answers at {self._url}; start it with `autotune up`") from error
        except httpx.TimeoutException as error:
            raise Unavailable(f"the server at {self._url} did not answer within {TIMEOUT_S:.0f} s") from error
        except httpx.HTTPError as error:
            raise Unavailable(f"the server at {self._url} broke off: {error}") from error
        try:
            content = response.json()
        except ValueError:
            content = None
        if response.is_success and content is not None:
            return content
        raise self._refusal(response.status_code, content)

    def _refusal(self, status: int, content: Any) -> AutotuneError:
        if not isinstance(content, dict) or "error" not in content:
            return self._stranger(f"status {status}")
        detail = str(content.get("detail", "no reason given"))
        if status in _BY_STATUS:
            return _BY_STATUS[status](detail)
        if status in (400, 413, 422):
            kind = _INVALID.get(str(content["error"]), InvalidRequest)
            return kind(detail, [_problem(item) for item in content.get("problems") or ()])
        return AutotuneError(f"the server failed (status {status}): {detail}")

    def _stranger(self, what: str) -> Unavailable:
        return Unavailable(f"what answers at {self._url} is no autotune server of this version ({what})")


def _names_a_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx.URL(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, httpx.InvalidURL):
        return False


def _problem(item: Mapping[str, Any]) -> Problem:
    return Problem(
        key=str(item.get("key", "")),
        message=str(item.get("message", "")),
        mend=str(item.get("mend") or ""),
        allowed=tuple(str(value) for value in item.get("allowed") or ()),
        line=item.get("line"),
        file=item.get("file"),
    )
