"""The Race view: two recordings on one clock."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.page.conftest import COMPLETIONS, PROBLEM, OpenPage, draft, ending, stream_of

pytestmark = pytest.mark.browser


def verdict(page: Any) -> str:
    page.locator(".verdict:not(:empty)").wait_for()
    text: str = page.locator(".verdict").inner_text()
    return text


def race_of(full: dict[str, Any], swift: dict[str, Any]) -> Any:
    """Return a route: full takes eight drafts in 0.8 s, swift two in 0.2 s."""

    def reply(route: Any) -> None:
        slow = route.request.post_data_json["recipe"] == "full"
        drafts = [draft(step, ["it", " is", " 7"], 1) for step in range(8 if slow else 2)]
        stream_of(drafts, full if slow else swift)(route)

    return {COMPLETIONS: reply}


def test_one_stands_still_while_the_other_goes_on(open_page: OpenPage) -> None:
    page = open_page("race", prompt=PROBLEM, recipe="swift", against="full", layout="word")
    full, swift = page.locator(".lane").nth(0), page.locator(".lane").nth(1)
    page.get_by_role("button", name="Pause").click()
    assert page.locator(".verdict").inner_text() == ""
    page.get_by_role("slider", name="Time").fill("75")  # half of the time that full takes
    assert "finished" in swift.get_attribute("class")
    stands, result = swift.locator(".canvas").inner_text(), swift.locator(".result").inner_text()
    assert "finished" not in full.get_attribute("class")
    assert "steps saved" in result
    assert "answer 78" in result
    page.get_by_role("button", name="Play").click()
    assert "same answer." in verdict(page)
    assert swift.locator(".canvas").inner_text() == stands
    assert "all 61 steps" in full.locator(".result").inner_text()


def test_the_sentence_compares_the_recorded_times(open_page: OpenPage) -> None:
    page = open_page("race", prompt="x", motion="reduce", replies=race_of(ending(8), ending(2)))
    assert verdict(page) == "swift needed 2 of 8 passes: 4.0 times sooner, same answer."
    assert page.locator(".clock b").inner_text() == "0.800 s"
    assert "7.5 times slower" in page.locator(".clock").inner_text()
    page.get_by_role("slider", name="Time").fill("75")  # almost half of the clock
    assert page.locator(".clock b").inner_text() == "0.397 s"
    assert page.locator(".lane .note").all_inner_texts() == ["3 of 8 steps", "2 of 8 steps"]
    assert page.locator(".verdict").inner_text() == ""
    page.get_by_role("slider", name="Time").fill("1")
    assert page.locator(".lane .note").all_inner_texts() == ["0 of 8 steps", "0 of 8 steps"]
    assert page.locator(".lane.finished").count() == 0


@pytest.mark.parametrize("size", [(1280, 900), (1080, 560), (390, 844)], ids=["wide", "narrow", "phone"])
def test_the_end_of_a_run_moves_nothing(open_page: OpenPage, size: tuple[int, int]) -> None:
    page = open_page("race", prompt=PROBLEM, recipe="swift", against="full", layout="word", size=size, motion="reduce")
    verdict(page)
    heights = []
    for moment in ("1", "149", "150"):
        page.get_by_role("slider", name="Time").fill(moment)
        heights.append(page.locator(".lane").evaluate_all("all => all.map(lane => lane.offsetHeight)"))
    assert page.locator(".lane.finished").count() == 2
    assert heights[0] == heights[1] == heights[2]


def test_the_time_in_the_queue_does_not_count(open_page: OpenPage) -> None:
    late = [draft(step, ["it", " is", " 7"], 1, seconds=5 + 0.1 * (step + 1)) for step in range(2)]
    replies = {COMPLETIONS: stream_of(late, ending(2, queued=5.0))}
    page = open_page("race", prompt="x", motion="reduce", replies=replies)
    verdict(page)
    page.get_by_role("slider", name="Time").fill("100")
    assert page.locator(".lane .note").first.inner_text() == "1 of 8 steps"


def test_another_answer_is_said(open_page: OpenPage) -> None:
    page = open_page("race", prompt="x", motion="reduce", replies=race_of(ending(8), ending(2, answer="9")))
    assert verdict(page).endswith("4.0 times sooner, another answer (9 instead of 7).")
    assert "bad" in page.locator(".verdict").get_attribute("class")


def test_an_error_ends_the_race(open_page: OpenPage) -> None:
    page = open_page("race", prompt="zzz", recipe="swift", against="full", layout="word")
    page.locator(".clock .status.fail").wait_for()
    assert "zzz" in page.locator(".clock .status.fail").inner_text()
