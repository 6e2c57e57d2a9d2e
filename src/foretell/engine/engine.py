"""The public interface: load a checkpoint, generate, stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, Unpack, overload

import torch
from torch import Tensor

from foretell.engine.certificate import Certificate, model_hash
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion, Failure, Frame, answer_of, completion_of, cut_text, frame_of, text_of
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.options import GenerateOptions, Options, RequestTemplate, make_template, without_text
from foretell.engine.outcome import Outcome, Usage
from foretell.engine.prompt_kinds import KINDS, Prompt, is_ids, is_single, read_ids
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.engine.threads import with_threads
from foretell.errors import ForetellError, RequestError, one_of
from foretell.loop.protocols import Denoiser
from foretell.models.faster import check_quantize, compile_blocks, quantize_weights
from foretell.models.load import BUNDLED, load_model
from foretell.models.packed import pack_weights, packed_share
from foretell.models.transformer import UNBOUNDED, Transformer

__all__ = ["BUNDLED", "Completion", "Engine", "Failure", "Frame", "Prompt", "Streamer", "folder_of", "load"]
AHEAD = 256  # requests of a list among which prompts of similar length are grouped
SMALL = 50_000_000  # parameters up to which several threads are slower than one


class Streamer(Protocol):
    """transformers' streamer protocol; `put_draft(value=ids)` is called too if the streamer has it."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class Engine:
    """A model with its tokenizer. Everything that it decodes goes through one scheduler and one loop."""

    def __init__(self, model: Denoiser, codec: Codec, layouts: Mapping[str, Any] | None = None) -> None:
        self.model, self.codec, self.layouts = model, codec, layouts or {}
        self.spelling = codec.spelling()
        network = _network(model)
        weights = list(network.parameters()) if isinstance(network, torch.nn.Module) else []
        self.device = weights[0].device if weights else torch.device("cpu")
        self.dtype = str(weights[0].dtype).removeprefix("torch.") if weights else None
        self.size = sum(weight.numel() for weight in weights)
        self.packed = packed_share(network)  # the share of the matrices' weights that is packed for the CPU
        # Torch threads while this model decodes; None: torch's default.
        self.threads = 1 if self.size <= SMALL else None
        self.context = network.config.context if isinstance(network, Transformer) else UNBOUNDED
        self.usage = Usage()  # columns of all requests that went through `generate` and `generate_iter`

    def __repr__(self) -> str:
        packed = f", {self.packed:.0%} packed" if self.packed else ""
        size = f"{self.size / 1e6:.3g} million parameters"
        return f"Engine({self.codec.folder.name}: {size}, {self.dtype}, {self.device}{packed})"

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the checkpoint's files, which are all read once."""
        return model_hash(self.codec.folder)

    def use_threads(self, threads: int | None = None) -> None:
        """Set the number of torch threads of this process. Default: one for a small model, else torch's default."""
        if threads is not None and threads < 1:
            raise RequestError(f"threads must be at least 1, got {threads}")
        self.threads = threads or self.threads
        if self.threads is not None:
            torch.set_num_threads(self.threads)

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
        `Failure` for each invalid request and then decodes the others. Errors of the model itself are always raised.
        """
        one_of("errors", errors, ("raise", "return"), RequestError)
        if batch_size < 1:
            raise RequestError(f"batch_size must be at least 1, got {batch_size}")
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
        return self._run(scheduler, failed, accepted)

    def _run(
        self, scheduler: Scheduler, failed: list[tuple[int, Failure]], accepted: list[tuple[int, RequestTemplate]]
    ) -> Iterator[tuple[int, Completion | Failure]]:
        yield from failed
        try:
            for outcome in with_threads(scheduler.run(), self.threads):
                index, template = accepted[outcome.ticket]
                yield index, self._complete(outcome, template)
        finally:
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
        for outcome in with_threads(_take_steps(scheduler), self.threads):
            frame = frames.pop()
            text, _ = cut_text(self.text(frame.tokens, request.layout)[0], template.stop_strings)
            done = None if outcome is None else self._complete(outcome, template)
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
                raise RequestError(f"token {token} pinned at {offset} is outside the vocabulary of {vocabulary} tokens")
        if not isinstance(given.stop, Certificate):
            return template
        remarks = given.stop.remarks(template.recipe, template.layout, self.fingerprint, self.dtype)
        return replace(template, notes=(*template.notes, *remarks))

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
            ids = self.codec.prompt(given, template.chat)
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
    packed: bool | None = None,
) -> Engine:
    """Load an engine from a checkpoint folder, or a bundled model by its name.

    `quantize="int8"` rounds the weights between embedding and head, `compile=True` compiles the layers with torch.
    Either may change a token if two are almost equally likely; int8 may also change other tokens.
    `packed` arranges matrices once for oneDNN's products on a CPU; by default, those for which it is faster.
    """
    folder = folder_of(model)
    check_quantize(quantize)
    if compile or quantize is not None:
        if packed:
            raise RequestError("packed=True cannot be combined with compile or quantize, which have their own products")
        packed = False
    loaded, codec = load_model(folder, device=device, dtype=dtype), Codec.load(folder)
    if quantize is not None:
        quantize_weights(_network(loaded))
    if compile:
        compile_blocks(_network(loaded))
    pack_weights(_network(loaded), packed)
    engine = Engine(loaded, codec, layouts_of(folder))
    if quantize is not None:
        engine.dtype = f"{engine.dtype}+{quantize}"  # part of what a certificate is valid for
    return engine


def _name_failed(failed: list[tuple[int, Failure]]) -> ForetellError:
    """Return the first failure's error with its place in the list."""
    index, failure = failed[0]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return type(failure.error)(f"prompts[{index}]{more} cannot be decoded: {failure}")


def _take_steps(scheduler: Scheduler) -> Iterator[Outcome | None]:
    """Run the steps of a scheduler's only request; the last one yields its outcome."""
    while scheduler.busy:
        yield next(iter(scheduler.step()), None)


def _network(model: Any) -> Any:
    """Return the network inside a denoiser's wrappers."""
    while hasattr(model, "inner"):
        model = model.inner
    return getattr(model, "network", model)
