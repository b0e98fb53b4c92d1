"""What a client is told whose request can't be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

_KINDS = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowed"}


class Refusal(Exception):
    """The request can't be served: HTTP status, the server's words, the field that is to blame where it says so."""

    def __init__(self, message: str, status: int = 400, parameter: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.parameter = parameter

    def body(self, *, nested: bool) -> dict[str, Any]:
        """The answer's body. vLLM nests the error as OpenAI does, SGLang does not."""
        kind = _KINDS.get(self.status, "InternalServerError")
        error: dict[str, Any] = {"message": self.message, "type": kind, "param": self.parameter, "code": self.status}
        return {"error": error} if nested else {"object": "error", **error}


def validation_refusal(error: ValidationError) -> Refusal:
    """Every fault of a body on a line of its own, as the servers print them."""
    faults = [_fault(fault) for fault in error.errors(include_url=False, include_context=False)]
    count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}"
    first = error.errors()[0]["loc"]
    return Refusal(
        "\n".join([f"{count}:", *(f"  {fault}" for fault in faults)]), parameter=str(first[0]) if first else None
    )


def _fault(fault: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"type": fault["type"], "loc": ("body", *fault["loc"]), "msg": fault["msg"]}
    return {**shown, "input": fault["input"]} if isinstance(fault["input"], str | int | float) else shown
