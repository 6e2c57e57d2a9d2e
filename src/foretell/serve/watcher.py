"""Copies the data of each step that a request shows. It runs in the thread that decodes, so it does little work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from foretell.engine.completion import frame_of
from foretell.loop.decode import Step
from foretell.serve.mailbox import Committed, Draft, Event, Scores


@dataclass(slots=True)
class Watcher:
    """An observer of one request."""

    put: Callable[[Event], None]
    drafts: bool = False
    positions: bool = False  # drafts have the confidence of every position
    text: bool = False  # committed text is wanted as soon as it cannot change any more
    alternatives: int | None = None  # per filled token, with log probabilities; None: none are wanted
    sent: int = 0  # committed positions so far

    def __call__(self, step: Step, row: int) -> None:
        if self.alternatives is not None:
            self._send_scores(step, row, self.alternatives)
        if self.drafts:
            frame = frame_of(step, row)
            confidence = tuple(step.beliefs.confidence[row].tolist()) if self.positions else ()
            self.put(Draft(frame, confidence, time.perf_counter()))
        if self.text:
            self._send_text(step, row)

    def _send_text(self, step: Step, row: int) -> None:
        """Send the filled positions before the first mask, if there are more than before."""
        blank = step.after.blank[row].tolist()
        count = blank.index(True) if True in blank else len(blank)
        if count > self.sent:
            self.sent = count
            self.put(Committed(tuple(step.after.window[row, :count].tolist())))

    def _send_scores(self, step: Step, row: int, alternatives: int) -> None:
        positions = step.filled[row].nonzero().squeeze(1)
        if not len(positions):
            return
        scores = step.beliefs.log_probabilities(row, positions)
        tokens = step.after.window[row, positions]
        best = scores.topk(min(alternatives, scores.shape[1]), dim=-1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        self.put(
            Scores(
                tuple(positions.tolist()),
                tuple(scores.gather(1, tokens[:, None]).squeeze(1).tolist()),
                tuple(tuple(zip(ids, values, strict=True)) for ids, values in rows),
            )
        )
