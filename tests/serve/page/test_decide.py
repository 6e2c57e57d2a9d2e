"""The Decide view: questions, bars that follow the passes, what is settled and what is not, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import OpenPage, reply_with, violations, wait_until

pytestmark = pytest.mark.browser
DECISIONS = "/v1/decisions"
PHONE = (390, 844)
STORY, ASKED = "Emma has 56 pens. She throws away 25.", "How many pens are left?"
SURE = ["choice", ASKED, "0 to 24", "25 to 49", "50 to 74", "75 to 99"]
UNSURE = ["choice", ASKED, "0 to 4", "5 to 15", "16 to 21", "22 to 99"]
SETTLED, TORN = [0.02, 0.95, 0.03], [0.02, 0.55, 0.43]
FAKE = ["choice", "Which?", "red", "green", "blue"]
Reply = Callable[[Any], None]


def link(*questions: list[str], text: str = "x", **more: str) -> dict[str, str]:
    return {"prompt": text, "questions": json.dumps(questions), **more}


def finish(page: Any) -> None:
    page.locator(".clock .after:not(:empty)").wait_for()


def listed(shares: list[float], names: Any = ("red", "green", "blue")) -> list[dict[str, Any]]:
    return [{"value": value, "probability": one} for value, one in zip(names, shares, strict=True)]


def passing(*shares: list[float], name: str = "q1") -> dict[str, Any]:
    return {"object": "decision.preview", "step": 0, "questions": {name: listed(*shares)}}


def decided(answers: list[dict[str, Any]], first: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the response with these answers, whose questions are named from q1 or from a later place."""
    work: dict[str, Any] = {"forwards": 2, "label_mass": 0.99, "abstained": False, "conformal": None} | changes
    named = {f"q{first + place}": work for place in range(len(answers))}
    return {
        "object": "decision",
        "answers": answers,
        "foretell": {"forwards": work["forwards"], "seconds": 0.2, "notes": [], "answers": named},
    }


def chosen(shares: list[float]) -> dict[str, Any]:
    return {"type": "choice", "probabilities": listed(shares)}


def reply(*shares: list[float], answer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Reply]:
    """Return a route that shows these probabilities pass by pass; the last ones are the answer."""
    last = decided([answer or chosen(shares[-1])], **changes)
    return {DECISIONS: reply_with(*(passing(one) for one in shares), last, "data: [DONE]")}


def answering(route: Any, sent: list[Any], answers: list[dict[str, Any]]) -> None:
    """Note the body of a request, and answer it at once."""
    body = route.request.post_data_json
    sent.append(body)
    first = int(body["questions"][0]["name"][1:])
    names = ("red", "green", "blue")
    shown = {one["name"]: listed(SETTLED, names) for one in body["questions"]}
    preview = {"object": "decision.preview", "step": 0, "questions": shown}
    reply_with(preview, decided(answers[: len(body["questions"])], first), "data: [DONE]")(route)


def together(route: Any) -> None:
    route.fulfill(json=route.fetch().json() | {"together": True})


def percents(page: Any) -> list[str]:
    found: list[str] = page.locator(".asked .share").all_inner_texts()
    return found


def test_before_the_first_run_the_examples_are_the_page(open_page: OpenPage) -> None:
    page = open_page("decide")
    example = page.locator(".view:visible .example").first
    example.click()
    finish(page)
    text = page.get_by_label("Text", exact=True).input_value()
    assert example.locator(".words").text_content() == f"{text} How many plums does he have now?"
    assert not example.is_visible()
    card = page.locator(".asked")
    assert card.get_attribute("class").split() == ["card", "asked", "settled"]
    taken = page.locator(".clock b").inner_text()
    assert card.locator(".said").inner_text() == f"Settled after {taken} passes."
    assert page.locator(".verdict").inner_text() == "Settled: 0 to 22."


def test_every_example_can_be_picked_in_the_form(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce")
    for name, questions in (("score", 1), ("two questions", 2), ("choice", 1)):
        page.get_by_role("button", name=name, exact=True).click()
        finish(page)
        assert page.locator(".asked").count() == questions
        assert page.locator(".question").count() == questions
    assert page.locator(".status.fail").count() == 0


def test_one_question_is_settled_and_the_other_is_not(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce", **link(SURE, UNSURE, text=STORY))
    finish(page)
    sure, unsure = page.locator(".asked").all()
    edges = [card.evaluate("node => getComputedStyle(node).borderTopColor") for card in (sure, unsure)]
    assert edges[0] == sure.locator(".said").evaluate("node => getComputedStyle(node).color") != edges[1]
    assert sure.locator(".badge").inner_text() == "settled"
    assert unsure.locator(".badge").inner_text() == "not sure"
    assert "It can rule out neither “16 to 21” nor “22 to 99”." in unsure.locator(".said").inner_text()
    assert unsure.locator(".option.open").count() == 2
    assert page.locator(".verdict").inner_text() == "1 of 2 questions settled."
    passes = [int(card.locator(".said").inner_text().split("after ")[1].split()[0]) for card in (sure, unsure)]
    assert int(page.locator(".clock b").inner_text()) == sum(passes)
    assert "each is asked on its own" in page.locator(".clock").inner_text()


def test_an_answer_that_is_withheld_is_shown_as_such(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce", **link(UNSURE, text=STORY, unsure="abstain"))
    finish(page)
    assert page.locator(".asked .badge").inner_text() == "abstained"
    assert page.locator(".asked .said").inner_text().startswith("Abstained after 3 passes. It can rule out neither")
    assert page.locator(".verdict").inner_text() == "No answer: it is not sure enough."
    assert page.get_by_label("If it is not sure").input_value() == "abstain"
    assert percents(page)[2:] == ["57%", "43%"]  # of the last pass, as the response has none


def test_bars_follow_the_passes(open_page: OpenPage) -> None:
    replies = reply([0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.002, 0.997, 0.001], forwards=3)
    page = open_page("decide", motion="reduce", replies=replies, **link(FAKE))
    finish(page)
    assert percents(page) == ["< 1%", "> 99%", "< 1%"]
    slider = page.get_by_role("slider", name="Pass")
    for at, (shares, leading) in enumerate(((["70%", "20%", "10%"], "red"), (["30%", "60%", "10%"], "green")), start=1):
        slider.fill(str(at))
        assert percents(page) == shares
        assert page.locator(".asked .said").inner_text() == f"Pass {at}: leaning to “{leading}”."
        assert page.locator(".asked.settled, .asked .badge:visible").count() == 0
        assert page.locator(".clock b").inner_text() == str(at)
    green = page.get_by_role("meter", name="green")
    assert (green.get_attribute("aria-valuenow"), green.get_attribute("aria-valuetext")) == ("60", "60%")
    widths = page.locator(".asked .track").evaluate_all(
        "all => all.map(track => track.firstChild.offsetWidth / track.offsetWidth)"
    )
    assert widths == pytest.approx([0.3, 0.6, 0.1], abs=0.01)
    page.locator("body").press("ArrowRight")
    assert page.locator(".asked.settled .said").inner_text() == "Settled after 3 passes."


def test_bars_grow_while_they_are_watched(open_page: OpenPage) -> None:
    page = open_page("decide")
    page.evaluate("""() => {
        window.seen = [];
        const look = () => {
            const bar = document.querySelector(".asked .option:nth-child(4) .track span");
            if (bar) seen.push([bar.offsetWidth, [...document.querySelectorAll(".stack:not([hidden]) .card")]
                .map(card => [card.offsetTop, card.offsetHeight]).join()]);
            requestAnimationFrame(look);
        };
        look();
    }""")
    page.get_by_role("button", name="score", exact=True).click()
    finish(page)
    wait_until(lambda: page.evaluate("seen.at(-1)[0]") > 700, "the bar of the answer is long")
    seen = page.evaluate("seen")
    assert len({width for width, _ in seen}) > 3  # it was seen while it grew
    assert len({places for _, places in seen}) == 1  # and nothing moved


@pytest.mark.parametrize(
    ("shares", "changes", "sentence"),
    [
        (TORN, {}, "Not sure after 2 passes. It can rule out neither “green” nor “blue”."),
        ([0.3, 0.4, 0.3], {}, "Not sure after 2 passes. It cannot rule out “red”, “green” or “blue”."),
        ([0.04, 0.92, 0.04], {}, "Settled after 2 passes."),
        ([0.049, 0.89, 0.049], {}, "Not sure after 2 passes. Only 89% for “green”."),
        (TORN, {"conformal": ["green", "red"]}, "Not sure after 2 passes. It can rule out neither “red” nor “green”."),
        (TORN, {"conformal": []}, "Not sure after 2 passes. It can rule out neither “green” nor “blue”."),
    ],
)
def test_what_is_said(open_page: OpenPage, shares: list[float], changes: Any, sentence: str) -> None:
    page = open_page("decide", motion="reduce", replies=reply(shares, **changes), **link(FAKE))
    finish(page)
    assert page.locator(".asked .said").inner_text() == sentence


def test_options_that_the_model_would_not_write_settle_nothing(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce", replies=reply(SETTLED, label_mass=0.03), **link(FAKE))
    finish(page)
    assert page.locator(".asked.settled").count() == 0
    assert "All options together have 3% of its probability" in page.locator(".asked .said").inner_text()


def test_predicates_and_scores(open_page: OpenPage) -> None:
    yes = {"type": "predicate", "probability": 0.97}
    levels = listed([0.01, 0.04, 0.95], [0, 1, 2])
    score = {"type": "score", "score": 1.94, "probabilities": levels}
    names = {"q1": listed([0.6, 0.4], [True, False]), "q2": levels}
    preview = {"object": "decision.preview", "step": 0, "questions": names}
    replies = {"/foretell/info": together, DECISIONS: reply_with(preview, decided([yes, score]), "data: [DONE]")}
    asked = link(["predicate", "Is it?"], ["score", "", "low", "middle", "high"])
    page = open_page("decide", motion="reduce", replies=replies, **asked)
    finish(page)
    assert page.locator(".asked h2").all_inner_texts() == ["Is it?", "How much?"]
    assert percents(page) == ["97%", "3%", "1%", "4%", "95%"]
    assert page.locator(".asked .said").last.inner_text() == (
        "Settled after 2 passes. On average 1.9 on a scale from 0 to 2."
    )
    assert page.locator(".verdict").inner_text() == "Both questions settled."


def test_questions_are_edited_and_sent(open_page: OpenPage) -> None:
    sent: list[Any] = []
    answers = [chosen(SETTLED), {"type": "predicate", "probability": 0.95}]
    page = open_page(
        "decide", replies={"/foretell/info": together, DECISIONS: lambda route: answering(route, sent, answers)}
    )
    page.get_by_label("Text", exact=True).fill("a text")
    page.get_by_label("What do you want to know?").fill("Which?")
    page.get_by_label("Options, one per line").fill("red\n\n green \nblue")
    page.get_by_role("button", name="Add a question").click()
    assert page.get_by_label("What do you want to know?").nth(1).evaluate("node => node === document.activeElement")
    page.keyboard.type("Is it?")
    page.get_by_role("group", name="Question 2").get_by_text("Yes or no").click()
    page.get_by_role("button", name="Add a question").click()
    page.get_by_role("button", name="Remove question 3").press("Enter")
    assert page.get_by_role("button", name="Remove question 2").evaluate("node => node === document.activeElement")
    page.get_by_label("Text", exact=True).press("Control+Enter")
    finish(page)
    (body,) = sent
    assert body["input"] == "a text"
    assert body["on_unsure"] == "answer"
    assert body["questions"] == [
        {"type": "choice", "name": "q1", "instructions": "Which?",
         "choices": [{"value": one} for one in ("red", "green", "blue")]},
        {"type": "predicate", "name": "q2", "instructions": "Is it?"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "complaint"),
    [("red", "Give at least two, one per line."), ("red\nblue\nred", "“red” is listed twice.")],
)
def test_options_are_checked_before_they_are_sent(open_page: OpenPage, options: str, complaint: str) -> None:
    sent: list[Any] = []
    page = open_page("decide", replies={DECISIONS: lambda route: answering(route, sent, [chosen(SETTLED)])})
    field = page.get_by_label("Options, one per line")
    page.get_by_label("Text", exact=True).fill("a text")
    field.fill(options)
    page.get_by_role("button", name="Decide").click()
    assert field.evaluate("node => node.validationMessage") == complaint
    field.fill("red\ngreen\nblue")
    page.get_by_role("button", name="Decide").click()
    finish(page)
    assert len(sent) == 1


def test_a_link_keeps_the_text_and_the_questions(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce")
    page.get_by_role("button", name="two questions", exact=True).click()
    finish(page)
    shared, said = page.url, page.locator(".asked").all_inner_texts()
    other = open_page("watch", motion="reduce")
    other.goto(shared)
    finish(other)
    assert other.locator(".asked").all_inner_texts() == said
    assert other.locator("nav [aria-current]").inner_text() == "Decide"
    assert other.get_by_label("Options, one per line").nth(1).input_value() == "\n".join(UNSURE[2:])


@pytest.mark.parametrize("questions", ["nonsense", "[]", '[["guess", "x"]]', '[["choice", 1]]'])
def test_a_damaged_link_leaves_the_questions_blank(open_page: OpenPage, questions: str) -> None:
    page = open_page("decide", prompt="x", questions=questions)
    page.get_by_label("Options, one per line").wait_for()
    assert page.get_by_label("Text", exact=True).input_value() == "x"
    assert page.locator(".question").count() == 1
    assert page.get_by_label("What do you want to know?").input_value() == ""


def test_an_error_is_a_sentence_in_the_card_of_its_question(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce", **link(SURE, ["predicate", "Is this spam?"], text=STORY))
    error = page.locator(".asked").nth(1).locator(".status.fail")
    error.wait_for()
    assert "'spam'" in error.inner_text()
    assert "questions[" not in error.inner_text()
    assert page.locator(".asked").first.locator(".badge").inner_text() == "settled"
    assert page.locator(".verdict").inner_text() == "1 of 2 questions settled."


@pytest.mark.parametrize(
    ("message", "place", "shown"),
    [
        ("questions[1]: the choices must differ", ".asked:nth-child(2)", "the choices must differ"),
        ("the text is too long", ".clock", "the text is too long"),
    ],
)
def test_one_request_tells_which_question_is_wrong(open_page: OpenPage, message: str, place: str, shown: str) -> None:
    def refuse(route: Any) -> None:
        route.fulfill(status=400, json={"error": {"message": message}})

    replies = {"/foretell/info": together, DECISIONS: refuse}
    page = open_page("decide", replies=replies, **link(FAKE, FAKE))
    page.locator(".status.fail").wait_for()
    assert page.locator(".status.fail").count() == 1
    assert page.locator(f"{place} .status.fail").inner_text() == shown
    page.get_by_role("button", name="Decide").wait_for()


def test_an_error_of_all_questions_is_said_once(open_page: OpenPage) -> None:
    page = open_page("decide", **link(SURE, UNSURE, text="zzz"))
    page.locator(".status.fail:visible").wait_for()
    assert page.locator(".status.fail:visible").count() == 1
    assert "zzz" in page.locator(".clock .status.fail").inner_text()


def test_a_decision_that_breaks_keeps_what_was_shown(open_page: OpenPage) -> None:
    replies = {DECISIONS: reply_with(passing(TORN), ": bye")}
    page = open_page("decide", motion="reduce", replies=replies, **link(FAKE))
    page.locator(".clock .status.fail").wait_for()
    assert page.locator(".status.fail").inner_text() == "The connection ended before the decision was made."
    assert percents(page) == ["2%", "55%", "43%"]
    assert page.locator(".asked.settled").count() == 0


def test_a_decision_that_waits_shows_its_place_and_can_be_stopped(open_page: OpenPage) -> None:
    page = open_page("decide")
    page.evaluate("""() => {
        const real = window.fetch;
        window.fetch = (address, options) => !String(address).includes("decisions") ? real(address, options)
            : Promise.resolve(new Response(new ReadableStream({ start(control) {
                control.enqueue(new TextEncoder().encode(": queued 3\\n\\n"));
                options.signal.addEventListener("abort", () => control.error(new DOMException("", "AbortError")));
            } })));
    }""")
    page.get_by_role("button", name="score", exact=True).click()
    page.get_by_text("Waiting: place 3 in the queue.").wait_for()
    assert set(percents(page)) == {"–"}
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("button", name="Decide").wait_for()
    assert page.locator(".status.fail").count() == 0


def test_space_plays_the_passes_again(open_page: OpenPage) -> None:
    page = open_page("decide", replies=reply(*[TORN] * 30, SETTLED), **link(FAKE))
    finish(page)
    page.locator("body").press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    assert page.locator(".asked.settled").count() == 0
    finish(page)
    assert page.locator(".asked.settled").count() == 1


def test_the_end_is_told_to_screen_readers(open_page: OpenPage) -> None:
    page = open_page("decide", motion="reduce", replies=reply(TORN, SETTLED), **link(FAKE))
    finish(page)
    wait_until(lambda: page.locator("#live").text_content() == "Which? Settled after 2 passes.", "the end is told")


def test_reduced_motion_shows_the_end_at_once(open_page: OpenPage) -> None:
    for motion, seconds in (("reduce", "0s"), ("no-preference", "0.4s, 0.3s")):
        page = open_page("decide", motion=motion, replies=reply(TORN, SETTLED), **link(FAKE))
        finish(page)
        bar = page.locator(".asked .track span").first
        assert bar.evaluate("node => getComputedStyle(node).transitionDuration") == seconds


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("state", ["before", "finished", "error", "abstained"])
def test_axe_finds_nothing(open_page: OpenPage, axe: str, theme: str, size: tuple[int, int], state: str) -> None:
    asked = {
        "before": {},
        "finished": link(SURE, UNSURE, text=STORY),
        "error": link(SURE, ["predicate", "Is this spam?"], text=STORY),
        "abstained": link(UNSURE, text=STORY, unsure="abstain"),
    }
    page = open_page("decide", motion="reduce", theme=theme, size=size, **asked[state])
    if state == "before":
        page.locator(".hero").wait_for()
    else:
        finish(page)
    assert violations(page, axe) == []


def test_long_words_fit_a_phone(open_page: OpenPage) -> None:
    long = ["supercalifragilistic" * 4, "1234567890 " * 20, "z" * 90]
    last = {"type": "choice", "probabilities": listed(TORN, long)}
    preview = {"object": "decision.preview", "step": 0, "questions": {"q1": listed(TORN, long)}}
    replies = {DECISIONS: reply_with(preview, decided([last]), "data: [DONE]")}
    page = open_page("decide", motion="reduce", size=PHONE, replies=replies, **link(["choice", "w" * 120, *long]))
    finish(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_a_phone_sees_the_decision_that_it_started(open_page: OpenPage) -> None:
    page = open_page("decide", size=PHONE, motion="reduce")
    page.locator(".view:visible .example").last.click()
    finish(page)
    assert -20 < page.locator(".clock").bounding_box()["y"] < PHONE[1] / 2
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
