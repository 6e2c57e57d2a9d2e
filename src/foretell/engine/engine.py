"""The public interface: load a checkpoint, generate, stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, Unpack, overload

import torch
from torch import Tensor

from foretell.engine.certificate import Certificate, model_hash
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion, Failure, Frame, answer_of, completion_of, cut_text, frame_of, text_of
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.options import (
    GenerateOptions,
    Options,
    RequestTemplate,
    apply_certificate,
    make_template,
    without_text,
)
from foretell.engine.outcome import FailedRequest, Outcome, Usage
from foretell.engine.prompt_kinds import KINDS, Prompt, is_ids, is_single, read_ids
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.engine.threads import with_threads
from foretell.errors import ForetellError, RequestError, one_of, show, whole
from foretell.loop.protocols import Denoiser
from foretell.models.faster import check_quantize, compile_blocks, quantize_weights
from foretell.models.load import BUNDLED, load_model
from foretell.models.transformer import UNBOUNDED

__all__ = ["BUNDLED", "Completion", "Engine", "Failure", "Frame", "Prompt", "Streamer", "folder_of", "load"]
_COUNTING = threading.Lock()
AHEAD = 256  # requests of a list among which prompts of similar length are grouped
MOST_THREADS = 1024  # far more than cores; torch ends the process if the system has no room for them
SMALL = 50_000_000  # parameters up to which several threads are slower than one


class Streamer(Protocol):
    """transformers' streamer protocol; `put_draft(value=ids)` is called too if the streamer has it."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class Engine:
    """A model with its tokenizer. Everything that it decodes goes through one scheduler and one loop.

    Threads may share an engine: each call has a scheduler of its own, and its results do not depend on other calls.
    An iterator of `generate_iter` or `stream` belongs to one thread at a time.
    """

    def __init__(self, model: Denoiser, codec: Codec, layouts: Mapping[str, Any] | None = None) -> None:
        self.model, self.codec, self.layouts = model, codec, layouts or {}
        self.spelling = codec.spelling()
        network = _network(model)
        weights = list(network.parameters()) if isinstance(network, torch.nn.Module) else []
        self.device = weights[0].device if weights else torch.device("cpu")
        self.dtype = str(weights[0].dtype).removeprefix("torch.") if weights else None
        self.size = sum(weight.numel() for weight in weights)
        # Torch threads while this model decodes; None: torch's default.
        self.threads = 1 if self.size <= SMALL else None
        self.context = int(getattr(_unwrap(model), "context", UNBOUNDED))
        self.usage = Usage()  # columns of all requests that went through `generate` and `generate_iter`

    def __repr__(self) -> str:
        return (
            f"Engine({self.codec.folder.name}: {self.size / 1e6:.3g} million parameters, {self.dtype}, {self.device})"
        )

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the checkpoint's files, which are all read once."""
        return model_hash(self.codec.folder)

    def use_threads(self, threads: int | None = None) -> None:
        """Set the number of torch threads of this process. Default: one for a small model, else torch's default."""
        if threads is not None:
            whole("threads", threads, 1, MOST_THREADS, RequestError)
        self.threads = threads or self.threads
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    @contextmanager
    def offloaded(self) -> Iterator[None]:
        """Keep the weights in host memory meanwhile, so that another process can use the device. Nothing can decode."""
        network = _network(self.model)
        network.to("cpu")
        torch.cuda.empty_cache()
        try:
            yield
        finally:
            network.to(self.device)

    @overload
    def generate(  # type: ignore[overload-overlap]  # an empty list is both
        self,
        prompt: Prompt,
        *,
        trace: bool = ...,
        batch_size: int = ...,
        streamer: Streamer | None = ...,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        streamer: None = ...,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        trace: bool = False,
        batch_size: int = 8,
        streamer: Streamer | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]:
        """Decode a prompt (text, chat messages or token ids) or a list of them; `Options` lists the keywords.

        All prompts are checked first. If one cannot be decoded, raises an error that names its place in the list.
        """
        given: Any = prompt
        template = self.template(**options)
        if is_single(given):
            if streamer is not None:
                return self._feed(given, template, streamer, trace)
            ((_, only),) = self.generate_iter([(given, template)], trace=trace, batch_size=batch_size, errors="return")
            if isinstance(only, Failure):
                raise only.error
            return only
        if streamer is not None:
            raise RequestError("a streamer takes one prompt at a time")
        pairs = [(one, template) for one in given]
        done = dict(self.generate_iter(pairs, trace=trace, batch_size=batch_size))
        return [done[index] for index in range(len(pairs))]

    @overload
    def generate_iter(
        self,
        prompts: Sequence[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["raise"] = ...,
    ) -> Iterator[tuple[int, Completion]]: ...

    @overload
    def generate_iter(
        self,
        prompts: Sequence[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["return"],
    ) -> Iterator[tuple[int, Completion | Failure]]: ...

    def generate_iter(
        self,
        prompts: Sequence[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = False,
        batch_size: int = 8,
        errors: Literal["raise", "return"] = "raise",
    ) -> Iterator[tuple[int, Completion]] | Iterator[tuple[int, Completion | Failure]]:
        """Decode prompts, each with its own template; yields (index, completion) in the order in which they finish.

        All requests are checked before the first step. `errors="raise"` raises the first error; "return" yields a
        `Failure` for each invalid request and then decodes the others. A request can also fail later, for example if
        the model returns NaN for it; the others are not affected. Errors that the model raises end everything.
        """
        one_of("errors", errors, ("raise", "return"), RequestError)
        whole("batch_size", batch_size, 1, error=RequestError)
        scheduler = self._scheduler(batch_size, record=trace)
        failed: list[tuple[int, Failure]] = []
        accepted: list[tuple[int, RequestTemplate]] = []  # by ticket
        for index, (prompt, template) in enumerate(prompts):
            try:
                scheduler.submit(self.request(prompt, template))
            except ForetellError as error:
                failed.append((index, Failure(error)))
            else:
                accepted.append((index, template))
        if failed and errors == "raise":
            raise _name_failed(failed) from failed[0][1].error
        return self._run(scheduler, failed, accepted, errors)

    def _run(
        self,
        scheduler: Scheduler,
        failed: list[tuple[int, Failure]],
        accepted: list[tuple[int, RequestTemplate]],
        errors: Literal["raise", "return"],
    ) -> Iterator[tuple[int, Completion | Failure]]:
        yield from failed
        try:
            for one in chain.from_iterable(with_threads(filter(None, _take_steps(scheduler)), self.threads)):
                index, template = accepted[one.ticket]
                if isinstance(one, Outcome):
                    yield index, self._complete(one, template)
                elif errors == "return":
                    yield index, Failure(one.error)
                else:
                    raise _name_failed([(index, Failure(one.error))]) from one.error
        finally:
            with _COUNTING:
                self.usage += scheduler.usage

    def _complete(self, outcome: Outcome, template: RequestTemplate) -> Completion:
        return completion_of(outcome, template.notes, self.codec, self.spelling, template.stop_strings)

    def _scheduler(self, batch_size: int, *, record: bool) -> Scheduler:
        # All requests of a list are known, so any of them may be delayed in favour of one that needs less padding.
        return Scheduler(self.model, self.codec.end_ids, batch_size, record, self.device, AHEAD, AHEAD, self.spelling)

    def stream(self, prompt: Prompt, *, trace: bool = False, **options: Unpack[GenerateOptions]) -> Iterator[Frame]:
        """Yield one frame per step; the last one has the completion."""
        return self.stream_template(prompt, self.template(**options), trace=trace)

    def stream_template(self, prompt: Prompt, template: RequestTemplate, *, trace: bool = False) -> Iterator[Frame]:
        """Like `stream`, with options that are already resolved. Raises at once if the prompt cannot be decoded."""
        request, scheduler = self.request(prompt, template), self._scheduler(batch_size=1, record=trace)
        frames: list[Frame] = []
        scheduler.submit(request, lambda step, row: frames.append(frame_of(step, row)))
        return self._frames(request, template, scheduler, frames)

    def _frames(
        self, request: Request, template: RequestTemplate, scheduler: Scheduler, frames: list[Frame]
    ) -> Iterator[Frame]:
        for finished in with_threads(_take_steps(scheduler), self.threads):
            done = None
            for one in finished:
                if isinstance(one, FailedRequest):
                    raise one.error
                done = self._complete(one, template)
            frame = frames.pop()
            text, _ = cut_text(self.text(frame.tokens, request.layout)[0], template.stop_strings)
            yield replace(frame, text=text, completion=done)

    def template(self, **options: Unpack[GenerateOptions]) -> RequestTemplate:
        """Return what a call of `generate` with these options uses for every prompt."""
        given = Options.of(options)
        template = make_template(given, self.codec, self.layouts)
        if not self.codec.reads_text:
            template = without_text(template)
        vocabulary = self.codec.vocab_size
        for offset, token in template.layout.pins:
            if token == self.model.mask_id:
                raise RequestError(f"the mask token {self.model.mask_id} cannot be pinned")
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"token {show(token)} pinned at {offset} is outside the vocabulary of {vocabulary} tokens"
                )
        if not isinstance(given.stop, Certificate):
            return template
        return apply_certificate(template, given.stop, given.on_mismatch, self.fingerprint, self.dtype)

    def request(self, prompt: Prompt, template: RequestTemplate) -> Request:
        """Encode a prompt. Raises an error if it cannot be decoded with this template."""
        given: Any = prompt
        if not is_single(given):
            raise RequestError(f"{KINDS}, got {given!r:.80}")
        if is_ids(given):
            if template.chat:
                raise RequestError("chat=True puts text into the chat template; token ids are taken as they are")
            ids = read_ids(given, self.codec.vocab_size)
        else:
            ids = self.codec.prompt(given, template.chat, template.special_tokens)
        if self.model.mask_id in ids:
            raise RequestError("the prompt holds the mask token; only positions of the window can be filled")
        if len(ids) + template.layout.length > self.context:
            sizes = f"a prompt of {len(ids)} tokens and a window of {template.layout.length}"
            raise RequestError(f"{sizes} exceed the context of {self.context} tokens that this model supports")
        return Request(tuple(ids), template.layout, template.recipe, template.seed)

    def text(self, tokens: Sequence[int], layout: Layout) -> tuple[str, int]:
        """Return the text of a window and the number of its tokens, up to the first end token after all pins."""
        return text_of(tokens, layout, self.codec)

    def answer(self, tokens: Sequence[int], request: Request) -> str | None:
        """Return the text in the answer region, or None if there is no region."""
        return answer_of(tokens, request, self.codec, self.spelling)

    def _feed(self, prompt: Prompt, template: RequestTemplate, streamer: Streamer, trace: bool) -> Completion:
        """Give drafts to `put_draft`, and the prompt and the finished text to `put`."""
        streamer.put(torch.tensor([self.request(prompt, template).prompt]))
        put_draft = getattr(streamer, "put_draft", None)
        try:
            for frame in self.stream_template(prompt, template, trace=trace):
                if put_draft is not None:
                    put_draft(value=torch.tensor(frame.tokens))
            assert frame.completion is not None, "the last frame has the completion"
            streamer.put(torch.tensor(frame.completion.tokens))
        finally:
            streamer.end()
        return frame.completion


def load(
    model: str | Path,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    *,
    compile: bool = False,  # noqa: A002  named after torch.compile
    quantize: str | None = None,
) -> Engine:
    """Load an engine from a checkpoint folder, or a bundled model by its name.

    `quantize="int8"` rounds the weights between embedding and head, `compile=True` compiles the layers with torch.
    Either may change a token if two are almost equally likely; int8 may also change other tokens.
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
        engine.dtype = f"{engine.dtype}+{quantize}"  # part of what a certificate is valid for
    return engine


def _name_failed(failed: list[tuple[int, Failure]]) -> ForetellError:
    """Return the first failure's error with its place in the list."""
    index, failure = failed[0]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return type(failure.error)(f"prompts[{index}]{more} cannot be decoded: {failure}")


def _take_steps(scheduler: Scheduler) -> Iterator[list[Outcome | FailedRequest]]:
    """Run steps until all requests are done, yielding those that each step finishes."""
    while scheduler.busy:
        yield scheduler.step()


def _network(model: Any) -> Any:
    """Return the network inside a denoiser and its wrappers."""
    model = _unwrap(model)
    return getattr(model, "network", model)


def _unwrap(model: Any) -> Any:
    """Return the denoiser inside all wrappers."""
    while hasattr(model, "inner"):
        model = model.inner
    return model
