"""The What if view: a threshold to move, the rules, the heat map, and a saved file that plays offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serve.page.conftest import COMPLETIONS, PROBLEM, OpenPage, wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def decoded(open_page: OpenPage) -> tuple[Any, dict[str, Any]]:
    """A full decoding in the view, and the replay that the server gave it."""
    found = []
    page = open_page("what-if", motion="reduce")
    page.on("response", lambda response: found.append(response) if "replay" in response.url else None)
    page.get_by_label("Prompt", exact=True).fill(PROBLEM)
    page.get_by_role("button", name="Decode in full").click()
    page.get_by_role("button", name="Save this run").wait_for()
    return page, found[0].json()


def figures(page: Any) -> list[str]:
    found: list[str] = page.locator(".figures.three:visible b").all_inner_texts()
    return found


def expected(replay: dict[str, Any], gaps: str, threshold: float) -> list[str]:
    """Return the figures for a threshold: steps saved, the step at which it stops, the answer."""
    stop = next((at for at, gap in enumerate(replay[gaps]) if gap >= threshold), None)
    if stop is None:
        return ["0", "never", replay["final"]]
    return [str(replay["steps"] - stop - 1), str(stop + 1), replay["answers"][stop]]


def threshold_of(page: Any) -> float:
    return float(page.get_by_role("slider", name="Threshold").get_attribute("aria-valuenow"))


def test_the_keyboard_moves_the_threshold(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    slider = page.get_by_role("slider", name="Threshold")
    seen = {tuple(figures(page))}
    assert figures(page) == expected(replay, "min_gap", threshold_of(page))
    for keys in (["PageDown"] * 3, ["Home"], ["ArrowUp"], ["End"]):
        for key in keys:
            slider.press(key)
        assert figures(page) == expected(replay, "min_gap", threshold_of(page))
        seen.add(tuple(figures(page)))
    assert len(seen) > 2
    assert figures(page)[1] == "never"
    assert "never stops" in slider.get_attribute("aria-valuetext")


def test_the_mouse_drags_the_threshold(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    grip = page.locator(".grip").bounding_box()
    before = threshold_of(page)
    page.mouse.move(grip["x"] + 10, grip["y"] + 9)
    page.mouse.down()
    page.mouse.move(grip["x"] + 10, grip["y"] - 40, steps=4)
    page.mouse.up()
    moved = threshold_of(page)
    assert moved > before
    assert figures(page) == expected(replay, "min_gap", moved)
    page.mouse.move(grip["x"] + 10, grip["y"] - 30)  # released: it stays
    assert threshold_of(page) == moved


def test_another_answer_is_marked(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    page.get_by_role("slider", name="Threshold").press("Home")
    assert replay["answers"][0] != replay["final"]
    assert f"another answer: the whole run gives {replay['final']}" in page.locator(".figures.three").inner_text()
    assert "steps skipped" in page.locator(".chart.wrong").text_content()
    wrong, bad = (
        page.locator(name).first.evaluate("node => getComputedStyle(node).color") for name in (".tag", ".bad b")
    )
    assert wrong == bad
    assert "The text if it had stopped at step 1" in page.locator(".view:visible").inner_text()


def test_the_measure_changes_the_line(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    page.get_by_text("mean of the answer").click()
    slider = page.get_by_role("slider", name="Threshold")
    for _ in range(12):
        slider.press("ArrowDown")
    assert figures(page) == expected(replay, "mean_gap", threshold_of(page))


def test_the_table_lists_every_rule(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    rows = page.locator("tbody tr")
    assert rows.count() == len(replay["rules"]) > 1
    for at, rule in enumerate(replay["rules"]):
        cells = rows.nth(at).locator("th, td").all_inner_texts()
        step = "never" if rule["step"] is None else str(rule["step"] + 1)
        assert cells == [rule["name"], step, str(rule["saved"]), rule["answer"], "same" if rule["same"] else "another"]
    link = rows.locator("button").first
    link.click()
    assert page.get_by_role("slider", name="Step", exact=True).input_value() == link.inner_text()


def test_the_sentence_names_the_smallest_safe_threshold(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, replay = decoded
    gaps = replay["min_gap"]
    wrong = [gap for at, gap in enumerate(gaps) if expected(replay, "min_gap", gap)[2] != replay["final"] and at >= 0]
    safe = min(gap for gap in gaps if gap > max(wrong))
    assert f"Every threshold from {safe:.2f} up" in page.locator(".view:visible").inner_text()


def test_the_heat_map_leads_to_a_step_and_a_position(decoded: tuple[Any, dict[str, Any]]) -> None:
    page, _ = decoded
    heat = page.locator(".heat")
    box = heat.bounding_box()
    heat.click(position={"x": box["width"] / 2, "y": 22})
    assert 25 < int(page.get_by_role("slider", name="Step", exact=True).input_value()) < 37
    assert "Position 2" in page.get_by_role("region", name="One position over time").inner_text()
    for kind in ("stable", "changed", "filled", "kept", "pinned"):
        assert len(page.locator(f"path.heat-{kind}").get_attribute("d")) > 10


def test_a_saved_run_plays_from_a_file_without_a_network(
    decoded: tuple[Any, dict[str, Any]], browser: Any, tmp_path: Path
) -> None:
    page, replay = decoded
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this run").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.suffix == ".html"
    context = browser.new_context(offline=True, reduced_motion="reduce")
    saved, said, asked = context.new_page(), [], []
    saved.on("console", lambda message: said.append(message.text))
    saved.on("pageerror", lambda error: said.append(str(error)))
    saved.on("request", lambda request: asked.append(request.url))
    saved.goto(file.as_uri())
    assert saved.locator(".prompt").inner_text() == PROBLEM
    slider = saved.get_by_role("slider", name="Threshold")
    slider.press("Home")
    assert figures(saved) == expected(replay, "min_gap", 0.0)
    saved.get_by_role("slider", name="Step", exact=True).fill("1")
    saved.locator("h1").click()
    saved.keyboard.press(" ")
    wait_until(lambda: int(saved.get_by_role("slider", name="Step", exact=True).input_value()) > 2, "the file plays")
    saved.keyboard.press(" ")
    saved.locator(".t").nth(3).click()
    assert "Position 4" in saved.get_by_role("region", name="One position over time").inner_text()
    assert said == []
    assert asked == [file.as_uri()]
    context.close()


def test_a_prompt_cannot_break_out_of_a_saved_file(open_page: OpenPage, browser: Any, tmp_path: Path) -> None:
    bad = "</script><script>document.title = 'broken'</script><b>&amp;"

    def change(route: Any) -> None:
        asked = route.request.post_data_json | {"messages": [{"role": "user", "content": PROBLEM}]}
        route.continue_(post_data=asked)

    page = open_page("what-if", motion="reduce", replies={COMPLETIONS: change}, prompt=bad)
    page.get_by_role("button", name="Save this run").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this run").click()
    file = tmp_path / "run.html"
    download.value.save_as(file)
    context = browser.new_context(offline=True)
    saved = context.new_page()
    saved.goto(file.as_uri())
    assert saved.locator(".prompt").inner_text() == bad
    assert "broken" not in saved.title()
    assert saved.locator(".figures.three").is_visible()
    context.close()


def test_a_run_that_is_not_kept_any_more_is_an_error(open_page: OpenPage) -> None:
    replies = {"/foretell/replay": lambda route: route.fulfill(status=404, json={"error": {"message": "no run x1"}})}
    page = open_page("what-if", motion="reduce", prompt=PROBLEM, replies=replies)
    page.locator(".status.fail").wait_for()
    assert page.locator(".status.fail").inner_text() == "no run x1"
