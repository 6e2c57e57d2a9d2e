"""Texts with masks to fill: how the masks are written, and the text that results when they are filled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from foretell.engine.codec import Codec
from foretell.engine.completion import Completion, generated_tokens
from foretell.engine.request import LONGEST, Layout
from foretell.errors import RequestError, show, whole
from foretell.loop.spelling import Spelling, blank_between

ROUND = 32  # windows of filled texts have a multiple of this many positions


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A text whose masks are to be filled. Everything else stays as it is.

    A mask is written as [MASK] or as the tokenizer's own mask token; [MASK*8] is a run of eight.
    """

    text: Any  # a string; `encode` refuses anything else

    def encode(self, codec: Codec, context: int) -> tuple[list[int], Layout]:
        """Return the tokens of the prompt, and a layout of the rest in which only the masks are not pinned.

        The window is as long as the rest from the first mask on, rounded up so that different texts can share a batch.
        For this it takes tokens before the mask, or if the text has too few, padding.
        """
        if not isinstance(self.text, str):
            raise RequestError(f"a text with masks must be a string, got {show(self.text)}")
        if codec.mask_id is None:
            raise RequestError(f"{codec.folder}: neither config.json nor the tokenizer names a mask token")
        parts, sizes = self._split(codec)
        if sum(sizes) > context:  # before all of them are written out
            raise RequestError(f"{sum(sizes)} masks exceed the context of {context} tokens that this model supports")
        ids = codec.encode_masked(parts, sizes)
        length = -(-(len(ids) - ids.index(codec.mask_id)) // ROUND) * ROUND
        padding = max(0, min(length, context) - len(ids))
        filler = codec.end_ids[0] if codec.end_ids else int(codec.mask_id == 0)
        window = [filler] * padding + ids[-length:]
        pins = tuple((at, token) for at, token in enumerate(window) if token != codec.mask_id)
        return ids[:-length], Layout(len(window), pins, (0, len(window)), padding)

    def finish(self, done: Completion, layout: Layout, codec: Codec, spelling: Spelling) -> Completion:
        """Return the completion of this text's window as one of the whole text."""
        return replace(
            done,
            text=self.join(done.tokens, layout, codec, spelling),
            answer=None,
            tokens=done.tokens[layout.padding :],
            fills=tuple(self._fills(done.tokens, layout, codec, spelling)),
            response_tokens=layout.length - len(layout.pins),
            generated=generated_tokens(done.tokens, layout, ()),  # a fill goes on after an end token
        )

    def join(self, tokens: Sequence[int], layout: Layout, codec: Codec, spelling: Spelling) -> str:
        """Return the text with its masks replaced by what the window's `tokens` say."""
        parts, _ = self._split(codec)
        text = parts[0]
        for fill, part in zip(self._fills(tokens, layout, codec, spelling), parts[1:], strict=True):
            for piece in (fill, part):
                text += (blank_between(text, piece) if spelling.spaced else "") + piece
        return text

    def _fills(self, tokens: Sequence[int], layout: Layout, codec: Codec, spelling: Spelling) -> Iterator[str]:
        """Yield the text of each run of masks. Spaces that the text already has around a run are removed from it."""
        parts, sizes = self._split(codec)
        pinned, hidden = {offset for offset, _ in layout.pins}, {codec.mask_id, *codec.end_ids}
        filled = (token for at, token in enumerate(tokens) if at not in pinned)
        for before, size, after in zip(parts, sizes, parts[1:], strict=False):
            run = [token for token in islice(filled, size) if token not in hidden]
            text = spelling.text(run).string if spelling.spaced else codec.decode(run)
            text = text.lstrip() if not before or before[-1].isspace() else text
            yield text.rstrip() if after[:1].isspace() else text

    def _split(self, codec: Codec) -> tuple[list[str], list[int]]:
        """Return the parts of the text between its masks, and the sizes of the runs of masks between these parts."""
        own = None if codec.mask_id is None else codec.tokenizer.id_to_token(codec.mask_id)
        pattern = r"\[MASK(?:\*([0-9]+))?\]" + (f"|{re.escape(own)}" if own else "")
        parts, sizes, start = [], [], 0
        for match in re.finditer(pattern, self.text):
            size = int(match[1].lstrip("0")[:9] or 0) if match[1] else 1
            whole(f"the number of masks in {match[0][:40]!r}", size, 1, LONGEST, RequestError)
            parts.append(self.text[start : match.start()])
            sizes.append(size)
            start = match.end()
        if not sizes:
            also = f" or {own}" if own and own != "[MASK]" else ""
            raise RequestError(
                f"the text has no mask to fill; write [MASK]{also}, or [MASK*8] for eight masks in a row"
            )
        whole("the number of masks in the text", sum(sizes), 1, LONGEST, RequestError)
        return [*parts, self.text[start:]], sizes
