"""`foretell generate`: prompts, results and every kind of error."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foretell import load, load_traces
from foretell.engine.engine import Engine
from foretell.engine.outcome import Outcome
from foretell.errors import ModelError
from tests.cli.conftest import WORDS, Run

SHAPE = {
    *("id", "text", "answer", "response_tokens", "steps", "budget", "saved", "given", "forwards"),
    *("tokens_per_forward", "seconds", "finish", "stop_string", "exit", "measure", "value", "notes"),
}


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_prints_the_text_and_what_it_took(run: Run, checkpoint: Path) -> None:
    result = run("generate", checkpoint, WORDS, "--recipe", "prophet")
    done = load(checkpoint).generate(WORDS, recipe="prophet")
    text, took = result.stdout.splitlines()
    assert text == done.text
    used = f"{done.steps} of {done.budget} steps ({done.saved} saved, 3 for given positions)"
    assert took.startswith(f"{used} · {done.forwards} forwards · ")
    assert took.endswith(" s · settled early")
    assert done.saved > 0


def test_a_full_decoding_claims_no_savings(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    """The pinned suffix takes no steps."""
    took = run("generate", checkpoint, WORDS).stdout.splitlines()[1]
    assert took.startswith("21 of 24 steps (3 for given positions) · 21 forwards · ")
    assert took.endswith(" s · ran to the end")
    bare = run("generate", checkpoint, WORDS, "--suffix", "").stdout.splitlines()[1]
    assert bare.startswith("24 of 24 steps · ")
    (tmp_path / "p.txt").write_text(f"{WORDS}\n{WORDS}\n")
    words = ("generate", checkpoint, "--file", tmp_path / "p.txt")
    _, totals = run(*words).stderr.splitlines()
    assert totals.startswith("2 prompts · 21.0 steps on average · 0 settled early")
    _, early = run(*words, "-r", "prophet").stderr.splitlines()
    assert early.startswith("2 prompts · 18.0 steps on average (1.17x fewer than a full decoding) · 2 settled early")
    (row,) = rows(run("generate", checkpoint, WORDS, "--json").stdout)
    assert (row["budget"], row["steps"], row["saved"], row["given"]) == (24, 21, 0, 3)


def test_json_is_one_object_a_line(run: Run, checkpoint: Path) -> None:
    (row,) = rows(run("generate", checkpoint, WORDS, "--json").stdout)
    done = load(checkpoint).generate(WORDS)
    assert set(row) == SHAPE
    assert (row["text"], row["answer"], row["steps"], row["finish"]) == (done.text, done.answer, done.steps, "complete")
    assert row["notes"] == []


def test_set_and_options_change_the_outcome(run: Run, checkpoint: Path) -> None:
    def steps(*words: str) -> object:
        return rows(run("generate", checkpoint, WORDS, "--json", *words).stdout)[0]["steps"]

    eager = steps("--recipe", "prophet", "--set", "stop.tau.high=0")
    picky = steps("--recipe", "prophet", "-s", "stop.tau.low=99", "-s", "stop.tau.mid=99")
    assert eager == 1
    assert picky == steps() == 21
    assert steps("--steps", "7") == 7
    assert steps("--recipe", "full stop=prophet(tau=staged(high=0.0))") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-new-tokens", "12"), ("--block-length", "3"), ("--remasking", "random"), ("--temperature", "2"),
     ("--top-k", "3"), ("--cfg-scale", "3"), ("--suffix", "has"), ("--answer-start", "5"), ("--answer-length", "9")],
)  # fmt: skip
def test_every_option_reaches_the_decoder(run: Run, checkpoint: Path, option: str, value: str) -> None:
    plain = rows(run("generate", checkpoint, WORDS, "--json").stdout)[0]
    other = rows(run("generate", checkpoint, WORDS, "--json", option, value).stdout)[0]
    assert {**plain, "seconds": 0} != {**other, "seconds": 0}


def test_raw_prompts(run: Run, checkpoint: Path) -> None:
    made = {
        words: rows(run("generate", checkpoint, WORDS, "--json", *words).stdout)[0]["text"]
        for words in ((), ("--raw",), ("--chat",))
    }
    assert made["--raw",] == load(checkpoint).generate(WORDS, chat=False).text != made[()]
    assert made["--chat",] == made[()]


def test_stop_strings(run: Run, checkpoint: Path) -> None:
    engine = load(checkpoint)
    whole = engine.generate(WORDS)
    first, second = whole.text.split()[1:3]  # the first of them is also the end of the word before
    words = ("generate", checkpoint, WORDS, "--stop-string", second, "--stop-string", first)
    (row,) = rows(run(*words, "--json").stdout)
    assert row["text"] == whole.text[: whole.text.index(first)]
    assert (row["stop_string"], row["finish"]) == (first, "complete")
    assert row["response_tokens"] == len(engine.codec.encode(str(row["text"])))
    text, took = run(*words).stdout.splitlines()
    assert text == row["text"]
    assert took.endswith(f" · ran to the end · cut at {first!r}")
    assert rows(run("generate", checkpoint, WORDS, "--json").stdout)[0]["stop_string"] is None


def test_a_found_answer_is_watched_drawn_and_replayed(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    recipe = "prophet stop.tau.high=1 stop.tau.mid=1 region=delimiter('the ANSWER is', end=word)"
    file = tmp_path / "run.npz"
    watched = run("generate", checkpoint, WORDS, "--recipe", recipe, "--watch", "--trace", file).stdout
    (row,) = rows(run("generate", checkpoint, WORDS, "--recipe", recipe, "--json").stdout)
    assert row["finish"] == "settled"
    assert f"settled at step {row['steps']} of 24" in watched
    assert "⟦" in watched
    shown = run("trace", "show", file).stdout
    assert "▼" in shown
    assert "The final answer was first drafted" in shown
    assert str(row["answer"]) in shown
    again = run("trace", "replay", file, "--stop", "prophet(tau=staged(high=1.0))").stdout.splitlines()[1].split()
    assert again[:3] == ["0", "step", str(row["steps"])]
    never = run("trace", "replay", file, "--region", "boxed").stdout.splitlines()[1].split()
    assert never[1] == "unknown"


def test_seed_changes_a_sample(run: Run, checkpoint: Path) -> None:
    texts = [
        rows(run("generate", checkpoint, WORDS, "--json", "--temperature", "3", "--seed", seed).stdout)[0]["text"]
        for seed in ("1", "2", "1")
    ]
    assert texts[0] == texts[2] != texts[1]


def test_a_file_of_prompts(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    talk = [{"role": "user", "content": "Ann has 3 pens."}]
    lines = (WORDS, {"prompt": "Tom has 4 balls.", "id": "b"}, {"messages": talk, "level": 3})
    file.write_text("\n\n".join(map(json.dumps, lines)))
    found = {row["id"]: row["text"] for row in rows(run("generate", checkpoint, "--file", file, "--json").stdout)}
    engine = load(checkpoint)
    assert found == {
        1: engine.generate(WORDS).text,
        "b": engine.generate("Tom has 4 balls.").text,
        3: engine.generate("Ann has 3 pens.").text,
    }


def test_text_results_come_in_the_order_of_the_file(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Tom has 4 balls.\nAnn has 3 pens.\nAdam has 9 cakes.\n")
    lines = run("generate", checkpoint, "--file", file, "--batch-size", "2", "-r", "prophet").stdout.splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[1]", "[2]", "[3]"]


def test_standard_input(run: Run, checkpoint: Path) -> None:
    whole = run("generate", checkpoint, "-", "--json", stdin=f"\ufeff{WORDS}\n").stdout
    lines = run("generate", checkpoint, "--file", "-", "--json", stdin=f"{WORDS}\nTom has 4 balls.\n").stdout
    objects = run("generate", checkpoint, "--file", "-", "--json", stdin=json.dumps({"prompt": WORDS, "id": 7})).stdout
    assert rows(whole)[0]["text"] == rows(objects)[0]["text"] == load(checkpoint).generate(WORDS).text
    assert (len(rows(lines)), rows(objects)[0]["id"]) == (2, 7)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "Tom', "line 2 is not valid JSON"),
        ('{"promt": "Tom"}', "line 2: unknown key 'promt'; did you mean 'prompt'?"),
        ('{"prompt": 3}', 'line 2: "prompt" must be a string, got 3'),
        ('{"prompt": "Tom", "messages": []}', 'line 2: has both "prompt" and "messages"'),
        ('{"messages": [{"role": "user"}]}', "line 2: message 0: 'content' is missing"),
        ('{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', "line 2: message 0, part 0: unknown type"),
        ('{"messages": "Tom"}', 'line 2: "messages" must be a list'),
        ('{"prompt": "Tom", "id": [1]}', 'line 2: "id" must be a string or a whole number'),
        ("[1, 2]", "line 2: must be a string or an object"),
    ],
)
def test_a_bad_line_is_named_before_anything_is_decoded(
    run: Run, checkpoint: Path, tmp_path: Path, line: str, says: str
) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    file.write_text(f'"Tom has 4 balls."\n{line}\n')
    result = run("generate", checkpoint, "--file", file, "--out", out, code=2)
    assert result.stderr.startswith("error: ")
    assert f"prompts.jsonl, {says}" in result.stderr
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_a_prompt_that_cannot_be_decoded_fails_alone(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file, out, trace = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl", tmp_path / "run.npz"
    file.write_text('"Tom has 4 balls."\n{"prompt": "Tom owns a zeppelin", "id": "b"}\n"Ann has 3 pens."\n')
    result = run("generate", checkpoint, "--file", file, "--json", "--out", out, "--trace", trace, code=1)
    found = {row["id"]: row for row in rows(result.stdout)}
    assert found == {row["id"]: row for row in rows(out.read_text())}
    assert set(found) == {1, "b", 3}
    assert set(found["b"]) == {"id", "error"}
    assert str(found["b"]["error"]).startswith("the model's vocabulary has no 'owns'")
    assert found[3]["text"] == load(checkpoint).generate("Ann has 3 pens.").text
    assert "error: " in result.stderr
    assert "prompts.jsonl, line 2: the model's vocabulary has no 'owns'" in result.stderr
    assert "2 prompts" in result.stderr
    assert len(load_traces(trace)) == 2
    for words in ([], ["--watch"]):
        shown = run("generate", checkpoint, "--file", file, *words, code=1).stdout
        assert "zeppelin" not in shown
        assert load(checkpoint).generate("Ann has 3 pens.").text in shown
    file.write_text('"Tom owns a zeppelin"\n"a yacht"\n')
    assert "no prompt was decoded" in run("generate", checkpoint, "--file", file, code=1).stderr


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_a_prompt_that_fails_while_it_is_decoded_fails_alone(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def fails(self: Engine, outcome: Outcome, prompt: object, template: object) -> Any:
        if prompt == "Tom has 4 balls.":
            raise ModelError("step 2: nothing can be chosen")
        return complete(self, outcome, prompt, template)

    complete: Any = Engine.complete
    monkeypatch.setattr(Engine, "complete", fails)
    file, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    file.write_text("Tom has 4 balls.\nAnn has 3 pens.\n")
    result = run("generate", checkpoint, "--file", file, "--out", out, *words, code=1)
    assert "prompts.txt, line 1: step 2: nothing can be chosen" in result.stderr
    first, second = rows(out.read_text())
    assert first == {"id": 1, "error": "step 2: nothing can be chosen"}
    assert second["text"] == load(checkpoint).generate("Ann has 3 pens.").text
    alone = run("generate", checkpoint, "Tom has 4 balls.", *words, code=1)
    assert "error: step 2: nothing can be chosen" in alone.stderr


def test_one_prompt_that_cannot_be_decoded_is_an_error(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    result = run("generate", checkpoint, "Tom owns a zeppelin", "--json", "--out", tmp_path / "out.jsonl", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: the model's vocabulary has no 'owns'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--recipe", "prohpet"], "unknown recipe 'prohpet'; did you mean 'prophet'?"),
        (["--recipe", "prophet", "--set", "stop.tau.hihg=8"], "did you mean 'high'?"),
        (["--set", "stop.tau.high"], "write path=value"),
        (["--remasking", "low_confidense"], "did you mean 'low_confidence'?"),
        (["--layout", "wrd"], "did you mean 'word'?"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--threads", "0"], "threads must be from 1 to 1024, got 0"),
        (["--threads", str(2**70)], "threads must be from 1 to 1024"),
        (["--delay=-1"], "--delay must be from 0 to 3600, got -1.0"),
        (["--delay", "nan"], "--delay must be from 0 to 3600, got nan"),
        (["--dtype", "float31"], "did you mean 'float32'?"),
        (["--watch", "--json"], "use one of them"),
        (["--answer-length", "99"], "do not fit a window of 24"),
        (["--trace", "nowhere/a.npz"], "there is no folder nowhere"),
        (["--trace", "."], "cannot write .: it is a folder"),
        (["--trace", "x" * 300], "File name too long"),
        (["--out", "x" * 300], "File name too long"),
        (["--out", "./x.jsonl", "--trace", "x.jsonl"], "--out and --trace both write to x.jsonl"),
        (["--file", "a.jsonl"], "not both"),
        (["--stop-string", ""], "stop_strings must be a non-empty string or a list of them, got ['']"),
        (["--stop", "###"], "use stop_strings (--stop-string)"),
    ],
)
def test_mistakes_are_one_line(run: Run, checkpoint: Path, words: list[str], says: str) -> None:
    result = run("generate", checkpoint, WORDS, *words, code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_missing_things_are_named(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert "there is no folder 'no-such-model'" in run("generate", "no-such-model", WORDS, code=2).stderr
    assert "standard input is not UTF-8 text" in run("generate", checkpoint, "-", code=2, stdin=b"Tom \xff").stderr
    silent = run("generate", checkpoint, code=2, stdin=WORDS).stderr
    assert "give one prompt, or a file of them with --file; use - for either to read standard input" in silent
    assert (
        "cannot read the prompt file gone.jsonl: No such file"
        in run("generate", checkpoint, "--file", "gone.jsonl", code=2).stderr
    )
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "has no prompts" in run("generate", checkpoint, "--file", tmp_path / "empty.jsonl", code=2).stderr


def test_a_note_goes_to_stderr_and_into_the_json(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in checkpoint.iterdir():
        if path.name != "foretell.json":
            (bare / path.name).symlink_to(path)
    result = run("generate", bare, WORDS, "-r", "prophet", "--max-new-tokens", "12", "--json")
    assert result.stderr.startswith("warning: this window has no answer region")
    (row,) = rows(result.stdout)
    assert row["answer"] is None
    assert [f"warning: {note}" for note in row["notes"]] == result.stderr.splitlines()[:-1]  # type: ignore[attr-defined]
    (tmp_path / "p.txt").write_text(f"{WORDS}\n{WORDS}\n")
    words = ("--file", tmp_path / "p.txt", "-r", "prophet", "--max-new-tokens", "12", "--json")
    assert [one["notes"] for one in rows(run("generate", bare, *words).stdout)] == [row["notes"]] * 2


def test_out_and_trace(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    file, out, trace = tmp_path / "prompts.txt", tmp_path / "out.jsonl", tmp_path / "run.npz"
    file.write_text("Tom has 4 balls.\nAnn has 3 pens.\n")
    result = run("generate", checkpoint, "--file", file, "--out", out, "--trace", trace, "-r", "prophet")
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("2 prompts · ")
    assert {row["id"] for row in rows(out.read_text())} == {1, 2}
    traces = load_traces(trace)
    steps = {row["id"]: row["steps"] for row in rows(out.read_text())}
    assert [len(one) for one in traces] == [steps[1], steps[2]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompts.txt", "run.npz"]


def test_what_an_interrupted_run_left_is_not_overwritten(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.part").write_text("precious\n")
    result = run("generate", checkpoint, WORDS, "--out", tmp_path / "out.jsonl", code=2)
    assert "holds the finished results of an interrupted run" in result.stderr
    assert (tmp_path / "out.jsonl.part").read_text() == "precious\n"


def test_a_file_that_cannot_be_written_is_an_error(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foretell.engine.trace_files.save_traces", full)
    result = run("generate", checkpoint, WORDS, "--trace", tmp_path / "run.npz", "--json", code=1)
    assert "error: [Errno 28] No space left on device" in result.stderr
    assert len(rows(result.stdout)) == 1


def test_a_bar_for_many_prompts_on_a_terminal(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=80, record=True)
    monkeypatch.setattr("foretell.cli.console.err", lambda: screen)
    (tmp_path / "prompts.txt").write_text("Tom has 4 balls.\nAnn has 3 pens.\n")
    result = run("generate", checkpoint, "--file", tmp_path / "prompts.txt", "--json")
    assert {row["id"] for row in rows(result.stdout)} == {1, 2}
    assert "2/2" in screen.export_text()
