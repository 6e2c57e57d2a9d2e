"""The public face: load a checkpoint, generate, stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, cast, overload

import torch
from torch import Tensor

from foretell.engine.certificate import Certificate, model_hash
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion, Failure, Frame, answer_of, completion_of, cut_text, frame_of, text_of
from foretell.engine.folder import BUNDLED, folder_of, layouts_of
from foretell.engine.options import Options, Order, order, without_text
from foretell.engine.outcome import Outcome, Usage
from foretell.engine.prompt_kinds import KINDS, Prompt, is_ids, is_single, read_ids
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.engine.threads import with_threads
from foretell.errors import ForetellError, RequestError, one_of
from foretell.loop.protocols import Denoiser
from foretell.models.faster import check_quantize, compile_blocks, quantize_weights
from foretell.models.load import load_model
from foretell.models.transformer import UNBOUNDED, Transformer

__all__ = ["BUNDLED", "Completion", "Engine", "Failure", "Frame", "Prompt", "Streamer", "folder_of", "load"]
AHEAD = 256  # requests of a list among which prompts of like length are looked for
SMALL = 50_000_000  # parameters up to which handing work to other threads costs more than the work


class Streamer(Protocol):
    """transformers' streamer protocol; `put_draft(value=ids)` is called too where a streamer has it."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class Engine:
    """A model with its tokenizer. Everything it decodes goes through the one loop."""

    def __init__(self, model: Denoiser, codec: Codec, layouts: Mapping[str, Any] | None = None) -> None:
        self.model, self.codec, self.layouts = model, codec, layouts or {}
        self.spelling = codec.spelling()
        network = _network(model)
        weights = list(network.parameters()) if isinstance(network, torch.nn.Module) else []
        self.device = weights[0].device if weights else torch.device("cpu")
        self.dtype = str(weights[0].dtype).removeprefix("torch.") if weights else None
        self.size = sum(weight.numel() for weight in weights)
        self.threads = 1 if self.size <= SMALL else None  # of torch while this model decodes; None: torch's own choice
        self.context = network.config.context if isinstance(network, Transformer) else UNBOUNDED
        self.usage = Usage()  # columns of everything that went through `generate`, `complete` and `fulfil`

    def __repr__(self) -> str:
        return (
            f"Engine({self.codec.folder.name}: {self.size / 1e6:.3g} million parameters, {self.dtype}, {self.device})"
        )

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the checkpoint's files; reads all of them, once."""
        return model_hash(self.codec.folder)

    def use_threads(self, threads: int | None = None) -> None:
        """Have torch use as many from now on, in everything: by default one for a small model, else its own choice."""
        if threads is not None and threads < 1:
            raise RequestError(f"threads must be at least 1, got {threads}")
        self.threads = threads or self.threads
        if self.threads is not None:
            torch.set_num_threads(self.threads)

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
        """Decode a prompt (a string, chat messages or token ids) or a list of them; `Options` says what may be asked.

        Token ids are a list of whole numbers, or an array of them with one dimension; no template is put around them.
        A prompt that cannot be decoded is an error, which names its place in the list, before anything is decoded.
        """
        if streamer is not None:
            if not is_single(prompt):
                raise RequestError("a streamer takes one prompt at a time")
            return self._streamed(cast("Prompt", prompt), streamer, trace, options)
        if is_single(prompt):
            one: Any = [prompt]
            ((_, only),) = self.complete(one, trace=trace, batch_size=batch_size, errors="return", **options)
            if isinstance(only, Failure):
                raise only.error
            return only
        prompts: Any = prompt
        done = dict(self.complete(prompts, trace=trace, batch_size=batch_size, **options))
        return [done[index] for index in range(len(prompts))]

    @overload
    def complete(
        self,
        prompts: Sequence[Prompt],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["raise"] = ...,
        **options: Any,
    ) -> Iterator[tuple[int, Completion]]: ...

    @overload
    def complete(
        self,
        prompts: Sequence[Prompt],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["return"],
        **options: Any,
    ) -> Iterator[tuple[int, Completion | Failure]]: ...

    def complete(
        self,
        prompts: Sequence[Prompt],
        *,
        trace: bool = False,
        batch_size: int = 8,
        errors: Literal["raise", "return"] = "raise",
        **options: Any,
    ) -> Iterator[tuple[int, Completion]] | Iterator[tuple[int, Completion | Failure]]:
        """(index, completion) of every prompt, in the order in which they finish; see `fulfil` for `errors`."""
        asked = self.order(**options)
        orders = [(prompt, asked) for prompt in prompts]
        return self.fulfil(orders, trace=trace, batch_size=batch_size, errors=errors)

    @overload
    def fulfil(
        self,
        orders: Sequence[tuple[Prompt, Order | Mapping[str, Any]]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["raise"] = ...,
    ) -> Iterator[tuple[int, Completion]]: ...

    @overload
    def fulfil(
        self,
        orders: Sequence[tuple[Prompt, Order | Mapping[str, Any]]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["return"],
    ) -> Iterator[tuple[int, Completion | Failure]]: ...

    def fulfil(
        self,
        orders: Sequence[tuple[Prompt, Order | Mapping[str, Any]]],
        *,
        trace: bool = False,
        batch_size: int = 8,
        errors: Literal["raise", "return"] = "raise",
    ) -> Iterator[tuple[int, Completion]] | Iterator[tuple[int, Completion | Failure]]:
        """The same for prompts that are each decoded in their own way: an order, or the options of one.

        Whatever may be wrong with a request is found before the first step. `errors="raise"` then raises the first
        error; "return" hands out a `Failure` in each one's place, first of all, and decodes the others. What goes
        wrong in the model itself is raised in any case.
        """
        one_of("errors", errors, ("raise", "return"))
        if batch_size < 1:
            raise RequestError(f"batch_size must be at least 1, got {batch_size}")
        scheduler = self._scheduler(batch_size, record=trace)
        failed: list[tuple[int, Failure]] = []
        asked: list[tuple[int, Order]] = []  # by ticket
        for index, (prompt, way) in enumerate(orders):
            try:
                chosen = way if isinstance(way, Order) else self.order(**way)
                scheduler.submit(self.request(prompt, chosen))
            except ForetellError as error:
                failed.append((index, Failure(error)))
            else:
                asked.append((index, chosen))
        if failed and errors == "raise":
            raise _named(failed) from failed[0][1].error
        return self._decoded(scheduler, failed, asked)

    def _decoded(
        self, scheduler: Scheduler, failed: list[tuple[int, Failure]], asked: list[tuple[int, Order]]
    ) -> Iterator[tuple[int, Completion | Failure]]:
        yield from failed
        try:
            for outcome in with_threads(scheduler.run(), self.threads):
                index, chosen = asked[outcome.ticket]
                yield index, completion_of(outcome, chosen.notes, self.codec, self.spelling, chosen.stop_strings)
        finally:
            self.usage += scheduler.usage

    def _scheduler(self, batch_size: int, *, record: bool) -> Scheduler:
        # Every request of a list is wanted, so any of them may be passed over for one that needs less padding.
        return Scheduler(self.model, self.codec.end_ids, batch_size, record, self.device, AHEAD, AHEAD, self.spelling)

    def stream(self, prompt: Prompt, *, trace: bool = False, **options: Any) -> Iterator[Frame]:
        """A frame after every step; the last one carries the completion."""
        asked = self.order(**options)
        request = self.request(prompt, asked)
        scheduler = self._scheduler(batch_size=1, record=trace)
        frames: list[Frame] = []
        scheduler.submit(request, lambda step, row: frames.append(frame_of(step, row)))
        for outcome in with_threads(_take_steps(scheduler), self.threads):
            frame = frames.pop()
            text = cut_text(self.text(frame.tokens, request.layout)[0], asked.stop_strings)[0]
            done = None
            if outcome is not None:
                done = completion_of(outcome, asked.notes, self.codec, self.spelling, asked.stop_strings)
            yield replace(frame, text=text, completion=done)

    def order(self, **options: Any) -> Order:
        """What a call with these options would decode with."""
        given = Options.of(options)
        asked = replace(order(given, self.codec, self.layouts), chat=given.chat, stop_strings=given.stop_strings or ())
        if not self.codec.reads_text:
            asked = without_text(asked)
        vocabulary = self.codec.vocab_size
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
        given: Any = prompt
        if not is_single(given):
            raise RequestError(f"{KINDS}, got {given!r:.80}")
        if is_ids(given):
            if asked.chat:
                raise RequestError("chat=True puts text into the chat template; token ids are taken as they are")
            ids = read_ids(given, self.codec.vocab_size)
        else:
            ids = self.codec.prompt(given, asked.chat)
        if self.model.mask_id in ids:
            raise RequestError("the prompt holds the mask token; only positions of the window can be filled")
        if len(ids) + asked.layout.length > self.context:
            sizes = f"a prompt of {len(ids)} tokens and a window of {asked.layout.length}"
            raise RequestError(f"{sizes} are more than the {self.context} that this model was made for")
        return Request(tuple(ids), asked.layout, asked.recipe, asked.seed)

    def text(self, tokens: Sequence[int], layout: Layout) -> tuple[str, int]:
        """The text that a window holds, and the number of its tokens: up to an end with nothing pinned behind it."""
        return text_of(tokens, layout, self.codec)

    def answer(self, tokens: Sequence[int], request: Request) -> str | None:
        """The part of that text which stands in the answer region, where one was laid out or is found."""
        return answer_of(tokens, request, self.codec, self.spelling)

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


def load(
    model: str | Path,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    *,
    compile: bool = False,  # noqa: A002  the word that torch has for it
    quantize: str | None = None,
) -> Engine:
    """An engine for a checkpoint folder, or for a bundled model by its name.

    `quantize="int8"` rounds the weights between embedding and head, `compile=True` has torch translate them; either
    may change a token where two are nearly equal, and int8 others too.
    """
    folder = folder_of(model)
    check_quantize(quantize)
    loaded, codec = load_model(folder, device=device, dtype=dtype), Codec.load(folder)
    if quantize is not None:
        quantize_weights(_network(loaded))
    if compile:
        compile_blocks(_network(loaded))
    engine = Engine(loaded, codec, layouts_of(folder))
    if quantize is not None:
        engine.dtype = f"{engine.dtype}+{quantize}"  # what a certificate holds for
    return engine


def _named(failed: list[tuple[int, Failure]]) -> ForetellError:
    """The first failure's error, with its place in the list."""
    index, failure = failed[0]
    more = f", nor can {len(failed) - 1} more" if len(failed) > 1 else ""
    return type(failure.error)(f"prompts[{index}] cannot be decoded{more}: {failure}")


def _take_steps(scheduler: Scheduler) -> Iterator[Outcome | None]:
    """Take the steps of a scheduler's only request; the last one has its outcome."""
    while scheduler.busy:
        yield next(iter(scheduler.step()), None)


def _network(model: Any) -> Any:
    """What is behind a denoiser's wrappers."""
    while hasattr(model, "inner"):
        model = model.inner
    return getattr(model, "network", model)
