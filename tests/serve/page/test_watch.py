"""The Watch view: a run that fills in, its figures, its positions, waiting and errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.serve.page.conftest import COMPLETIONS, PROBLEM, OpenPage, draft, ending, reply_with, stream_of, wait_until

pytestmark = pytest.mark.browser
WORDS = ["it", " is", " 7"]


def figures(page: Any) -> list[str]:
    found: list[str] = page.locator("[aria-label='What it saved'] b").all_inner_texts()
    return found


def finish(page: Any) -> None:
    page.locator(".after:not(:empty)").wait_for()


def test_before_the_first_run_the_examples_are_the_page(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("heading", name="It knows the answer").wait_for()
    example = page.locator(".example").first
    prompt = example.locator(".words").inner_text()
    example.click()
    finish(page)
    assert page.get_by_label("Prompt", exact=True).input_value() == prompt
    assert not example.is_visible()


def test_a_run_settles_and_says_what_it_saved(open_page: OpenPage) -> None:
    page = open_page("watch", prompt=PROBLEM, recipe="prophet", layout="word")
    page.locator(".answer.settled").wait_for()
    finish(page)
    saved, taken, answer, filled = figures(page)
    assert (answer, filled) == ("78", "100%")
    assert int(saved) + int(taken) == 61
    assert int(saved) > 0
    assert page.locator(".answer .tag").inner_text() == "settled"
    chart = page.locator(".chart").last.text_content()
    assert f"{saved}steps not needed" in chart
    assert f"settled at step {taken}" in chart


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)], ids=["wide", "phone"])
def test_the_text_fills_in_without_moving_the_cards(open_page: OpenPage, size: tuple[int, int]) -> None:
    page = open_page("watch", size=size)
    page.get_by_label("Prompt", exact=True).fill(PROBLEM)
    page.get_by_label("Recipe").select_option("prophet")
    page.evaluate("""() => {
        window.seen = [];
        const look = () => {
            const cards = [...document.querySelectorAll(".stack:not([hidden]) .card")];
            const places = JSON.stringify(cards.map(card => [card.offsetTop, card.offsetHeight]));
            const share = parseInt(document.querySelectorAll("[aria-label='What it saved'] b")[3].textContent);
            if (cards.length) seen.push({ share, places });
            requestAnimationFrame(look);
        };
        look();
    }""")
    page.get_by_role("button", name="Decode").click()
    finish(page)
    seen = page.evaluate("seen")
    assert len({one["places"] for one in seen}) == 1
    shares = [one["share"] for one in seen]
    assert shares == sorted(shares)
    assert len(set(shares)) > 10  # it was seen while it filled in


def test_a_recipe_without_a_rule_says_so(open_page: OpenPage) -> None:
    page = open_page("watch", prompt=PROBLEM, recipe="full", layout="word", motion="reduce")
    finish(page)
    assert figures(page)[:3] == ["0", "61", "78"]
    assert "no stopping rule" in page.locator(".stack").inner_text()
    assert page.locator(".answer .tag").inner_text() == "final"


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_a_position_shows_its_drafts_over_time(open_page: OpenPage, way: str) -> None:
    drafts = [draft(0, ["it", " is", " 1"], 1), draft(1, WORDS, 2), draft(2, WORDS, 3, settled=True, gap=9.0)]
    page = open_page("watch", prompt="x", motion="reduce", replies={COMPLETIONS: stream_of(drafts, ending(3))})
    finish(page)
    if way == "click":
        page.locator(".t").last.click()
    else:
        page.locator(".t").first.focus()
        for key in ("ArrowRight", "End", "Enter"):
            page.keyboard.press(key)
    inspector = page.get_by_role("region", name="One position over time")
    assert "Position 3" in inspector.inner_text()
    assert "“1” for 1 step, then “7” for 2 steps; filled at step 3, 50% sure." in inspector.inner_text()
    inspector.get_by_role("button", name="Close").click()
    assert not inspector.is_visible()


def test_space_plays_and_pauses_and_arrows_step(open_page: OpenPage) -> None:
    page = open_page("watch", prompt=PROBLEM, recipe="prophet", layout="word", motion="reduce")
    finish(page)
    last = int(figures(page)[1])
    page.locator("body").press("ArrowLeft")
    page.locator("body").press("ArrowLeft")
    assert int(figures(page)[1]) == last - 2
    page.locator("body").press("ArrowRight")
    assert int(figures(page)[1]) == last - 1
    page.get_by_label("Speed").select_option("0.25")
    page.get_by_role("slider", name="Step", exact=True).fill("1")
    page.locator("body").press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    wait_until(lambda: int(figures(page)[1]) > 2, "playing goes on")
    page.locator("body").press(" ")
    page.get_by_role("button", name="Play").wait_for()
    page.get_by_label("Prompt", exact=True).press("ArrowLeft")  # moves the cursor in the text, not the run
    held = figures(page)[1]
    page.wait_for_timeout(400)
    assert figures(page)[1] == held


def test_a_link_keeps_the_view_the_prompt_and_the_recipe(open_page: OpenPage) -> None:
    page = open_page("watch", motion="reduce")
    page.get_by_label("Prompt", exact=True).fill(PROBLEM)
    page.get_by_label("Recipe").select_option("prophet")
    page.get_by_role("button", name="Decode").click()
    finish(page)
    shared, before = page.url, figures(page)
    assert "recipe=prophet" in shared
    other = open_page("race", motion="reduce")
    other.goto(shared)  # only the fragment changes
    finish(other)
    assert figures(other) == before
    assert other.locator("nav [aria-current]").inner_text() == "Watch"


def test_tabs_keep_the_prompt_and_back_returns(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_label("Prompt", exact=True).fill("kept")
    page.get_by_role("link", name="What if").click()
    assert page.locator(".view:visible").get_by_label("Prompt", exact=True).input_value() == "kept"
    assert page.locator(".view:visible .hero").is_visible()  # changing the tab runs nothing
    page.go_back()
    assert page.locator("nav [aria-current]").inner_text() == "Watch"


def test_the_pinned_text_and_its_answer_are_sent(open_page: OpenPage) -> None:
    sent = []

    def reply(route: Any) -> None:
        sent.append(route.request.post_data_json)
        stream_of([draft(0, WORDS, 3)], ending(1))(route)

    page = open_page("watch", replies={COMPLETIONS: reply})
    page.get_by_label("Prompt", exact=True).fill("one two")
    page.get_by_text("Where the answer stands").click()
    page.get_by_label("Text pinned before the answer").fill("The answer is")
    page.get_by_label("Length of the answer").fill("3")
    page.get_by_label("Prompt", exact=True).press("Control+Enter")
    finish(page)
    (body,) = sent
    assert body["messages"] == [{"role": "user", "content": "one two"}]
    assert body.items() >= {"answer_suffix": "The answer is", "answer_length": 3}.items()
    assert body.items() >= {"stream": True, "drafts": "positions"}.items()
    assert "trace" not in body


def test_a_model_without_a_chat_gets_the_prompt_as_it_is(open_page: OpenPage) -> None:
    sent = []

    def info(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"chat": False})

    def reply(route: Any) -> None:
        sent.append(route.request.post_data_json)
        stream_of([draft(0, WORDS, 3)], ending(1))(route)

    page = open_page("watch", replies={"/foretell/info": info, "/v1/completions": reply}, prompt="one two")
    finish(page)
    (body,) = sent
    assert body["prompt"] == "one two"
    assert "messages" not in body


def test_an_error_is_a_sentence_in_the_card(open_page: OpenPage) -> None:
    page = open_page("watch", prompt="zzz qqq", layout="word")
    error = page.locator(".stack .status.fail")
    error.wait_for()
    assert "zzz" in error.inner_text()
    page.get_by_role("button", name="Decode").wait_for()


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"error": {"message": "the model returned NaN"}}, "the model returned NaN"),
        (": bye", "The connection ended before the run did."),
    ],
)
def test_a_run_that_breaks_keeps_what_it_wrote(open_page: OpenPage, last: Any, message: str) -> None:
    reply = reply_with({"choices": [], "draft": draft(0, WORDS, 1)}, last)
    page = open_page("watch", prompt="x", replies={COMPLETIONS: reply})
    page.locator(".status.fail").wait_for()
    assert page.locator(".status.fail").inner_text() == message
    assert page.locator(".canvas").first.inner_text().split() == ["it", "is", "7", "answer"]


def test_a_run_that_waits_shows_its_place_and_can_be_stopped(open_page: OpenPage) -> None:
    waiting = """() => {
        const real = window.fetch;
        window.fetch = (address, options) => !String(address).includes("completions") ? real(address, options)
            : Promise.resolve(new Response(new ReadableStream({ start(control) {
                control.enqueue(new TextEncoder().encode(": queued 3\\n\\n"));
                options.signal.addEventListener("abort", () => control.error(new DOMException("", "AbortError")));
            } })));
    }"""
    page = open_page("watch")
    page.evaluate(waiting)
    page.get_by_label("Prompt", exact=True).fill("x")
    page.get_by_role("button", name="Decode").click()
    page.get_by_text("Waiting: place 3 in the queue.").wait_for()
    stage, canvas = (page.locator(name).bounding_box()["height"] for name in (".stage", ".stage .canvas"))
    assert stage == canvas  # the sentence stands in the space of the text
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("button", name="Decode").wait_for()


def test_an_api_key_is_asked_for_and_sent(open_page: OpenPage) -> None:
    sent = []

    def info(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"key": True})

    def reply(route: Any) -> None:
        sent.append(route.request.headers.get("authorization"))
        if sent[-1] == "Bearer sesame":
            stream_of([draft(0, WORDS, 3)], ending(1))(route)
        else:
            route.fulfill(status=401, json={"error": {"message": "wrong key"}})

    page = open_page("watch", replies={"/foretell/info": info, COMPLETIONS: reply}, prompt="x")
    key = page.get_by_label("API key of this server")
    key.wait_for()
    page.get_by_role("button", name="Decode").click()
    assert sent == []  # the field is required
    key.fill("guess")
    page.get_by_role("button", name="Decode").click()
    page.locator(".status.fail", has_text="This server needs an API key: wrong key").wait_for()
    assert key.evaluate("node => node === document.activeElement")
    key.fill("sesame")
    page.get_by_role("button", name="Decode").click()
    finish(page)
    assert sent == ["Bearer guess", "Bearer sesame"]
    page.reload()
    assert key.input_value() == "sesame"


def test_further_windows_follow_the_text_of_the_first(open_page: OpenPage) -> None:
    first = [draft(0, WORDS, 1), draft(1, WORDS, 3)]
    second = [draft(0, [" and", " so", " 8"], 1, window=1), draft(1, [" and", " so", " 9"], 3, window=1)]
    page = open_page(
        "watch", prompt="x", motion="reduce", replies={COMPLETIONS: stream_of(first + second, ending(4, saved=2))}
    )
    finish(page)
    assert page.locator(".canvas").inner_text().split() == ["it", "is", "7", "and", "so", "9", "final"]
    page.locator("body").press("ArrowLeft")
    page.locator("body").press("ArrowLeft")
    assert page.locator(".canvas").inner_text().split() == ["it", "is", "7", "answer"]


def test_the_live_region_speaks_at_most_once_per_second(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate("""() => {
        window.heard = [];
        const observer = new MutationObserver(() => heard.push(performance.now()));
        observer.observe(document.getElementById("live"), { childList: true });
    }""")
    page.get_by_label("Recipe").select_option("prophet")
    page.get_by_role("button", name="word", exact=True).click()
    finish(page)
    wait_until(lambda: "Finished" in page.locator("#live").inner_text(), "the end is announced")
    heard = page.evaluate("heard")
    assert len(heard) > 1
    assert min(after - before for before, after in pairwise(heard)) > 990
