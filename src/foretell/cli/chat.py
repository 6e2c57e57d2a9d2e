"""`foretell chat`: talk to a model in the terminal, and watch its drafts settle."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from foretell.cli.generate import read_options
from foretell.cli.model import Compile, Device, Dtype, Model, Packed, Quantize, Revision, Threads, at_revision
from foretell.cli.process import Terminated
from foretell.cli.usage import SAMPLING, WINDOW
from foretell.errors import ForetellError, RequestError

if TYPE_CHECKING:
    from foretell.engine.completion import Completion
    from foretell.engine.engine import Engine, Prompt

COMMANDS = {
    "/help": "show these commands",
    "/recipe [TEXT]": "show the recipe, or change it",
    "/reset": "begin a new conversation",
    "/quit": "leave; so does Ctrl-D",
}
PROMPT = "> "
RECIPE = "Preset, recipe text or certified .json file (default: swift for the bundled model, else a cautious one)."
DIGITS = re.compile(r"[0-4]{4}([\s/][0-4]{4}){3}")  # a Sudoku


def chat(
    model: Model,
    recipe: Annotated[str | None, Option("--recipe", "-r", help=RECIPE)] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", "-s", help="Change one parameter of the recipe, e.g. stop.tau.high=8. Repeatable."),
    ] = None,
    system: Annotated[str | None, Option(help="System message at the start of the conversation.")] = None,
    layout: Annotated[
        str | None,
        Option(help="Name of one of the model's layouts (default: chosen by the model).", rich_help_panel=WINDOW),
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option(help="Length of the response window in tokens.", rich_help_panel=WINDOW)
    ] = None,
    steps: Annotated[
        int | None, Option(help="Maximum number of steps (default: one per position).", rich_help_panel=WINDOW)
    ] = None,
    block_length: Annotated[int | None, Option(help="Length of a block in tokens.", rich_help_panel=WINDOW)] = None,
    temperature: Annotated[
        float | None, Option(help="Sampling temperature (default: greedy).", rich_help_panel=SAMPLING)
    ] = None,
    seed: Annotated[int, Option(help="Random seed.", rich_help_panel=SAMPLING)] = 0,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    compile_: Compile = False,
    quantize: Quantize = None,
    packed: Packed = None,
) -> None:
    """Chat with a model in the terminal, and watch each answer settle.

    Ctrl-C cancels an answer; /help lists commands. The conversation is kept if the model has a chat template. The
    bundled model solves one problem per turn. Without a terminal, each line of standard input is a turn.

    foretell chat tiny
    """
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.model import introduce, open_engine  # noqa: PLC0415
    from foretell.recipes.presets import CAUTIOUS, parse  # noqa: PLC0415

    options = read_options(dict(locals()) | {"recipe": recipe or "swift"})
    if isinstance(options["recipe"], str) and not options["recipe"].endswith(".json"):
        parse(options["recipe"])  # report a wrong name before the weights are loaded
    machine: dict[str, Any] = {"quantize": quantize, "packed": packed, "compile": compile_}
    engine = open_engine(at_revision(model, revision), device, dtype, threads, **machine)
    if recipe is None and not engine.bundled:
        options["recipe"] = " ".join([CAUTIOUS, *(set_ or [])])
    talk = Chat(engine, options, system, sys.stdin.isatty())
    note(talk.check(options))
    introduce(engine)
    if not talk.run(read_lines(talk.interactive)):
        raise Exit(code=1)


@dataclass(slots=True)
class Chat:
    """A conversation with one model."""

    engine: Engine
    options: dict[str, Any]
    system: str | None = None
    interactive: bool = False  # whether someone types the lines
    turns: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.system is not None and not self.keeps_turns:
            raise RequestError(
                f"--system needs a chat template for conversations, which {self.engine.name} does not have"
            )

    @property
    def keeps_turns(self) -> bool:
        """Whether the model sees earlier turns."""
        return self.engine.codec.template is not None and not self.engine.bundled

    def check(self, options: dict[str, Any]) -> Sequence[str]:
        """Return notes about these options. Raises an error if they cannot be used."""
        return self.engine.template(**options).notes

    def run(self, lines: Iterator[str]) -> bool:
        """Answer line after line. Returns whether all of them could be answered."""
        good = True
        if self.interactive:
            self._greet()
        for line in lines:
            if line.startswith("/"):
                if line in ("/quit", "/exit"):
                    break
                self._command(*line.partition(" ")[::2])
            elif line.strip():
                good &= self._turn(line)
        return good or self.interactive

    def _turn(self, line: str) -> bool:
        """Answer one line. Returns whether that was possible; the conversation is unchanged if not."""
        from foretell.cli.console import out, problem, say  # noqa: PLC0415
        from foretell.cli.watch import ending  # noqa: PLC0415

        prompt, options = self.ask(line)
        try:
            done = self._show(prompt, options)
        except ForetellError as error:
            problem(f"error: {error}")
            if self.engine.bundled:
                self._show_examples()
            return False
        except KeyboardInterrupt as stop:
            if not self.interactive or isinstance(stop, Terminated):
                raise
            say("cancelled; this turn is not part of the conversation", style="yellow")
            return True
        out().print(done.text, markup=False, soft_wrap=True)
        say(f"{ending(done)} · {done.seconds:.2f} s", style="dim")
        if self.keeps_turns:
            self.turns += [{"role": "user", "content": line}, {"role": "assistant", "content": done.text}]
        return True

    def ask(self, line: str) -> tuple[Prompt, dict[str, Any]]:
        """Return the prompt and the options for a line."""
        if self.keeps_turns:
            system = [] if self.system is None else [{"role": "system", "content": self.system}]
            return [*system, *self.turns, {"role": "user", "content": line}], self.options
        if self.engine.bundled and "layout" not in self.options:
            task = find_task(line)
            prompt = "\n".join(re.split(r"[\s/]", line.strip())) if task == "sudoku" else line
            return prompt, self.options | {"layout": task}
        return line, self.options

    def _show(self, prompt: Prompt, options: dict[str, Any]) -> Completion:
        """Decode, and show the drafts on a terminal. They disappear when the answer is finished."""
        from rich.live import Live  # noqa: PLC0415

        from foretell.cli.canvas import Canvas, speller  # noqa: PLC0415
        from foretell.cli.console import out  # noqa: PLC0415
        from foretell.cli.watch import FRAMES_PER_SECOND, View  # noqa: PLC0415

        console, canvas = out(), Canvas(speller(self.engine.codec))
        frames = self.engine.stream(prompt, **options)
        if console.is_terminal:
            with Live(View(canvas, notes=False), console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True):
                for frame in frames:
                    canvas.update(frame)
        else:
            for frame in frames:
                canvas.update(frame)
        assert canvas.frame is not None, "a decoding has at least one step"
        assert canvas.frame.completion is not None, "the last frame has the completion"
        return canvas.frame.completion

    def _command(self, name: str, rest: str) -> None:
        from foretell.cli.console import problem, say  # noqa: PLC0415

        if name == "/reset":
            self.turns = []
            say("a new conversation begins", style="dim")
        elif name == "/recipe":
            self._set_recipe(rest.strip())
        elif name == "/help":
            self._help()
        else:
            problem(f"error: there is no command {name}; /help lists them")

    def _set_recipe(self, text: str) -> None:
        from foretell.cli.console import note, problem, say  # noqa: PLC0415

        options = self.options | ({"recipe": text, "settings": ""} if text else {})
        try:
            note(self.check(options))
        except ForetellError as error:
            problem(f"error: {error}")
            return
        self.options = options
        say(f"recipe: {options['recipe']}", style="dim")

    def _greet(self) -> None:
        from foretell.cli.console import say  # noqa: PLC0415

        if self.engine.bundled:
            self._show_examples()
        elif not self.keeps_turns:
            say("This model has no chat template: it continues each text and sees no earlier ones.", style="bold")
        say("/help lists commands; Ctrl-C cancels an answer; Ctrl-D leaves.", style="dim")

    def _help(self) -> None:
        from foretell.cli.console import say  # noqa: PLC0415

        for name, text in COMMANDS.items():
            say(f"{name:15} {text}", style="")
        if self.engine.bundled:
            self._show_examples()

    def _show_examples(self) -> None:
        from rich.padding import Padding  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        from foretell.cli.console import err, say  # noqa: PLC0415
        from foretell.cli.demo import choose_problem  # noqa: PLC0415

        console = err()
        say("This model solves four kinds of problems, one per turn:", style="bold")
        for task in ("word", "choice", "sudoku", "countdown"):
            prompt = choose_problem(task).prompt.replace("\n", " ")
            console.print(Padding(Text(prompt, style="cyan"), (0, 0, 0, 2)), soft_wrap=not console.is_terminal)


def find_task(line: str) -> str:
    """Return which of the bundled model's tasks a line is."""
    if DIGITS.fullmatch(line.strip()):
        return "sudoku"
    if re.fullmatch(r"[\d\s,]+", line):
        return "countdown"
    return "choice" if " A) " in line else "word"


def read_lines(interactive: bool, read: Callable[[str], str] = input) -> Iterator[str]:
    """Yield lines of standard input until it ends. On a terminal, Ctrl-C clears the line."""
    if not interactive:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    from foretell.cli.console import say  # noqa: PLC0415

    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415  lets `input` edit the line and remember earlier ones
    while True:
        try:
            yield read(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt as stop:
            if isinstance(stop, Terminated):
                raise
            print()
            say("Ctrl-D or /quit leaves", style="dim")
