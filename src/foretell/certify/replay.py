"""Study stored traces without a model: what a stopping rule would have returned, and when the answer was settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from foretell.certify.losses import Decoded
from foretell.engine.completion import Completion, generated_tokens
from foretell.engine.engine import Engine
from foretell.engine.masked_text import MaskedText
from foretell.engine.trace import Trace
from foretell.engine.trace_files import load_traces
from foretell.errors import RequestError, StorageError
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.evaluation.benchmarks.without_suffix import ANNOUNCEMENT
from foretell.evaluation.records import Record
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch, grade, run
from foretell.loop.protocols import Region, Stop


@dataclass(frozen=True)
class Case:
    """One example with its full decoding and the trace of every step."""

    example: Example
    record: Record
    trace: Trace
    engine: Engine
    benchmark: Benchmark

    @cached_property
    def answer_positions(self) -> Tensor:
        """The positions of the final answer: from the layout, or after an announcement in the model's own text. [N]"""
        if self.trace.request.layout.answer is None:
            return self._find_announced()
        end = torch.isin(self.trace.tokens[-1], torch.tensor(self.trace.end_ids))
        return self.trace.answer()[0] & ~end  # an end of text after a shorter answer does not belong to it

    def _find_announced(self) -> Tensor:
        """Return the positions from the last announcement to the last letter or digit of its line, if there is one."""
        codec, final = self.engine.codec, self.trace.tokens[-1].tolist()
        spellings = {tuple(codec.encode(text)) for text in (ANNOUNCEMENT, f" {ANNOUNCEMENT}")}
        starts = [i + len(s) for s in spellings for i in range(len(final)) if tuple(final[i : i + len(s)]) == s]
        first = last = max(starts, default=len(final))
        for place in range(first, len(final)):
            text = codec.decode([final[place]])
            if final[place] in self.trace.end_ids or ("\n" in text and last > first):
                break
            last = place + 1 if any(letter.isalnum() for letter in text) else last
        found = torch.zeros(len(final), dtype=torch.bool)
        found[first:last] = True
        return found

    def replay(self, name: str, rule: Stop, region: Region | None = None) -> Record:
        """Return the record this example would have under `rule`. Times are zero: a replay measures none."""
        verdict = rule(self.trace, self.trace.states(region))
        unchanged = replace(self.record, recipe=name, seconds=0.0, wall=0.0, columns_computed=None)
        if not verdict.settled.any():
            return unchanged
        step = int(verdict.settled.int().argmax())
        completion = self._complete(self.trace.committed(step).tolist(), region)
        return replace(
            unchanged,
            text=completion.text,
            steps=step + 1,
            forwards=(step + 1) * self.record.forwards // self.record.steps,
            columns_needed=(step + 1) * self.record.columns_needed // self.record.steps,
            response_tokens=completion.response_tokens,
            exit=step,
            value=None if verdict.value is None else float(verdict.value[step]),
            measure=None if verdict.value is None else verdict.measure,
            finish="settled",
            tokens=completion.generated,
            **grade(self.benchmark, self.example, completion),
        )

    def _complete(self, tokens: Sequence[int], region: Region | None = None) -> Completion:
        request, steps, prompt = self.trace.request, len(self.trace), self.example.prompt
        text, size = self.engine.text(tokens, request.layout)
        asked = replace(request, recipe=replace(request.recipe, region=region or request.recipe.region))
        answer = self.engine.answer(tokens, asked)
        made = generated_tokens(tokens, request.layout, self.trace.end_ids)
        cost = (0, steps, request.budget, steps)
        done = Completion(text, answer, tuple(tokens), size, *cost, "settled", 0.0, generated=made)
        if not isinstance(prompt, MaskedText):
            return done
        return prompt.finish(done, request.layout, self.engine.codec, self.engine.spelling)

    def answer_at(self, step: int) -> tuple[str | None, bool]:
        """Return the answer that a commit at `step` would emit, and whether it is right."""
        found = self.decoded_at(step)
        return found.answer, found.correct

    def decoded_at(self, step: int | None) -> Decoded:
        """Return what a commit at `step` would emit; None: what the whole decoding has emitted."""
        if step is None:
            return Decoded.of_record(self.record)
        if step not in self._decoded:
            done = self._complete(self.trace.committed(step).tolist())
            answer = self.benchmark.extract(done)
            right = bool(self.benchmark.grade(self.example, answer))
            self._decoded[step] = Decoded(done.text, answer, done.generated, right)
        return self._decoded[step]

    @cached_property
    def _decoded(self) -> dict[int, Decoded]:
        """The results of `decoded_at`, since all families ask for the same steps."""
        return {}

    @cached_property
    def first_match(self) -> int | None:
        """The first step, from 0, whose draft equals the final answer; None if the final text has no answer."""
        return self.trace.first_match(where=self.answer_positions) if self.answer_positions.any() else None

    @cached_property
    def last_change(self) -> int | None:
        """The first step from which the draft stays equal to the final answer; None if the final text has no answer."""
        return self.trace.last_change(self.answer_positions) if self.answer_positions.any() else None


@dataclass(frozen=True)
class Study:
    """The fully decoded cases of one task."""

    bench: PreparedEvaluation
    cases: tuple[Case, ...]

    @property
    def right(self) -> list[Case]:
        return [case for case in self.cases if case.record.correct]

    @property
    def records(self) -> list[Record]:
        return [case.record for case in self.cases]

    def replay(self, name: str, rule: Stop, region: Region | None = None) -> list[Record]:
        return [case.replay(name, rule, region) for case in self.cases]

    def settled_by(self, share: float, *, for_good: bool) -> float:
        """Return the share of right answers drafted (`for_good`: and kept) before this share of the budget."""
        steps = [(case.last_change if for_good else case.first_match, case.record.budget) for case in self.right]
        return sum(step is not None and step < share * budget for step, budget in steps) / max(1, len(steps))


def study(what: Evaluation, count: int | None = None) -> Study:
    """Decode the missing examples with traces, and return the first recipe's cases, all or the first `count`."""
    bench = PreparedEvaluation.prepare(replace(what, trace=True))
    return gather_cases(bench, run(bench), count)


def run_study(bench: PreparedEvaluation, watch: Watch | None = None) -> Study:
    """Run an evaluation that was prepared with traces, and return its cases."""
    return gather_cases(bench, run(bench, watch))


def gather_cases(bench: PreparedEvaluation, records: Sequence[Record], count: int | None = None) -> Study:
    """Return the cases of a finished evaluation, all or the first `count`."""
    first = {record.id: record for record in records if record.recipe == bench.recipes[0].name}
    return Study(bench, tuple(_cases(bench, first, bench.examples[:count])))


def _cases(bench: PreparedEvaluation, records: dict[str, Record], examples: Sequence[Example]) -> Iterator[Case]:
    files: dict[str, list[Trace]] = {}
    for example in examples:
        record = records[example.id]
        if record.trace is None or record.trace_index is None:
            raise RequestError(f"{bench.evaluation.out} was run without traces; choose another folder")
        if record.trace not in files:
            files[record.trace] = load_traces(bench.evaluation.out / record.trace)
        traces = files[record.trace]
        if not 0 <= record.trace_index < len(traces) or len(traces[record.trace_index]) != record.steps:
            raise StorageError(
                f"{bench.evaluation.out / record.trace} does not hold the trace of {record.id}; run the "
                "evaluation again in another folder"
            )
        trace = traces[record.trace_index]
        if trace.settled:
            raise RequestError(
                f"{bench.evaluation.out} contains early commits; a study needs decodings that never stopped early"
            )
        yield Case(example, record, trace, bench.engine, bench.benchmark)
