"""The public interface: load a checkpoint, generate, stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, overload

import torch
from torch import Tensor

from foretell.engine.certificate import Backend, Certificate, model_hash
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion, Failure, Frame, answer_of, completion_of, cut_text, frame_of, text_of
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.masked_text import MaskedText
from foretell.engine.options import (
    GenerateOptions,
    Options,
    RequestTemplate,
    adapt_to_slots,
    apply_certificate,
    make_fill_template,
    make_template,
    without_text,
)
from foretell.engine.outcome import FailedRequest, Observer, Outcome, Usage
from foretell.engine.prompt_kinds import KINDS, Prompt, WrittenPrompt, is_ids, is_single, read_ids
from foretell.engine.request import Layout, Request, derive_seed
from foretell.engine.scheduler import Scheduler
from foretell.engine.threads import with_threads
from foretell.errors import ContextLengthError, ForetellError, RequestError, one_of, show, whole
from foretell.loop.protocols import Denoiser
from foretell.models.device import AUTO, SMALL, choose_device
from foretell.models.faster import check_quantize, compile_blocks, quantize_weights
from foretell.models.hub import repo_of
from foretell.models.load import BUNDLED, Progress, load_model
from foretell.models.memory import COLUMNS, format_bytes, free_memory, row_values, tensor_bytes
from foretell.models.packed import pack_weights, packed_share
from foretell.models.transformer import UNBOUNDED, Transformer

if TYPE_CHECKING:
    from foretell.decide.answers import Decision
    from foretell.decide.options import DecideOptions
    from foretell.decide.questions import Questions

__all__ = ["BUNDLED", "Completion", "Engine", "Failure", "Frame", "Prompt", "Streamer", "folder_of", "load"]
_COUNTING = threading.Lock()
AHEAD = 256  # requests of a list among which prompts of similar length are grouped
MOST_THREADS = 1024  # far more than cores; torch ends the process if the system has no room for them


class Streamer(Protocol):
    """transformers' streamer protocol; `put_draft(value=ids)` is called too if the streamer has it."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


class Engine:
    """A model with its tokenizer. Everything that it decodes goes through one scheduler and one loop.

    Threads may share an engine: each call has its own scheduler, and its results do not depend on other calls.
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
        self.weight_bytes = sum(map(tensor_bytes, weights))
        self.free_bytes: int | None = None  # of the device's memory, after the weights; `load` sets it
        self.packed = packed_share(network)  # the share of the matrices' weights that is packed for the CPU
        # Torch threads while this model decodes; None: torch's default.
        self.threads = 1 if self.size <= SMALL else None
        self.compiled = False  # `load` sets it
        self.context = int(getattr(_unwrap(model), "context", UNBOUNDED))
        self.usage = Usage()  # columns of all requests that went through `generate` and `generate_iter`

    def __repr__(self) -> str:
        return f"Engine({self.name}: {self.size / 1e6:.3g} million parameters, {self.dtype}, {self.device})"

    @property
    def name(self) -> str:
        """The model's hub id, or the name of its folder."""
        return repo_of(self.codec.folder) or self.codec.folder.absolute().name

    @property
    def bundled(self) -> bool:
        """Whether the model comes with this package. It solves four kinds of problems and knows few other words."""
        return self.codec.folder.resolve().parent == BUNDLED.resolve()

    def describe(self) -> str:
        """Return one line that says what runs where, in which dtype and with how much memory."""
        size = f"{self.size / 1e9:.3g}B" if self.size >= 1e9 else f"{self.size / 1e6:.3g}M"
        threads = self.threads or torch.get_num_threads()
        where = f"cpu ({threads} thread{'s' if threads > 1 else ''})" if self.device.type == "cpu" else self.device
        packed = f", {self.packed:.0%} packed" if self.packed else ""
        free = "" if self.free_bytes is None else f", {format_bytes(self.free_bytes)} free"
        used = format_bytes(self.weight_bytes)
        return f"{self.name}: {size} parameters, {self.dtype} on {where}{packed}, {used} used{free}"

    def count_rows(self, window: int) -> int | None:
        """Return about how many rows with this window fit into the free memory; None if that is unknown."""
        network = _network(self.model)
        if self.free_bytes is None or not isinstance(network, Transformer):
            return None
        values = row_values(network.config, min(self.context, max(COLUMNS, 2 * window)))
        return max(0, self.free_bytes) // (values * network.embed.weight.element_size())

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the checkpoint's files, which are all read once."""
        return model_hash(self.codec.folder)

    @property
    def backend(self) -> Backend:
        """The checkpoint and how it runs, as a certificate records them."""
        return Backend(self.fingerprint, self.dtype, self.device.type, self.compiled, str(torch.__version__))

    def use_threads(self, threads: int | None = None) -> None:
        """Set the number of torch threads of this process. Default: one for a small model, else torch's default."""
        if threads is not None:
            whole("threads", threads, 1, MOST_THREADS, RequestError)
        self.threads = threads or self.threads
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    @contextmanager
    def offloaded(self) -> Iterator[None]:
        """Keep the weights in host memory, to leave the device to another process. The engine cannot decode then."""
        if self.device.type == "cpu":
            yield
            return
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
            return self._generate_one(given, template, trace, batch_size)
        if streamer is not None:
            raise RequestError("a streamer takes one prompt at a time")
        return self._generate_all(given, template, trace, batch_size)

    def _generate_one(self, prompt: Prompt, template: RequestTemplate, trace: bool, batch_size: int) -> Completion:
        ((_, only),) = self.generate_iter([(prompt, template)], trace=trace, batch_size=batch_size, errors="return")
        if isinstance(only, Failure):
            raise only.error
        return only

    def _generate_all(
        self, prompts: Iterable[Prompt], template: RequestTemplate, trace: bool, batch_size: int
    ) -> list[Completion]:
        pairs = [(one, template) for one in prompts]
        done = dict(self.generate_iter(pairs, trace=trace, batch_size=batch_size))
        return [done[index] for index in range(len(pairs))]

    @overload
    def fill(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self, text: str, *, trace: bool = ..., batch_size: int = ..., **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    def fill(
        self, text: Sequence[str], *, trace: bool = ..., batch_size: int = ..., **options: Unpack[GenerateOptions]
    ) -> list[Completion]: ...

    def fill(
        self, text: str | Sequence[str], *, trace: bool = False, batch_size: int = 8, **options: Unpack[GenerateOptions]
    ) -> Completion | list[Completion]:
        """Fill the masks of a text or of a list of texts: `fill("The capital of [MASK] is [MASK].")`.

        A mask is written as [MASK] or as the tokenizer's own mask token; [MASK*8] is a run of eight. Everything else
        stays as it is. `Completion.text` is the whole text, `Completion.fills` what each run of masks became.
        """
        template = self.fill_template(**options)
        if isinstance(text, str):
            return self._generate_one(MaskedText(text), template, trace, batch_size)
        if not isinstance(text, Sequence):
            raise RequestError(f"texts with masks are a string or a list of strings, got {show(text)}")
        return self._generate_all(map(MaskedText, text), template, trace, batch_size)

    @overload
    def decide(  # type: ignore[overload-overlap]  # an empty list is both
        self,
        given: WrittenPrompt,
        questions: Questions,
        *,
        batch_size: int = ...,
        **options: Unpack[DecideOptions],
    ) -> Decision: ...

    @overload
    def decide(
        self,
        given: Sequence[WrittenPrompt],
        questions: Questions,
        *,
        batch_size: int = ...,
        **options: Unpack[DecideOptions],
    ) -> list[Decision]: ...

    def decide(
        self, given: Any, questions: Questions, *, batch_size: int = 8, **options: Unpack[DecideOptions]
    ) -> Decision | list[Decision]:
        """Answer typed questions about an input (a text or chat messages) or a list of inputs.

        `questions` are a question, a list, or a mapping of names to questions; `DecideOptions` lists the keywords.
        """
        from foretell.decide.decide import decide  # noqa: PLC0415  a layer above, loaded when it is used

        return decide(self, given, questions, batch_size, **options)

    @overload
    def generate_iter(
        self,
        prompts: Iterable[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["raise"] = ...,
        observers: Sequence[Observer] = ...,
    ) -> Iterator[tuple[int, Completion]]: ...

    @overload
    def generate_iter(
        self,
        prompts: Iterable[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = ...,
        batch_size: int = ...,
        errors: Literal["return"],
        observers: Sequence[Observer] = ...,
    ) -> Iterator[tuple[int, Completion | Failure]]: ...

    def generate_iter(
        self,
        prompts: Iterable[tuple[Prompt, RequestTemplate]],
        *,
        trace: bool = False,
        batch_size: int = 8,
        errors: Literal["raise", "return"] = "raise",
        observers: Sequence[Observer] = (),
    ) -> Iterator[tuple[int, Completion]] | Iterator[tuple[int, Completion | Failure]]:
        """Decode prompts, each with its own template; yields (index, completion) in the order in which they finish.

        All requests of a list are checked before the first step. Those of an iterator are taken from it one by one,
        whenever fewer than `batch_size` wait or run, so the iterator can decide late what to decode next.
        `errors="raise"` raises the first error; "return" yields a `Failure` for each invalid request and decodes the
        others. A request can also fail later, for example if the model returns NaN for it; the others are not
        affected. Errors that the model raises end everything. `observers` are called with every step and the row of
        each request.
        """
        one_of("errors", errors, ("raise", "return"), RequestError)
        scheduler = self.scheduler(batch_size, record=trace)
        intake = _Intake(self, scheduler, observers)
        if isinstance(prompts, Sequence):
            failed = [one for pair in prompts for one in intake.take(*pair)]
            if failed and errors == "raise":
                raise _name_failed(failed) from failed[0][1].error
            return self._run(intake, failed, iter(()), batch_size, errors)
        return self._run(intake, [], iter(prompts), batch_size, errors)

    def _run(
        self,
        intake: _Intake,
        failed: list[tuple[int, Failure]],
        more: Iterator[tuple[Prompt, RequestTemplate]],
        batch_size: int,
        errors: Literal["raise", "return"],
    ) -> Iterator[tuple[int, Completion | Failure]]:
        yield from failed
        scheduler = intake.scheduler
        steps = _take_steps(scheduler, lambda: intake.refill(more, batch_size))
        try:
            for found in with_threads(filter(None, steps), self.threads):
                for one in found:
                    index, done = one if isinstance(one, tuple) else self._finish(one, intake)
                    if isinstance(done, Failure) and errors == "raise":
                        raise _name_failed([(index, done)]) from done.error
                    yield index, done
        finally:
            self.count(scheduler.usage)

    def count(self, usage: Usage) -> None:
        """Add the columns of a scheduler to `usage`."""
        with _COUNTING:
            self.usage += usage

    def _finish(self, one: Outcome | FailedRequest, intake: _Intake) -> tuple[int, Completion | Failure]:
        index, prompt, template = intake.accepted.pop(one.ticket)
        return index, self._complete_or_fail(one, prompt, template)

    def _complete_or_fail(
        self, one: Outcome | FailedRequest, prompt: Prompt, template: RequestTemplate
    ) -> Completion | Failure:
        if isinstance(one, FailedRequest):
            return Failure(one.error)
        try:
            return self.complete(one, prompt, template)
        except ForetellError as error:  # e.g. the region's pattern takes too long in the final text
            return Failure(error)

    def complete(self, outcome: Outcome, prompt: Prompt, template: RequestTemplate) -> Completion:
        """Return the completion of an outcome of this engine's scheduler."""
        done = completion_of(outcome, template.notes, self.codec, self.spelling, template.stop_strings)
        if not isinstance(prompt, MaskedText):
            return done
        return prompt.finish(done, outcome.request.layout, self.codec, self.spelling)

    def scheduler(self, batch_size: int = 8, *, record: bool = False) -> Scheduler:
        """Return an empty scheduler for this model. `record` returns a trace of every request."""
        whole("batch_size", batch_size, 1, error=RequestError)
        if not isinstance(record, bool):
            raise RequestError(f"trace must be True or False, got {show(record)}")
        # All requests of a list are known, so any of them may be delayed in favour of one that needs less padding.
        return Scheduler(self.model, self.codec.end_ids, batch_size, record, self.device, AHEAD, AHEAD, self.spelling)

    def stream(self, prompt: Prompt, *, trace: bool = False, **options: Unpack[GenerateOptions]) -> Iterator[Frame]:
        """Yield one frame per step; the last one has the completion."""
        return self.stream_template(prompt, self.template(**options), trace=trace)

    def stream_template(self, prompt: Prompt, template: RequestTemplate, *, trace: bool = False) -> Iterator[Frame]:
        """Like `stream`, with options that are already resolved. Raises at once if the prompt cannot be decoded."""
        request, scheduler = self.request(prompt, template), self.scheduler(batch_size=1, record=trace)
        frames: list[Frame] = []
        scheduler.submit(request, lambda step, row: frames.append(frame_of(step, row)))
        return self._frames(prompt, request, template, scheduler, frames)

    def _frames(
        self, prompt: Prompt, request: Request, template: RequestTemplate, scheduler: Scheduler, frames: list[Frame]
    ) -> Iterator[Frame]:
        for finished in with_threads(_take_steps(scheduler), self.threads):
            done = None
            for one in finished:
                if isinstance(one, FailedRequest):
                    raise one.error
                assert isinstance(one, Outcome), "nothing is refilled"
                done = self.complete(one, prompt, template)
            frame = frames.pop()
            if isinstance(prompt, MaskedText):
                text = prompt.join(frame.tokens, request.layout, self.codec, self.spelling)
                frame = frame.without_padding(request.layout.padding)
            else:
                text, _ = cut_text(self.text(frame.tokens, request.layout)[0], template.stop_strings)
            yield replace(frame, text=text, completion=done)

    def template(self, **options: Unpack[GenerateOptions]) -> RequestTemplate:
        """Return the template (layout and recipe) that `generate` with these options uses for every prompt."""
        given = Options.of(options)
        template = make_template(given, self.codec, self.layouts)
        if not self.codec.reads_text:
            template = without_text(template)
        return self._check_certificate(given, self._check_pins(template))

    def fill_template(self, **options: Unpack[GenerateOptions]) -> RequestTemplate:
        """Return the template that `fill` with these options uses for every text."""
        given = Options.of(options)
        return self._check_certificate(given, make_fill_template(given))

    def slot_template(self, **options: Unpack[GenerateOptions]) -> RequestTemplate:
        """Return the template that a decision with these options uses. Its requests have their own layouts."""
        given = Options.of(options)
        return self._check_certificate(given, make_fill_template(given, adapt_to_slots))

    def _check_pins(self, template: RequestTemplate) -> RequestTemplate:
        vocabulary = self.codec.vocab_size
        for offset, token in template.layout.pins:
            if token == self.model.mask_id:
                raise RequestError(f"the mask token {self.model.mask_id} cannot be pinned")
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"token {show(token)} pinned at {offset} is outside the vocabulary of {vocabulary} tokens"
                )
        return template

    def _check_certificate(self, given: Options, template: RequestTemplate) -> RequestTemplate:
        """Return the template with notes on what its certificate does not cover."""
        if given.certificate is None:
            return template
        complete, chats = isinstance(given.recipe, Certificate), self.codec.uses_template
        certified: Any = given.certificate.options.get("chat")
        chat = None if template.fills or chats(certified) == chats(template.chat) else chats(template.chat)
        return apply_certificate(
            template, given.certificate, given.on_mismatch, self.backend, complete=complete, chat=chat
        )

    def request(self, prompt: Prompt, template: RequestTemplate) -> Request:
        """Encode a prompt. Raises an error if it cannot be decoded with this template."""
        given: Any = prompt
        layout, recipe = template.layout, template.recipe
        if not is_single(given):
            raise RequestError(f"{KINDS}, got {show(given)}")
        if isinstance(given, MaskedText) != template.fills:
            raise RequestError("masks in a text are filled by Engine.fill, which takes texts with masks only")
        if isinstance(given, MaskedText):
            ids, layout = given.encode(self.codec, self.context)
            steps = recipe.steps or layout.length - len(layout.pins)  # one per mask
            recipe = replace(recipe, steps=steps)
        elif is_ids(given):
            if template.chat:
                raise RequestError("chat=True formats text with the chat template; token ids are used unchanged")
            ids = read_ids(given, self.codec.vocab_size)
        else:
            ids = self.codec.prompt(given, template.chat, template.special_tokens)
        if self.model.mask_id in ids:
            raise RequestError("the prompt holds the mask token; only positions of the window can be filled")
        if len(ids) + layout.length - layout.padding > self.context:
            sizes = f"a prompt of {len(ids)} tokens and a window of {layout.length}"
            raise ContextLengthError(f"{sizes} exceed the context of {self.context} tokens that this model supports")
        known = chain(ids, *layout.pins) if template.fills else ids  # the tokens of a text with masks are pinned
        return Request(tuple(ids), layout, recipe, derive_seed(template.seed, known))

    def text(self, tokens: Sequence[int], layout: Layout) -> tuple[str, int]:
        """Return the text of a window and the number of its tokens, up to the first end token after all pins."""
        return text_of(tokens, layout, self.codec)

    def answer(self, tokens: Sequence[int], request: Request) -> str | None:
        """Return the text in the answer region, or None if there is no region."""
        return answer_of(tokens, request, self.codec, self.spelling)

    def _feed(self, prompt: Prompt, template: RequestTemplate, streamer: Streamer, trace: bool) -> Completion:
        """Give drafts to `put_draft`, and the prompt and the finished text to `put`."""
        if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise RequestError(f"a streamer has the methods put and end, got {show(streamer)}")
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
    device: str | torch.device = AUTO,
    dtype: str | torch.dtype | None = AUTO,
    *,
    revision: str | None = None,
    compile: bool = False,  # noqa: A002  named after torch.compile
    quantize: str | None = None,
    packed: bool | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Load an engine from a checkpoint folder, a bundled model by its name, or a model on the Hugging Face hub.

    `device="auto"` is CUDA, then MPS, then the CPU. `dtype="auto"` is the stored dtype where the hardware computes in
    it, and float32 for small models. `revision` is a branch, tag or commit on the hub. `progress` is called with the
    bytes loaded so far and with all bytes. `quantize="int8"` rounds the weights between embedding and head,
    `compile=True` compiles the layers with torch. Either may change a token if two are almost equally likely; int8
    may also change other tokens. `packed` packs matrices for oneDNN's products on a CPU; by default, where this is
    faster.
    """
    target = choose_device(device)
    check_quantize(quantize)
    if compile or quantize is not None:
        if packed:
            raise RequestError("packed=True cannot be combined with compile or quantize, which have their own products")
        packed = False
    folder = folder_of(model, revision)
    free = free_memory(target)
    loaded = load_model(folder, target, dtype, quantize=quantize, progress=progress)
    codec = Codec.load(folder)
    if quantize is not None:
        quantize_weights(_network(loaded))
    if compile:
        compile_blocks(_network(loaded))
    pack_weights(_network(loaded), packed)
    engine = Engine(loaded, codec, layouts_of(folder))
    engine.compiled = compile
    if quantize is not None:
        engine.dtype = f"{engine.dtype}+{quantize}"  # part of what a certificate is valid for
    # Weights that stay in their file count as free memory until they are read, so memory is measured before.
    engine.free_bytes = None if free is None else free - engine.weight_bytes
    logging.getLogger("foretell").info(engine.describe())
    return engine


def _name_failed(failed: list[tuple[int, Failure]]) -> ForetellError:
    """Return the first failure's error with its place in the list."""
    index, failure = failed[0]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return type(failure.error)(f"prompts[{index}]{more} cannot be decoded: {failure}")


@dataclass(slots=True)
class _Intake:
    """Checks prompts and submits them as requests."""

    engine: Engine
    scheduler: Scheduler
    observers: Sequence[Observer] = ()
    seen: int = 0
    accepted: dict[int, tuple[int, Prompt, RequestTemplate]] = field(default_factory=dict)  # by ticket

    def take(self, prompt: Prompt, template: RequestTemplate) -> list[tuple[int, Failure]]:
        """Submit one prompt. Returns its failure if it cannot be decoded."""
        index, self.seen = self.seen, self.seen + 1
        try:
            request = self.engine.request(prompt, template)
            ticket = self.scheduler.submit(request, *self.observers, record=template.trace)
        except ForetellError as error:
            return [(index, Failure(error))]
        self.accepted[ticket] = index, prompt, template
        return []

    def refill(self, more: Iterator[tuple[Prompt, RequestTemplate]], size: int) -> list[tuple[int, Failure]]:
        """Submit prompts until `size` requests wait or run. Returns the failures of those that cannot be decoded."""
        failed: list[tuple[int, Failure]] = []
        while self.scheduler.size < size and (pair := next(more, None)) is not None:
            failed += self.take(*pair)
        return failed


Finished = Outcome | FailedRequest | tuple[int, Failure]


def _take_steps(
    scheduler: Scheduler, refill: Callable[[], Sequence[Finished]] = lambda: ()
) -> Iterator[list[Finished]]:
    """Run steps until all requests are done, yielding those that each step finishes and that `refill` returns."""
    while True:
        failed = refill()
        if not (failed or scheduler.busy):
            return
        yield [*failed, *scheduler.step()]


def _network(model: Any) -> Any:
    """Return the network inside a denoiser and its wrappers."""
    model = _unwrap(model)
    return getattr(model, "network", model)


def _unwrap(model: Any) -> Any:
    """Return the denoiser inside all wrappers."""
    while hasattr(model, "inner"):
        model = model.inner
    return model
