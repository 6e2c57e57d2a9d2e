"""Every command of the program, with the group under which `foretell --help` lists it. Add new commands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from typer import Typer

from foretell.cli import (
    audit,
    bench,
    calibrate,
    chat,
    decide,
    demo,
    distil,
    evaluate,
    generate,
    judge,
    models,
    plan,
    plot,
    recipes,
    reproduce,
    serve,
    study,
    tasks,
    trace,
    train,
    tune,
    vocab,
)
from foretell.cli.imports import with_imports
from foretell.cli.usage import Command, Group

USE, MEASURE, BUILD = "Use a model", "Measure", "Build recipes and models"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, or a `Typer` with several commands."""

    run: Callable[..., None] | Typer
    group: str
    resumes: bool = False  # after an interruption, the same command continues
    recipes: bool = False  # takes recipes or policies, and so the option --import


COMMANDS = {
    "demo": Entry(demo.demo, USE),
    "chat": Entry(chat.chat, USE, recipes=True),
    "generate": Entry(generate.generate, USE, recipes=True),
    "fill": Entry(generate.fill, USE, recipes=True),
    "decide": Entry(decide.decide, USE, recipes=True),
    "serve": Entry(serve.serve, USE, recipes=True),
    "recipes": Entry(recipes.recipes, USE, recipes=True),
    "models": Entry(models.models, USE),
    "vocab": Entry(vocab.vocab, USE),
    "tasks": Entry(tasks.tasks, MEASURE),
    "eval": Entry(evaluate.evaluate, MEASURE, resumes=True, recipes=True),
    "sweep": Entry(study.sweep, MEASURE, resumes=True, recipes=True),
    "study": Entry(study.study, MEASURE, resumes=True, recipes=True),
    "plot": Entry(plot.plot, MEASURE),
    "trace": Entry(trace.app, MEASURE, recipes=True),
    "bench": Entry(bench.bench, MEASURE, recipes=True),
    "plan": Entry(plan.plan, MEASURE, recipes=True),
    "audit": Entry(audit.audit, MEASURE),
    "reproduce": Entry(reproduce.reproduce, MEASURE, resumes=True),
    "tune": Entry(tune.tune, BUILD, resumes=True, recipes=True),
    "calibrate": Entry(calibrate.calibrate, BUILD, resumes=True, recipes=True),
    "judge": Entry(judge.judge, BUILD, resumes=True, recipes=True),
    "train": Entry(train.train, BUILD, resumes=True),
    "distil": Entry(distil.distil, BUILD, resumes=True),
}


def add_commands(app: Typer) -> None:
    """Add every command to the program."""
    for name, entry in COMMANDS.items():
        add = with_imports if entry.recipes else _unchanged
        if isinstance(entry.run, Typer):
            for inner in entry.run.registered_commands:
                assert inner.callback is not None, "a command has a function"
                inner.cls, inner.callback = Command, add(inner.callback)
            app.add_typer(entry.run, name=name, cls=Group, rich_help_panel=entry.group)
        else:
            app.command(name, cls=Command, rich_help_panel=entry.group)(add(entry.run))


def _unchanged(run: Callable[..., None]) -> Callable[..., None]:
    return run
