"""`python -m foretell.evaluation.harness.lm_eval`: lm-evaluation-harness with Foretell among its models.

python -m foretell.evaluation.harness.lm_eval run --model foretell --tasks gsm8k --apply_chat_template \
    --model_args pretrained=FOLDER,recipe=prophet,max_new_tokens=256,suffix="The answer is"
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from foretell.engine.completion import cut_text
from foretell.engine.engine import load
from foretell.engine.options import ALIASES, RequestTemplate
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.errors import ForetellError, MissingExtraError, RequestError, unknown
from foretell.evaluation.harness.likelihood import SAMPLES, log_likelihood, split_target
from foretell.extras import require_extra
from foretell.recipes.recipe import Recipe

try:
    require_extra("lm-eval")
except MissingExtraError as error:
    if __name__ == "__main__":
        sys.exit(f"error: {error}")
    raise

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

BATCH = 8
WINDOW_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names in a task's generation_kwargs
SAMPLING = ("temperature", "top_p", "top_k")
HARNESS = {"chat": "--apply_chat_template", "stop_strings": "a task's until"}  # options that the harness sets itself
TASK_KWARGS = ("until", "stop", "do_sample", *WINDOW_NAMES, *SAMPLING)


@register_model("foretell")
class Foretell(LM):  # type: ignore[misc]
    """A checkpoint with a recipe. `--model_args` accepts the options of `Engine.generate`."""

    def __init__(
        self,
        pretrained: str,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int | str | None = BATCH,
        max_batch_size: int | None = None,  # noqa: ARG002  the harness always passes it
        samples: int = SAMPLES,
        check_greedy: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        # The harness passes CUDA by default, even where there is none.
        usable = device if torch.cuda.is_available() or not str(device).startswith("cuda") else "cpu"
        self.engine = load(pretrained, usable, dtype)
        self._device = self.engine.device
        self.batch = int(str(batch_size)) if str(batch_size).isdigit() else BATCH  # may be "auto"
        self.samples, self.check_greedy = samples, check_greedy
        self.options = {ALIASES.get(name, name): value for name, value in options.items()}
        for name, instead in HARNESS.items():
            if name in self.options:
                raise RequestError(f"{name} is set by the harness, with {instead}")
        self.templated = False
        self.engine.template(**self.options)  # raises errors before the first task

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the texts, each cut at the first of its `until` strings."""
        pairs = [(request.args[0], self._template(request.args[1])) for request in requests]
        wanted = [Request(self._encode(text), one.layout, one.recipe, one.seed) for text, one in pairs]
        windows = self._decode(wanted, disable_tqdm)
        texts = [self.engine.text(tokens, one.layout)[0] for tokens, one in zip(windows, wanted, strict=True)]
        made = [cut_text(text, _until(request.args[1]))[0] for text, request in zip(texts, requests, strict=True)]
        for request, text in zip(requests, made, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return made

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return LLaDA's estimate of the likelihood bound, and whether greedy decoding gives the same tokens."""
        found = []
        for request in _with_progress(requests, disable_tqdm):
            prompt, target = self._split(*request.args)
            value = log_likelihood(
                self.engine.model, prompt, target, self.samples, self.batch, device=self.engine.device
            )
            found.append((value, self.check_greedy and self._is_greedy(prompt, target)))
            self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the estimate for whole texts. It bounds the joint likelihood of all tokens, regardless of order."""
        made = []
        for request in _with_progress(requests, disable_tqdm):
            tokens = self.engine.codec.encode(request.args[0])
            lead = self.engine.codec.leading
            made.append(log_likelihood(self.engine.model, lead, tokens, self.samples, self.batch, device=self._device))
        return made

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        template = self.engine.codec.template
        if template is None:
            raise RequestError(
                f"{self.engine.codec.folder}: the model has no chat template; omit --apply_chat_template"
            )
        if not add_generation_prompt:
            raise RequestError("continuing an assistant message is not supported")
        self.templated = True
        rendered: str = template.render(chat_history)
        return rendered

    @property
    def tokenizer_name(self) -> str:
        return str(self.engine.codec.folder).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template = self.engine.codec.template
        return template.text if chat_template and template is not None else None

    def _template(self, given: Mapping[str, Any]) -> RequestTemplate:
        for name in given:
            if name not in TASK_KWARGS:
                raise RequestError(unknown("generation argument", name, TASK_KWARGS))
        windows = [given[name] for name in WINDOW_NAMES if name in given]
        window = {"max_new_tokens": windows[0]} if windows else {}
        sampling = {name: given[name] for name in SAMPLING if name in given and given.get("do_sample")}
        return self.engine.template(**(window | sampling | self.options))

    def _encode(self, text: str) -> tuple[int, ...]:
        """Encode a text; a rendered conversation already has its special tokens."""
        return tuple(self.engine.codec.encode(text, special=not self.templated))

    def _split(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        context, continuation = split_target(context, continuation)
        prompt = self._encode(context)
        return prompt, self._encode(context + continuation)[len(prompt) :]

    def _is_greedy(self, prompt: tuple[int, ...], target: tuple[int, ...]) -> bool:
        request = Request(prompt, Layout(len(target)), Recipe(block_length=len(target)))
        return next(iter(self._decode([request], silent=True))) == target

    def _decode(self, requests: Sequence[Request], silent: bool) -> list[tuple[int, ...]]:
        ends, spelling = self.engine.codec.end_ids, self.engine.spelling
        scheduler = Scheduler(self.engine.model, ends, self.batch, device=self.engine.device, spelling=spelling)
        outcomes = scheduler.run(requests)
        done = {one.ticket: one.tokens for one in _with_progress(outcomes, silent, len(requests))}
        return [done[ticket] for ticket in range(len(requests))]


def _until(given: Mapping[str, Any]) -> list[str]:
    until = given.get("until") or given.get("stop") or []
    return [one for one in ([until] if isinstance(until, str) else until) if one]


def _with_progress(items: Any, silent: bool, total: int | None = None) -> Iterator[Any]:
    from tqdm import tqdm  # noqa: PLC0415  installed with the harness

    yield from tqdm(items, total=total, disable=silent, desc="foretell")


def main() -> None:
    from lm_eval.__main__ import cli_evaluate  # noqa: PLC0415  only for the command line

    try:
        cli_evaluate()
    except ForetellError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
