"""Layouts of a checkpoint folder: values that no request could have are refused when the folder is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.engine.folder import layouts_of
from foretell.errors import ModelError


def described(folder: Path, value: Any) -> Path:
    (folder / "foretell.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"stop_at_eos": "no"}, "'stop_at_eos' must be true or false or null, got 'no'"),
        ({"stop_at_eos": 1}, "'stop_at_eos' must be true or false or null, got 1"),
        ({"max_new_tokens": True}, "'max_new_tokens' must be a whole number or null, got True"),
        ({"max_new_tokens": -3}, "max_new_tokens must be from 1 to 1048576, got -3"),
        ({"max_new_tokens": 10**30}, "max_new_tokens"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"answer_length": 0}, "answer_length must be from 1 to 1048576, got 0"),
        ({"answer_length": 2, "answer_start": -1}, "answer_start must be from 0 to 1048576, got -1"),
        ({"answer_length": 300}, "do not fit a window of 256"),
        ({"suffix": "The answer is", "answer_length": 300}, "do not fit a window of 256"),
        ({"suffix": 3}, "'suffix' must be a text or null, got 3"),
        ({"temperature": float("nan")}, "temperature must be from 0 to 1000000, got nan"),
        ({"cfg_scale": float("inf")}, "guidance must be from 0 to 1000000, got inf"),
        ({"answer_length": "\ud800"}, "surrogates not allowed"),
        ({"remasking": "low"}, "unknown remasking 'low'"),
        ({"seed": 3}, "unknown key 'seed'"),
        ({"special_tokens": True}, "unknown key 'special_tokens'"),
    ],
)
def test_a_layout_that_no_request_could_have(tmp_path: Path, layout: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=rf"foretell\.json, layout 'odd': .*{says}"):
        layouts_of(described(tmp_path, {"layouts": {"fine": {}, "odd": layout}}))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "it must be an object"),
        ({"layouts": []}, "'layouts' must be an object"),
        ({"layouts": {"a": []}}, "must be an object, got a list"),
        ({"default": 3}, "'default' must be a text or null, got 3"),
        ({"default": "b", "layouts": {"a": {}}}, "unknown layout 'b'"),
        ({"layout": {}}, "unknown key 'layout'; did you mean 'layouts'"),
    ],
)
def test_a_file_of_another_shape(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(ModelError, match=rf"foretell\.json: .*{says}"):
        layouts_of(described(tmp_path, value))


def test_a_suffix_needs_no_answer_length(tmp_path: Path) -> None:
    value = {"default": "a", "layouts": {"a": {"suffix": "The answer is", "answer_start": 9}}}
    assert layouts_of(described(tmp_path, value)) == value
