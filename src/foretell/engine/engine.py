"""The public face: load a checkpoint, generate, stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from foretell.decode import Step, decode
from foretell.engine.certificate import Certificate, model_hash
from foretell.engine.codec import Codec
from foretell.engine.options import Options, Order, order
from foretell.engine.scheduler import Finish, Outcome, Row, Scheduler, outcome_of
from foretell.engine.trace import Recorder, Trace, with_words
from foretell.errors import ModelError, RequestError, unknown
from foretell.layout import Layout, Request, lay_out
from foretell.models.chat import Message
from foretell.models.load import load_model
from foretell.models.transformer import UNBOUNDED, Transformer
from foretell.protocols import Denoiser
from foretell.state import DecodeState

BUNDLED = Path(__file__).parents[1] / "models"
SMALL = 50_000_000  # parameters up to which handing work to other threads costs more than the work
Prompt = str | Sequence[Message]


class Streamer(Protocol):
    """transformers' streamer protocol; `put_draft(value=ids)` is called too where a streamer has it."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """One decoded text, and what it took."""

    text: str
    answer: str | None  # the text of the answer region, where one was laid out
    tokens: tuple[int, ...]  # the whole window
    response_tokens: int  # of the text, up to its end
    prompt_tokens: int
    steps: int
    budget: int
    forwards: int
    finish: Finish
    seconds: float
    gap: float | None = None  # what the stopping rule measured when it settled
    trace: Trace | None = None
    notes: tuple[str, ...] = ()

    @property
    def saved(self) -> int:
        """Steps of the budget that were not needed."""
        return self.budget - self.steps

    @property
    def tokens_per_forward(self) -> float:
        return self.response_tokens / self.forwards


@dataclass(frozen=True, slots=True)
class Frame:
    """One step as a person may watch it. The last frame carries the completion."""

    step: int  # from 0
    budget: int
    tokens: tuple[int, ...]  # [N] the draft
    filled: tuple[bool, ...]  # [N] positions that hold a token for good
    fresh: tuple[bool, ...]  # [N] of those, the ones that this step filled
    pinned: tuple[bool, ...]  # [N]
    answer: tuple[bool, ...]  # [N]
    settled: bool  # whether this step committed everything
    gauge: tuple[float, float] | None  # what the stopping rule watches, and its bar
    completion: Completion | None = None


class Engine:
    """A model with its tokenizer. Everything it decodes goes through the one loop."""

    def __init__(self, model: Denoiser, codec: Codec, layouts: Mapping[str, Any] | None = None) -> None:
        self.model, self.codec, self.layouts = model, codec, layouts or {}
        network = _network(model)
        weights = list(network.parameters()) if isinstance(network, torch.nn.Module) else []
        self.device = weights[0].device if weights else torch.device("cpu")
        self.dtype = str(weights[0].dtype).removeprefix("torch.") if weights else None
        self.size = sum(weight.numel() for weight in weights)
        self.context = network.config.context if isinstance(network, Transformer) else UNBOUNDED

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the checkpoint's files; reads all of them, once."""
        return model_hash(self.codec.folder)

    def use_threads(self, threads: int | None = None) -> None:
        """As many threads as asked for; by default one for a small model, and torch's own choice for a large one."""
        if threads is not None and threads < 1:
            raise RequestError(f"threads must be at least 1, got {threads}")
        if threads is not None or self.size <= SMALL:
            torch.set_num_threads(threads or 1)

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        trace: bool = ...,
        batch_size: int = ...,
        streamer: Streamer | None = ...,
        **options: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        streamer: None = ...,
        **options: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        trace: bool = False,
        batch_size: int = 8,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Decode a prompt (a string or chat messages) or a list of them; see `Options` for what may be asked."""
        if streamer is not None:
            if not _single(prompt):
                raise RequestError("a streamer takes one prompt at a time")
            return self._streamed(prompt, streamer, trace, options)  # type: ignore[arg-type]
        prompts: Any = [prompt] if _single(prompt) else prompt
        done = dict(self.complete(prompts, trace=trace, batch_size=batch_size, **options))
        return done[0] if _single(prompt) else [done[index] for index in range(len(prompts))]

    def complete(
        self, prompts: Sequence[Prompt], *, trace: bool = False, batch_size: int = 8, **options: Any
    ) -> Iterator[tuple[int, Completion]]:
        """(index, completion) of every prompt, in the order in which they finish."""
        asked = self.order(**options)
        return self.fulfil([(prompt, asked) for prompt in prompts], trace=trace, batch_size=batch_size)

    def fulfil(
        self, orders: Sequence[tuple[Prompt, Order]], *, trace: bool = False, batch_size: int = 8
    ) -> Iterator[tuple[int, Completion]]:
        """The same for prompts that are each decoded in their own way."""
        if batch_size < 1:
            raise RequestError(f"batch_size must be at least 1, got {batch_size}")
        scheduler = Scheduler(self.model, self.codec.end_ids, batch_size, trace, self.device)
        for outcome in scheduler.run([self.request(*each) for each in orders]):
            yield outcome.ticket, self._completion(outcome, orders[outcome.ticket][1])

    def stream(self, prompt: Prompt, *, trace: bool = False, **options: Any) -> Iterator[Frame]:
        """A frame after every step; the last one carries the completion."""
        asked = self.order(**options)
        request = self.request(prompt, asked)
        state = lay_out([request], self.model.mask_id, self.codec.end_ids, self.device)
        recorder, started = Recorder(request), time.perf_counter()
        for step in decode(self.model, state, request.recipe, observed=True):
            if trace:
                recorder.observe(step, 0)
            frame = _frame(state, step)
            if state.done[0]:
                made = recorder.trace(state.mask_id, state.end_ids) if trace else None
                outcome = outcome_of(0, Row(0, request, started), state, step, made)
                frame = replace(frame, completion=self._completion(outcome, asked))
            yield frame

    def order(self, **options: Any) -> Order:
        """What a call with these options would decode with."""
        given = Options.of(options)
        asked = order(given, self.codec, self.layouts)
        vocabulary = self.codec.tokenizer.get_vocab_size()
        for offset, token in asked.layout.pins:
            if token == self.model.mask_id:
                raise RequestError(f"the mask token {self.model.mask_id} cannot be pinned")
            if not 0 <= token < vocabulary:
                raise RequestError(f"token {token} pinned at {offset} is not one of the vocabulary's {vocabulary}")
        if not isinstance(given.stop, Certificate):
            return asked
        remarks = given.stop.remarks(asked.recipe, asked.layout, self.fingerprint, self.dtype)
        return replace(asked, notes=(*asked.notes, *remarks))

    def request(self, prompt: Prompt, asked: Order) -> Request:
        """One prompt as the loop wants it."""
        if isinstance(prompt, str) and not self.codec.has_chat:
            ids = self.codec.encode(prompt, special=True)
        else:
            ids = self.codec.chat(prompt)
        if self.model.mask_id in ids:
            raise RequestError("the prompt holds the mask token; only positions of the window can be filled")
        if len(ids) + asked.layout.length > self.context:
            sizes = f"a prompt of {len(ids)} tokens and a window of {asked.layout.length}"
            raise RequestError(f"{sizes} are more than the {self.context} that this model was made for")
        return Request(tuple(ids), asked.layout, asked.recipe, asked.seed)

    def text(self, tokens: Sequence[int], layout: Layout) -> tuple[str, int]:
        """The text that a window holds, and the number of its tokens: up to an end with nothing pinned behind it."""
        kept = tokens[: self._end(tokens, layout)]
        return self.codec.decode(kept), sum(token not in self.codec.end_ids for token in kept)

    def answer(self, tokens: Sequence[int], layout: Layout) -> str | None:
        """The part of that text which stands in the answer region; None where none is laid out."""
        if layout.answer is None:
            return None
        start, length = layout.answer
        return self.codec.decode(tokens[start : min(start + length, self._end(tokens, layout))])

    def _end(self, tokens: Sequence[int], layout: Layout) -> int:
        last_pin = max((offset for offset, _ in layout.pins), default=-1)
        ends = (i for i, token in enumerate(tokens) if token in self.codec.end_ids and i > last_pin)
        return next(ends, len(tokens))

    def _completion(self, outcome: Outcome, asked: Order) -> Completion:
        request, tokens = outcome.request, outcome.tokens
        text, size = self.text(tokens, request.layout)
        return Completion(
            text=text,
            answer=self.answer(tokens, request.layout),
            tokens=tokens,
            response_tokens=size,
            prompt_tokens=len(request.prompt),
            steps=outcome.steps,
            budget=request.budget,
            forwards=outcome.steps * (2 if request.recipe.guidance else 1),
            finish=outcome.finish,
            seconds=outcome.seconds,
            gap=outcome.gap,
            trace=outcome.trace and with_words(outcome.trace, self._words(outcome.trace)),
            notes=asked.notes,
        )

    def _words(self, trace: Trace) -> dict[int, str]:
        used = sorted({*trace.tokens.flatten().tolist(), *(token for _, token in trace.request.layout.pins)})
        return dict(zip(used, self.codec.pieces(used), strict=True))

    def _streamed(self, prompt: Prompt, streamer: Streamer, trace: bool, options: dict[str, Any]) -> Completion:
        """Drafts go to `put_draft`, the prompt and the finished text to `put`."""
        streamer.put(torch.tensor([self.request(prompt, self.order(**options)).prompt]))
        put_draft = getattr(streamer, "put_draft", None)
        try:
            for frame in self.stream(prompt, trace=trace, **options):
                if put_draft is not None:
                    put_draft(value=torch.tensor(frame.tokens))
            assert frame.completion is not None, "the last frame carries the completion"
            streamer.put(torch.tensor(frame.completion.tokens))
        finally:
            streamer.end()
        return frame.completion


def load(model: str | Path, device: str = "cpu", dtype: str | torch.dtype | None = None) -> Engine:
    """An engine for a checkpoint folder, or for a bundled model by its name."""
    folder = folder_of(model)
    return Engine(load_model(folder, device=device, dtype=dtype), Codec.load(folder), layouts_of(folder))


def folder_of(model: str | Path) -> Path:
    """The folder of a checkpoint, given as a path or as the name of a bundled model."""
    folder = Path(model)
    if folder.exists():
        return folder
    bundled = [path.parent.name for path in BUNDLED.glob("*/model.safetensors")]
    if str(model) in bundled:
        return BUNDLED / str(model)
    raise ModelError(f"there is no folder {str(model)!r}; {unknown('bundled model', str(model), bundled)}")


def layouts_of(folder: Path) -> Mapping[str, Any]:
    """The folder's foretell.json: windows, suffixes and answer regions that the model was trained for."""
    path = folder / "foretell.json"
    if not path.exists():
        return {}
    try:
        described: Mapping[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    known = {field.name for field in fields(Options)} - {"recipe", "layout", "pins", "seed", "stop"}
    for name, layout in described.get("layouts", {}).items():
        for key in layout:
            if key not in known:
                raise ModelError(f"{path}, layout {name!r}: {unknown('key', key, known)}")
    return described


def _single(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt: a string, or a conversation (a list of messages)."""
    if not isinstance(prompt, str | Sequence):
        raise RequestError(f"a prompt is a string or a list of messages, got {type(prompt).__name__}")
    return isinstance(prompt, str) or (len(prompt) > 0 and all(isinstance(item, Mapping) for item in prompt))


def _network(model: Any) -> Any:
    """What is behind a denoiser's wrappers."""
    while hasattr(model, "inner"):
        model = model.inner
    return getattr(model, "network", model)


def _frame(state: DecodeState, step: Step) -> Frame:
    value, bar = step.verdict.value, step.verdict.bar
    return Frame(
        step=int(step.index[0]),
        budget=state.budget,
        tokens=tuple(step.draft[0].tolist()),
        filled=tuple((~state.blank[0]).tolist()),
        fresh=tuple(step.unmasked[0].tolist()),
        pinned=tuple(state.pinned[0].tolist()),
        answer=tuple(step.answer[0].tolist()),
        settled=bool(step.settled[0]),
        gauge=None if value is None or bar is None else (float(value[0]), float(bar[0])),
    )
