"""Errors that a client sees: one JSON body with OpenAI's fields, and a status that its clients act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.errors import ContextLengthError, ForetellError, ModelError, RecipeError, VocabularyError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}
RETRY_AFTER = "1"  # seconds


class Problem(Exception):  # noqa: N818  it is what the client did or met, not a failure of the server
    """A response that reports an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": KINDS[self.status], "param": self.param, "code": self.code}}


BUG = Problem(500, "the server has a bug; its log says more", code="internal_error")


def stopping() -> Problem:
    """Return the problem of a request that arrives, or is not done, while the server shuts down."""
    return Problem(503, "the server is shutting down", code="shutting_down", headers={"retry-after": RETRY_AFTER})


def busy(message: str, code: str) -> Problem:
    """Return the problem of a request that may succeed a little later."""
    return Problem(429, message, code=code, headers={"retry-after": RETRY_AFTER})


def problem_of(error: ForetellError, param: str | None = None) -> Problem:
    """Return the problem that a client sees for an error of this library; a failing model is the server's fault."""
    if isinstance(error, ModelError):
        return Problem(500, str(error), code="model_error")
    if isinstance(error, VocabularyError):
        return Problem(400, str(error), param=param, code="unknown_words")
    if isinstance(error, ContextLengthError):
        words = "this model's maximum context length is exceeded"  # OpenAI's, by which clients recognise it
        return Problem(400, f"{words}: {error}", param=param, code="context_length_exceeded")
    if isinstance(error, RecipeError):
        return Problem(400, str(error), param=param or "recipe", code="invalid_recipe")
    return Problem(400, str(error), param=param, code="invalid_value")
