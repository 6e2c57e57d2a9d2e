"""Responses in JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
