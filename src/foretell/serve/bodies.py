"""The bodies of requests: every parameter is honoured, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from foretell.errors import RequestError, show, unknown
from foretell.serve.problems import Problem
from foretell.storage import convert, names_of

MOST_CHOICES = 128  # of one request
MOST_STOPS = 16
MOST_LOGPROBS = 20
LONGEST_NAME = 200  # characters of a recipe, layout or rule

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
T = TypeVar("T")

# Parameters of OpenAI's API that mean nothing for a diffusion model here. A neutral value is accepted.
REFUSED = {
    "audio": "this server returns text only",
    "best_of": "use n and choose among the answers",
    "echo": "the prompt is not repeated; put it before the text yourself",
    "frequency_penalty": "leave it out; a diffusion model fills positions in any order, so nothing is counted",
    "function_call": "leave it out; functions are not called",
    "functions": "leave it out; functions are not called",
    "logit_bias": "leave it out",
    "modalities": 'only ["text"] is served',
    "moderation": "leave it out; nothing is moderated",
    "prediction": "leave it out; to keep known text in place, pin it with answer_suffix",
    "presence_penalty": "leave it out; a diffusion model fills positions in any order, so nothing is counted",
    "prompt_cache_options": "leave it out; prompts are not cached between requests",
    "reasoning_effort": "choose a recipe instead: a slower one takes more steps",
    "response_format": "only chat completions have one",
    "store": "leave it out; nothing is stored",
    "tool_choice": 'only "none" is served',
    "tools": "leave it out; tools are not called",
    "verbosity": "leave it out; max_tokens limits the length",
    "web_search_options": "leave it out; this server does not search",
}
NEUTRAL: dict[str, tuple[object, ...]] = {  # besides null, false and 0
    "best_of": (1,),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": ([], ["text"]),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
# Parameters that are about the caller's bookkeeping. They change no answer, and a note in the response says so.
WITHOUT_EFFECT = (
    *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "user"),
)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # this server never pads chunks, so only false and null are accepted


class Body(msgspec.Struct, kw_only=True):
    """What both routes accept."""

    model: Name
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1 - MOST_CHOICES)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Foretell's own
    recipe: Name | None = None
    layout: Name | None = None
    answer_suffix: str | None = None  # pinned before the answer
    answer_length: Count | None = None
    steps: Count | None = None
    block_length: Count | None = None
    stop_rule: Name | None = None
    drafts: bool | Literal["positions"] | None = None
    diffusing: bool | None = None  # Mercury's name of drafts
    trace: bool | None = None  # keep the trace for /foretell/replay

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def shown(self) -> Literal["positions"] | bool:
        """What a stream shows of every step."""
        return "positions" if self.drafts == "positions" else bool(self.drafts or self.diffusing)

    @property
    def cap(self) -> int | None:
        return self.max_tokens

    @property
    def pinned(self) -> str | None:
        """Text that is pinned before the answer."""
        return self.answer_suffix


class ChatBody(Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    suffix: str | None = None  # another name of answer_suffix
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer has to follow. Raises Problem for other formats than text."""
        given = self.response_format or {"type": "text"}
        if given == {"type": "text"}:
            return None
        found = given.get("json_schema")
        if given.get("type") == "json_schema" and isinstance(found, dict) and isinstance(found.get("schema"), dict):
            schema: dict[str, Any] = found["schema"]
            return schema
        raise Problem(
            400,
            f"response_format={show(given)} is not supported: give a closed JSON schema, "
            '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, or {"type": "text"}',
            param="response_format",
            code="unsupported",
        )

    @property
    def cap(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def pinned(self) -> str | None:
        return self.suffix if self.answer_suffix is None else self.answer_suffix

    @property
    def alternatives(self) -> int | None:
        """How many alternatives per token are wanted; None if log probabilities are not."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Body, kw_only=True):
    prompt: Any  # a text, a list of texts, token ids, or a list of lists of token ids
    suffix: str | None = None  # text after the window: fill in the middle
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: Name | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: Name | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]


class ReplayBody(msgspec.Struct, kw_only=True):
    run: Name


def read_json(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises Problem if the body is not a JSON object."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Problem(400, f"the body must be a JSON object, got {show(value)}", code="invalid_json")
    return value


def read_body(raw: bytes, kind: type[T]) -> tuple[T, tuple[str, ...]]:
    """Return a body, and notes on parameters without effect. Raises Problem that names the first bad parameter."""
    value = read_json(raw)
    known = names_of(kind)  # type: ignore[arg-type]  # mypy: a class is not hashable
    notes = tuple(
        f"{name} has no effect on this server" for name in WITHOUT_EFFECT if value.get(name) not in (None, "auto")
    )
    kept: dict[str, Any] = {}
    for name, given in value.items():
        if name in known:
            kept[name] = given
        elif name in REFUSED:
            if not _is_neutral(name, given):
                raise Problem(
                    400, f"{name}={show(given)} is not supported: {REFUSED[name]}", param=name, code="unsupported"
                )
        elif name not in WITHOUT_EFFECT:
            raise Problem(400, unknown("parameter", name, known), param=name, code="unknown_parameter")
    try:
        return convert(kept, kind, RequestError), notes
    except RequestError as error:
        raise Problem(400, str(error), param=_find_param(str(error), known), code="invalid_value") from None


def _is_neutral(name: str, value: object) -> bool:
    return value in (None, False, *NEUTRAL.get(name, ()))


def _find_param(message: str, known: Collection[str]) -> str | None:
    """Return the parameter that a message of `storage.convert` is about."""
    return next((name for name in re.findall(r"'(\w+)", message) if name in known), None)
