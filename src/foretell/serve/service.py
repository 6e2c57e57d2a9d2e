"""The objects that all routes share (engine, worker, offers, limits), and the conversion of a body to choices."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from foretell.certify.supervise import Supervisor
from foretell.engine.certificate import Certificate
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion
from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.engine.prompt_files import FilePrompt
from foretell.engine.prompt_kinds import Prompt
from foretell.engine.request import Layout, Request
from foretell.errors import (
    ContextLengthError,
    ForetellError,
    LayoutError,
    RequestError,
    VocabularyError,
    show,
    whole,
    within,
)
from foretell.recipes.presets import parse
from foretell.recipes.text import untrusted
from foretell.serve.bodies import ChatBody, CompletionBody
from foretell.serve.choice import Choice
from foretell.serve.examples import describe_examples
from foretell.serve.mailbox import Mailbox
from foretell.serve.metrics import Metrics
from foretell.serve.offers import Offers
from foretell.serve.problems import Problem, problem_of
from foretell.serve.watcher import Watcher
from foretell.serve.worker import Ticket, Worker

RUNS = 32  # traces that are kept for replay
WRITES_ALONE = ("ByteLevel", "ByteFallback", "Metaspace")  # decoders that write every token on its own


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server. Requests beyond them are refused with a 4xx that names the limit."""

    max_batch: int = 8  # requests that are decoded at the same time
    max_waiting: int = 256  # requests that wait for that
    max_tokens: int = 4096  # of an answer
    max_choices: int = 16  # of one request: n times the number of prompts
    max_groups: int = 16  # different recipes and windows at the same time
    max_body: int = 1 << 20  # bytes
    timeout: float = 600.0  # seconds per request
    window: int | None = None  # positions of a window, instead of the model's own

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_waiting", "max_tokens", "max_choices", "max_groups", "max_body"):
            whole(name, getattr(self, name), 1, error=RequestError)
        within("timeout", self.timeout, 0.001, 1e6, RequestError)
        if self.window is not None:
            whole("window", self.window, 1, error=RequestError)


@dataclass(frozen=True, slots=True)
class Run:
    """A decoding whose trace is kept."""

    completion: Completion
    request: Request


@dataclass
class Service:
    """Everything that belongs to one server."""

    engine: Engine
    offers: Offers
    limits: Limits
    worker: Worker
    metrics: Metrics
    supervisor: Supervisor | None = None
    needs_key: bool = False
    draining: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    _runs: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.alone = writes_alone(self.engine.codec)
        self.supervised = None if self.supervisor is None else replace(self.supervisor.templates[0], notes=())

    @property
    def model(self) -> str:
        return self.engine.name

    def check_model(self, name: str | None) -> None:
        """Raise Problem unless a client named the model that is served."""
        if name is not None and name != self.model:
            raise Problem(
                404,
                f"the model {show(name)} is not served here; this server has {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def keep_run(self, name: str, run: Run) -> None:
        with self._lock:
            self._runs[name] = run
            while len(self._runs) > RUNS:
                self._runs.popitem(last=False)

    def find_run(self, name: str) -> Run:
        with self._lock:
            run = self._runs.get(name)
        if run is None:
            raise Problem(
                404,
                f'the run {show(name)} is not kept; ask with "trace": true, and replay it soon: '
                f"only the last {RUNS} are",
                param="run",
                code="run_not_found",
            )
        return run

    def prepare(self, body: ChatBody | CompletionBody, notes: tuple[str, ...]) -> list[Choice]:
        """Return the choices that a body asks for. Raises Problem if it cannot be decoded as asked."""
        self.check_model(body.model)
        _check_together(body)
        prompts = list(_prompts(body))
        count = len(prompts) * (body.n or 1)
        most = min(self.limits.max_choices, self.worker.places)
        if count > most:
            raise Problem(
                400,
                f"{count} answers were asked for (n times the number of prompts); at most {most} are given per request",
                param="n",
                code="too_many_choices",
            )
        try:
            template = self._template(body)
        except ForetellError as error:
            raise problem_of(error, _name_param(error, body)) from None
        template = replace(template, notes=(*notes, *template.notes))
        seeds = range(template.seed, template.seed + (body.n or 1))
        return [self._choice(body, prompt, replace(template, seed=seed)) for prompt in prompts for seed in seeds]

    def _template(self, body: ChatBody | CompletionBody) -> RequestTemplate:
        offer, settings = self.offers.find(body.recipe)
        options: dict[str, Any] = {
            "recipe": offer.recipe,
            "settings": settings,
            "layout": body.layout,
            "suffix": body.pinned,
            "answer_length": body.answer_length,
            "steps": body.steps,
            "block_length": body.block_length,
            "seed": body.seed or 0,
            "stop_strings": body.stops or None,
            "chat": None if isinstance(body, ChatBody) else False,
        }
        if body.temperature != 0:
            options |= {"temperature": body.temperature, "top_k": body.top_k or None}
            options["top_p"] = None if body.top_p == 1 else body.top_p
        if self.limits.window is not None and body.layout is None:
            options["max_new_tokens"] = self.limits.window
        if body.stop_rule is not None:
            recipe = offer.recipe.chosen if isinstance(offer.recipe, Certificate) else offer.recipe
            options["stop"] = self.offers.rule(body.stop_rule, parallel=parse(recipe).transfer.parallel)
        with untrusted():
            return self.engine.template(**{name: value for name, value in options.items() if value is not None})

    def _choice(self, body: ChatBody | CompletionBody, prompt: Prompt, template: RequestTemplate) -> Choice:
        param = "messages" if isinstance(body, ChatBody) else "prompt"
        shown = None
        try:
            if isinstance(body, CompletionBody) and body.suffix:
                template, shown = self._pin_after(template, body.suffix)
            request = self.engine.request(prompt, replace(template, layout=Layout(1)))
            layout = self._fit(len(request.prompt), template.layout)
        except VocabularyError as error:
            raise Problem(400, f"{error}{describe_examples(self.engine)}", param=param, code="unknown_words") from None
        except ForetellError as error:
            raise problem_of(error, param) from None
        cap = min(body.cap or self.limits.max_tokens, self.limits.max_tokens, self.engine.context - len(request.prompt))
        request, template = replace(request, layout=layout), replace(template, layout=layout)
        return Choice(self.engine, request, template, cap, self.alone, shown)

    def _pin_after(self, template: RequestTemplate, suffix: str) -> tuple[RequestTemplate, int]:
        """Return the template with a text after the window, and the length of the window."""
        length = template.layout.length
        tokens = self.engine.codec.encode(suffix)
        pins = tuple((length + at, token) for at, token in enumerate(tokens))
        if template.layout.pins or template.layout.answer:
            template = replace(template, notes=(*template.notes, "the model's layout is not used with a suffix"))
        return replace(template, layout=Layout(length + len(tokens), pins)), length

    def _fit(self, size: int, layout: Layout) -> Layout:
        """Return the layout after a prompt of `size` tokens; an open window is shortened at the end of the context."""
        room = self.engine.context - size
        if layout.length <= room:
            return layout
        if not layout.pins and layout.answer is None:
            return Layout(room)  # not empty: a prompt without room for one position is refused before
        raise ContextLengthError(
            f"the prompt has {size} tokens, and the model's context of {self.engine.context} has no room for a window "
            f"of {layout.length} after it"
        )

    def ticket(self, body: ChatBody | CompletionBody, choice: Choice, box: Mailbox, index: int, name: str) -> Ticket:
        """Return the ticket of a choice's current window, whose events go to a mailbox."""

        def put(event: Any) -> None:
            box.put(index, event)

        streams = bool(body.stream) and not choice.request.recipe.verify.passes  # a commit that is checked may change
        watcher = None
        if (body.stream and body.shown) or streams or body.alternatives is not None:
            watcher = Watcher(
                put,
                drafts=bool(body.stream and body.shown),
                positions=body.shown == "positions",
                text=streams,
                alternatives=body.alternatives,
            )
        supervised = FilePrompt(name, body.messages) if self._is_supervised(body, choice) else None  # type: ignore[union-attr]  # only chats are
        observers = () if watcher is None else (watcher,)
        return Ticket(choice.request, choice.template, put, observers, bool(body.trace), supervised)

    def _is_supervised(self, body: ChatBody | CompletionBody, choice: Choice) -> bool:
        """Return whether audits may decide how a choice is decoded: its first window, with nothing but defaults."""
        if self.supervised is None or not isinstance(body, ChatBody) or body.recipe is not None or choice.window:
            return False
        if (body.n or 1) > 1 or choice.template.stop_strings or body.temperature or body.top_p or body.top_k:
            return False
        return choice.template.layout == self.supervised.layout and body.steps is None and body.block_length is None


def _prompts(body: ChatBody | CompletionBody) -> Iterator[Prompt]:
    """Yield the prompts of a body. Raises Problem if there are none."""
    if isinstance(body, ChatBody):
        if not body.messages:
            raise Problem(400, "messages is empty; a chat needs at least one message", param="messages")
        yield body.messages
        return
    given = body.prompt
    several = isinstance(given, list) and given and not all(type(one) is int for one in given)
    for one in given if several else [given]:
        ids = isinstance(one, list) and one and all(type(token) is int for token in one)
        if not (isinstance(one, str) or ids):
            raise Problem(
                400,
                f"prompt must be a text, a list of texts, token ids or a list of these, got {show(one)}",
                param="prompt",
                code="invalid_value",
            )
        yield one


def _check_together(body: ChatBody | CompletionBody) -> None:
    """Raise Problem if a parameter is given without the one that it belongs to."""
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise Problem(
            400, "top_logprobs is for log probabilities: set logprobs to true", param="top_logprobs",
            code="unsupported",
        )  # fmt: skip
    options = body.stream_options
    if options is not None and not body.stream:
        raise Problem(
            400, "stream_options is for streams: set stream to true", param="stream_options", code="unsupported"
        )
    if options is not None and options.include_obfuscation:
        raise Problem(
            400, "stream_options.include_obfuscation is not supported: leave it out", param="stream_options",
            code="unsupported",
        )  # fmt: skip
    if body.shown and not body.stream:
        raise Problem(400, "drafts are shown in streams only: set stream to true", param="drafts", code="unsupported")


def _name_param(error: ForetellError, body: ChatBody | CompletionBody) -> str | None:
    """Return the parameter that an error is about, if it names one that was given."""
    names = ("recipe", "layout", "suffix", "answer_suffix", "answer_length", "steps", "block_length", "stop_rule")
    given = [name for name in names if getattr(body, name, None) is not None]
    named = [name for name in given if name in str(error)]
    window = [name for name in given if "answer" in name or "suffix" in name] if isinstance(error, LayoutError) else []
    return next(iter(named + window), None)


def writes_alone(codec: Codec) -> bool:
    """Return whether the tokenizer's decoder writes every token independently of those that follow."""
    return any(name in repr(codec.tokenizer.decoder) for name in WRITES_ALONE)
