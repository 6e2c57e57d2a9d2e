"""Training files: errors name the line and are raised before the first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from foretell.errors import ForetellError, RecipeError, StorageError, VocabularyError
from foretell.tasks import Piece, Problem
from foretell.tasks.pairs import Pairs
from foretell.train.batches import Encoder
from foretell.train.config import TrainRecipe
from foretell.train.log import Log
from tests.conftest import TINY


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_both_sides_of_the_split_are_needed(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "Tom", "response": "Tom"})
    with pytest.raises(RecipeError, match=r"1 pairs, of which [01] are held out"):
        Pairs.read(written(tmp_path / "few.jsonl", line), "few", 8, 8)
    many = [json.dumps({"prompt": f"Tom {i}", "response": "Tom"}) for i in range(99)]
    assert len(Pairs.read(written(tmp_path / "many.jsonl", *many), "many", 8, 8).problems) == 99


@pytest.mark.parametrize("line", ["{", "[" * 100_000, "3", '{"prompt": "a"}', '{"prompt": "a", "response": 4}'])
def test_bad_lines_are_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"bad\.jsonl, line 1"):
        Pairs.read(written(tmp_path / "bad.jsonl", line), "bad", 8, 8)


@pytest.mark.parametrize("name", ["none.jsonl", "x" * 300, "."])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the file of the task 'mine'"):
        Pairs.read(tmp_path / name, "mine", 8, 8)
    with pytest.raises(StorageError, match="cannot read the recipe"):
        TrainRecipe.read(tmp_path / name)


def test_unknown_words_and_long_responses_are_refused() -> None:
    encoder = Encoder(Tokenizer.from_file(str(TINY / "tokenizer.json")))
    with pytest.raises(VocabularyError, match="qwerty"):
        encoder.lay_out(Problem("x", "Tom", (Piece("The answer is qwerty", 2),), "", "", 0), 8, pinned=False)
    with pytest.raises(RecipeError, match="does not fit a window of 2"):
        encoder.lay_out(Problem("x", "Tom", (Piece("The answer is Tom", 2),), "", "", 0), 2, pinned=False)


@pytest.mark.parametrize(
    "text", ["steps = [", "steps = " + "[" * 100_000, "steps = 3", 'model = "m"\nout = "o"\nmasking = { typo = 1 }']
)
def test_broken_recipes_are_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ForetellError, match=r"recipe\.toml"):
        TrainRecipe.read(written(tmp_path / "recipe.toml", text))


def test_a_log_cut_by_a_kill_is_read(tmp_path: Path) -> None:
    recipe = TrainRecipe(model=TINY, out=tmp_path, steps=10, mix={"word": 1.0}, rows={"word": 1})
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in Log(recipe, 0, 2).lines()] == [1, 2]
