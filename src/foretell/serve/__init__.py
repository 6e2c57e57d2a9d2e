"""A server that OpenAI clients use unchanged, as an ASGI app: `foretell.serve.app(engine)`."""

from __future__ import annotations

from foretell.extras import require_extra

require_extra("server")

from foretell.serve.app import app  # noqa: E402  the check comes first
from foretell.serve.guard import Access  # noqa: E402
from foretell.serve.service import Limits  # noqa: E402

__all__ = ["Access", "Limits", "app"]
