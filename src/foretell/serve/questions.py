"""The bodies of decisions, in OpenAI's dialect and in System One's, and how their answers are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from foretell.decide.answers import (
    AnyAnswer,
    ChoiceAnswer,
    Decision,
    PredicateAnswer,
    ScoreAnswer,
    choice_confidence,
    score_confidence,
)
from foretell.decide.plan import Input
from foretell.decide.questions import Choice, Predicate, Question, Score, describe_choices
from foretell.errors import ForetellError, show
from foretell.serve.bodies import Count, Name
from foretell.serve.problems import Problem, problem_of

MOST_QUESTIONS = 400  # in OpenAI's dialect
TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal", "text": "text"}  # and their content
ROLES = ("assistant", "developer", "system", "user")


class DecisionOptions(msgspec.Struct, kw_only=True):
    """The parameters of both formats: the model, and Foretell's own parameters."""

    model: Name
    recipe: Name | None = None
    template: Name | None = None
    think: int | None = None  # masks to think in before the answers
    steps: Count | None = None
    orders: int | None = None  # 2 also reads reversed choices
    on_unsure: str | None = None
    sure: float | None = None
    seed: int | None = None
    stream: bool | None = None  # send the probabilities of every step


class DecisionBody(DecisionOptions, kw_only=True):
    """OpenAI's dialect."""

    input: Any
    questions: list[dict[str, Any]]


class SystemOneBody(DecisionOptions, kw_only=True):
    """System One's dialect."""

    state: Any
    questions: dict[str, dict[str, Any]]


def read_input(body: DecisionBody | SystemOneBody) -> Input:
    """Return the input as text or messages. Raises Problem that names a part which is not served."""
    if isinstance(body, SystemOneBody):
        return _write(body.state)
    if isinstance(body.input, str):
        return body.input
    if not isinstance(body.input, list) or not body.input:
        raise _refuse(f"input must be a text or a list of messages, got {show(body.input)}", "input")
    return [_read_message(f"input[{place}]", one) for place, one in enumerate(body.input)]


def _read_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _refuse(f"{where} must be a message, got {show(message)}", "input")
    kind = message.get("type", "message")
    if kind != "message":
        raise _refuse(f"{where} is a {kind}, which is not supported; only messages are", "input")
    _check_keys(where, message, ("content", "phase", "role", "type"))
    if message.get("role") not in ROLES:
        raise _refuse(f"{where}: role must be one of {', '.join(ROLES)}, got {show(message.get('role'))}", "input")
    return {"role": message["role"], "content": _read_content(where, message.get("content"), "input")}


def _read_content(where: str, content: Any, param: str) -> str:
    """Return a text, or the parts of a content as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _refuse(f"{where} must be a text or a list of parts, got {show(content)}", param)
    return "\n".join(_read_part(f"{where}, part {place}", part, param) for place, part in enumerate(content))


def _read_part(where: str, part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_json":
        _check_keys(where, part, ("data", "type"))
        return _write(part.get("data"))
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise _refuse(f"{where} is {show(kind or part)}, which is not supported; only text and JSON are", param)
    _check_keys(where, part, (TEXT_PARTS[kind], "type"))
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise _refuse(f"{where}: {TEXT_PARTS[kind]} must be a text, got {show(text)}", param)
    return text


def _check_keys(where: str, value: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in value:
        if key not in allowed and value[key] is not None:
            raise _refuse(f"{where}: {key} is not supported; leave it out", "input")


def _write(value: Any) -> str:
    """Return a text as it is, and any other value as compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _refuse(message: str, param: str) -> Problem:
    return Problem(400, message, param=param, code="invalid_value")


def read_questions(body: DecisionBody | SystemOneBody) -> dict[str, Question]:
    """Return the questions by name; those without a name get one. Raises Problem that names a bad question."""
    if isinstance(body, SystemOneBody):
        return {name: _read_question(f"questions.{name}", one, _ask_system_one) for name, one in body.questions.items()}
    if not 1 <= len(body.questions) <= MOST_QUESTIONS:
        raise _refuse(f"from 1 to {MOST_QUESTIONS} questions may be asked, got {len(body.questions)}", "questions")
    made: dict[str, Question] = {}
    for place, one in enumerate(body.questions):
        name = one.get("name") or f"q{place + 1}"
        if not isinstance(name, str) or name in made:
            raise _refuse(
                f"questions[{place}]: the name {show(name)} must be a text that no other question has", "questions"
            )
        made[name] = _read_question(f"questions[{place}]", one, _ask_openai)
    return made


def check_repeated(raw: bytes) -> None:
    """Raise Problem if a name is given twice in one object of the questions, where parsing keeps only the last one.

    `raw` is a body that is valid JSON.
    """
    try:
        body = json.loads(raw, object_pairs_hook=list, parse_int=str, parse_float=str)  # an object is a list of pairs
        for name, value in body:
            if name == "questions":
                _check_names(name, value)
    except RecursionError:
        raise _refuse("the body nests too deeply", "questions") from None


def _check_names(where: str, value: Any) -> None:
    if not isinstance(value, list):
        return
    seen = set[str]()
    for place, one in enumerate(value):
        if not isinstance(one, tuple):  # `value` is a list
            _check_names(f"{where}[{place}]", one)
            continue
        name, inner = one
        if name in seen:
            raise _refuse(f"{where}: {show(name)} is given twice", "questions")
        seen.add(name)
        _check_names(f"{where}.{name}", inner)


def _read_question(where: str, one: Any, read: Callable[[str, dict[str, Any]], Question]) -> Question:
    try:
        return read(where, one)
    except ForetellError as error:
        raise problem_of(type(error)(f"{where}: {error}"), "questions") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise _refuse(
            f"{where} does not have the shape of a {show(one.get('type'))} question: {error}", "questions"
        ) from None


def _ask_openai(where: str, one: dict[str, Any]) -> Question:
    kind, instructions = one.get("type"), _read_content(f"{where}, instructions", one.get("instructions"), "questions")
    if kind == "predicate":
        return Predicate(instructions)
    if kind == "choice":
        listed = [(each["value"], each.get("description")) for each in one["choices"]]
        return Choice(instructions, describe_choices(listed))
    if kind == "score":
        return Score(instructions, [_join(each["label"], each.get("description")) for each in one["levels"]])
    raise _refuse(f"{where}: type must be predicate, choice or score, got {show(kind)}", "questions")


def _ask_system_one(where: str, one: dict[str, Any]) -> Question:
    kind, instructions = one.get("type"), _write(one.get("instructions") or "")
    if kind == "noul":
        meant = {"true": "Yes", "false": "No"}
        criteria = one.get("criteria") or {}
        said = [f"{meant[key]}: {_write(criteria[key])}" for key in meant if criteria.get(key) is not None]
        return Predicate("\n".join([instructions, *said]))
    if kind == "choice":
        return Choice(instructions, {label: each and _write(each) for label, each in one["criteria"].items()})
    if kind == "score":
        return Score(instructions, [_write(each) for each in one["criteria"]])
    raise _refuse(f"{where}: type must be noul, choice or score, got {show(kind)}", "questions")


def _join(label: str, description: str | None) -> str:
    return label if description is None else f"{label}: {description}"


def write_decision(body: DecisionBody | SystemOneBody, decision: Decision, model: str) -> dict[str, Any]:
    """Return a decision in the dialect in which it was asked for."""
    made = decision.answers
    count = decision.prompt_tokens
    usage: dict[str, Any] = {"input_tokens": count, "output_tokens": len(made)}
    start = {"model": model, "foretell": describe_decision(decision)}
    if isinstance(body, SystemOneBody):
        return start | {"usage": usage, "answers": {name: _system_one(one, body, name) for name, one in made.items()}}
    details = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": count + len(made),
    }
    asked = zip(body.questions, made.values(), strict=True)
    return start | {"usage": usage | details, "answers": [_openai(one, answer) for one, answer in asked]}


def probabilities_of(answer: AnyAnswer) -> Mapping[Any, float]:
    """Return the calibrated probabilities of the labels, or those of the model if there is no calibration."""
    if isinstance(answer, PredicateAnswer):
        yes = answer.probability if answer.calibrated is None else answer.calibrated
        return {True: yes, False: 1 - yes}
    assert isinstance(answer, ChoiceAnswer | ScoreAnswer), "only these are asked for over HTTP"
    return answer.probabilities if answer.calibrated is None else answer.calibrated


def _confidence(answer: ChoiceAnswer | ScoreAnswer) -> float:
    """Return the confidence that belongs to the probabilities in the response."""
    p = np.array(list(probabilities_of(answer).values()))
    return choice_confidence(p) if isinstance(answer, ChoiceAnswer) else score_confidence(p)


def _score(probabilities: Mapping[Any, float]) -> float:
    return sum(place * one for place, one in enumerate(probabilities.values()))


def _openai(question: Mapping[str, Any], answer: AnyAnswer) -> dict[str, Any]:
    start = {"name": question.get("name"), "type": question["type"]}
    if answer.abstained:
        return start | {"type": "refusal"}
    shown = probabilities_of(answer)
    if isinstance(answer, PredicateAnswer):
        return start | {"probability": shown[True]}
    if isinstance(answer, ChoiceAnswer):
        listed = [{"value": value, "probability": one} for value, one in shown.items()]
        return start | {"choice": answer.value, "confidence": _confidence(answer), "probabilities": listed}
    assert isinstance(answer, ScoreAnswer), "the third kind"
    labels = [level["label"] for level in question["levels"]]
    levels = [
        {"value": place, "label": label, "probability": one}
        for place, (label, one) in enumerate(zip(labels, shown.values(), strict=True))
    ]
    return start | {"score": _score(shown), "confidence": _confidence(answer), "probabilities": levels}


def _system_one(answer: AnyAnswer, body: SystemOneBody, name: str) -> dict[str, Any]:
    shown = probabilities_of(answer)
    extra = {"abstained": True} if answer.abstained else {}
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": shown[True]} | extra
    if isinstance(answer, ChoiceAnswer):
        best = max(shown, key=lambda label: shown[label])  # also if it abstains: the format needs a choice
        found = {str(label): one for label, one in shown.items()}
        return {"type": "choice", "choice": best, "confidence": _confidence(answer), "probabilities": found} | extra
    assert isinstance(answer, ScoreAnswer), "the third kind"
    levels = [str(place) for place in range(len(shown))]
    return {
        "type": "score",
        "score": _score(shown),
        "confidence": _confidence(answer),
        "legend": dict(zip(levels, body.questions[name]["criteria"], strict=True)),
        "probabilities": dict(zip(levels, shown.values(), strict=True)),
    } | extra


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return what the decision took, and what each answer says beyond its dialect."""
    return {
        "steps": decision.steps,
        "forwards": decision.forwards,
        "seconds": round(decision.seconds, 4),
        "notes": list(decision.notes),
        "answers": {name: describe_answer(one) for name, one in decision.answers.items()},
    }


def describe_answer(one: AnyAnswer) -> dict[str, Any]:
    """Return details of how an answer was found."""
    return {
        "gap": round(one.gap, 4),
        "label_mass": None if one.label_mass is None else round(one.label_mass, 4),
        "thinking": None if one.thinking is None else round(one.thinking, 4),
        "steps": one.steps,
        "forwards": one.forwards,
        "reads": one.reads,
        "abstained": one.abstained,
        "exhausted": one.exhausted,
        "conformal": None if one.conformal is None else list(one.conformal),
    }
