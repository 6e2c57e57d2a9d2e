"""`foretell decide`: answer typed questions about one input or a file of inputs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from foretell.cli.model import Device, Dtype, Model, Revision, Threads, at_revision
from foretell.cli.usage import MACHINE, OUTPUT, RISK
from foretell.errors import ForetellError, RequestError
from foretell.storage import check_writable, load_json

if TYPE_CHECKING:
    from foretell.decide.answers import Decision
    from foretell.decide.plan import DecisionPlan
    from foretell.engine.prompt_files import FilePrompt

UNSURE = "If the best label is less likely than --sure: answer, abstain or full (use all remaining steps)."
QUESTION = "Question"


def _option(text: str, *names: str, panel: str | None = None) -> Any:
    return Option(*names, help=text, rich_help_panel=panel)


def decide(
    model: Model,
    text: Annotated[str | None, Argument(help="Input text; - reads it from standard input.")] = None,
    choice: Annotated[str | None, _option("Choices, separated by commas.", panel=QUESTION)] = None,
    yes_no: Annotated[bool, _option("Answer with yes or no.", "--yes-no", panel=QUESTION)] = False,
    score: Annotated[str | None, _option("Levels from lowest to highest, separated by commas.", panel=QUESTION)] = None,
    integer: Annotated[
        int | None, _option("Answer with a whole number of up to this many digits.", panel=QUESTION)
    ] = None,
    ask: Annotated[str, _option("The question.", "--ask", "-q", panel=QUESTION)] = "",
    questions: Annotated[Path | None, _option("JSON file with one or more questions.", panel=QUESTION)] = None,
    file: Annotated[
        str | None, _option("File of inputs: JSON lines, or .txt with one per line; - reads standard input.")
    ] = None,
    out: Annotated[
        Path | None, _option("Write JSON lines to this file. Run the command again to resume.", panel=OUTPUT)
    ] = None,
    json_: Annotated[bool, _option("Print one JSON object per line.", "--json", panel=OUTPUT)] = False,
    recipe: Annotated[
        str | None, _option("Preset, recipe text or tuned .json file (default: the template's).", "--recipe", "-r")
    ] = None,
    template: Annotated[str | None, _option("One of the model's templates (default: depends on the question).")] = None,
    think: Annotated[
        int | None, _option("Number of masks for reasoning before the answer (default: the template's).")
    ] = None,
    steps: Annotated[int | None, _option("Maximum number of steps (default: one per mask).")] = None,
    orders: Annotated[
        int | None,
        _option("2: ask twice, with the choices in both orders; 1: ask once (default: twice if the first is unsure)."),
    ] = None,
    on_unsure: Annotated[str, _option(UNSURE, panel=RISK)] = "answer",
    sure: Annotated[float, _option("Probability above which a label counts as sure.", panel=RISK)] = 0.9,
    on_mismatch: Annotated[
        str, _option("If a tuned recipe is for another model: warn, full (decode in full) or fail.", panel=RISK)
    ] = "warn",
    batch_size: Annotated[int, _option("Number of inputs decoded together.", panel=MACHINE)] = 8,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
) -> None:
    """Answer a typed question about a text, with the probability of every label.

    With --out it is safe to interrupt: run the same command again to resume.

    foretell decide tiny "Tom has 3 boxes with 4 apples each. He eats 5." \\
        --ask "How many apples are left?" --integer 2
    """
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.model import introduce, open_engine  # noqa: PLC0415
    from foretell.cli.prompts import gather  # noqa: PLC0415
    from foretell.decide.plan import DecisionPlan  # noqa: PLC0415

    asked = read_questions(ask, choice, score, integer, questions, yes_no=yes_no)
    inputs = gather(text, file)
    if out is not None:
        if out.suffix == ".parquet":
            raise RequestError(f"decisions are written as JSON lines, not as a table, got --out {out}")
        check_writable(out)
    engine = open_engine(at_revision(model, revision), device, dtype, threads)
    given: dict[str, Any] = {"template": template, "think": think, "recipe": recipe, "steps": steps, "orders": orders}
    given |= {"on_unsure": on_unsure, "sure": sure}
    if on_mismatch != "warn":
        given["on_mismatch"] = on_mismatch
    plan = DecisionPlan.prepare(engine, asked, **given)
    if not inputs[0].where:  # the input was an argument, not a line of a file
        plan.start(inputs[0].prompt)
    note(plan.base.notes)
    introduce(engine)
    if deliver(plan, inputs, batch_size, out, as_json=json_):
        raise Exit(code=1)


def read_questions(
    ask: str, choice: str | None, score: str | None, integer: int | None, questions: Path | None, *, yes_no: bool
) -> Any:
    """Return the questions of a command. Raises RequestError unless exactly one way to ask is used."""
    from foretell.decide.questions import Choice, Integer, Predicate, Score  # noqa: PLC0415
    from foretell.decide.wire import parse_questions  # noqa: PLC0415

    ways = {"--choice": choice, "--score": score, "--integer": integer, "--questions": questions}
    used = [name for name, value in (ways | {"--yes-no": yes_no or None}).items() if value is not None]
    if len(used) != 1:
        got = f"got {' and '.join(used)}" if used else "got none"
        raise RequestError(f"give one of --choice, --yes-no, --score, --integer and --questions, {got}")
    if questions is not None:
        return parse_questions(load_json(questions, "file of questions", RequestError))
    if choice is not None:
        return Choice(ask, [one.strip() for one in choice.split(",")])
    if score is not None:
        return Score(ask, [one.strip() for one in score.split(",")])
    return Predicate(ask) if integer is None else Integer(ask, integer)


def deliver(plan: DecisionPlan, asked: list[FilePrompt], batch_size: int, out: Path | None, *, as_json: bool) -> int:
    """Decide, and write or print each decision as soon as it is done. Return the number of failed inputs."""
    from foretell.cli.console import problem, say  # noqa: PLC0415
    from foretell.cli.results import Ledger, run_key  # noqa: PLC0415
    from foretell.cli.wording import count  # noqa: PLC0415
    from foretell.decide.decide import decide_iter  # noqa: PLC0415

    failed = 0
    with ExitStack() as stack:
        ledger = None
        if out is not None:
            key = run_key(plan.engine, plan.describe(), asked)
            ledger = stack.enter_context(Ledger(out, [one.id for one in asked], key))
            if ledger.lines:
                say(f"resuming: {count(len(ledger.lines), 'result')} of an interrupted run found", style="dim")
            failed = ledger.failed
            asked = [one for one in asked if str(one.id) not in ledger.lines]
        for index, done in decide_iter(plan.engine, [one.prompt for one in asked], plan, batch_size):
            one = asked[index]
            if isinstance(done, ForetellError):
                failed += 1
                problem(f"error: {one.where + ': ' if one.where else ''}{done}")
            row = {"id": one.id} | ({"error": str(done)} if isinstance(done, ForetellError) else done.to_json())
            if ledger is not None:
                ledger.add(one.id, json.dumps(row, ensure_ascii=False))
            elif as_json:
                print(json.dumps(row), flush=True)
            elif not isinstance(done, ForetellError):
                show(done, one.id if len(asked) > 1 else None)
    return failed


def show(done: Decision, name: str | int | None) -> None:
    """Print a decision: one line per answer, with bars for its labels, and its cost."""
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.decide.answers import PredicateAnswer, TextAnswer  # noqa: PLC0415

    console = out()
    if name is not None:
        console.print(Text(f"[{name}]", style="bold"))
    for one in done.answers.values():
        console.print(Text(f"{one.name}: {_shown(one.value)}", style="bold"), soft_wrap=True)
        shares: dict[Any, float] = getattr(one, "calibrated", None) or getattr(one, "probabilities", None) or {}
        if isinstance(one, PredicateAnswer):
            shares = {"yes": one.probability if one.calibrated is None else one.calibrated}
        elif isinstance(one, TextAnswer):
            shares = {"this text": one.probability}
        for label, share in sorted(shares.items(), key=lambda pair: -pair[1])[:10]:
            console.print(Text(f"  {share:7.2%} {'█' * round(20 * share):<20} {_shown(label)}"), soft_wrap=True)
    mass = [one.label_mass for one in done.answers.values() if one.label_mass is not None]
    about = f" · label mass {min(mass):.2%}" if mass else ""
    about += (
        " · calibrated" if any(getattr(one, "calibrated", None) is not None for one in done.answers.values()) else ""
    )
    console.print(Text(f"{done.steps} steps · {done.forwards} forwards · {done.seconds:.2f} s{about}", style="dim"))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
