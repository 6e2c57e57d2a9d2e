"""Both themes, narrow screens, reduced motion, and what axe-core finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.page.conftest import COMPLETIONS, PROBLEM, OpenPage, draft, ending, reply_with, stream_of, violations

pytestmark = pytest.mark.browser
PHONE = (390, 844)
READY = {"watch": ".after:not(:empty)", "race": ".verdict:not(:empty)", "what-if": ".action"}
VIEWS = ["", *READY]
CONTRAST = """node => {
    const parts = colour => colour.match(/[\\d.]+/g).map(Number);
    const linear = v => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    let behind = node;
    while ((parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const [low, high] = [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor]
        .map(colour => light(parts(colour))).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}"""
RGB = "color => color.match(/[\\d.]+/g).slice(0, 3).map(Number)"


def finished(open_page: OpenPage, view: str, **options: Any) -> Any:
    """Return a page with a finished run, or before the first one."""
    page = open_page(view, motion="reduce", **options, **({"prompt": PROBLEM, "layout": "word"} if view else {}))
    page.locator(READY.get(view, ".hero")).wait_for()
    return page


def colours(page: Any, selector: str, name: str) -> list[float]:
    read = f"node => ({RGB})(getComputedStyle(node).getPropertyValue({name!r}))"
    found: list[float] = page.locator(selector).first.evaluate(read)
    return found


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing(open_page: OpenPage, axe: str, view: str, theme: str, size: tuple[int, int]) -> None:
    page = finished(open_page, view, theme=theme, size=size)
    if view in ("watch", "what-if"):
        page.get_by_role("slider", name="Step", exact=True).fill("3")
        page.locator(".view:visible .t").nth(8).click()
    assert violations(page, axe) == []


def test_axe_finds_nothing_in_an_error(open_page: OpenPage, axe: str) -> None:
    page = open_page("watch", prompt="x", replies={COMPLETIONS: reply_with({"error": {"message": "no"}})})
    page.locator(".status.fail").wait_for()
    assert violations(page, axe) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_horizontal_scrolling(open_page: OpenPage, view: str) -> None:
    page = finished(open_page, view, size=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_a_phone_shows_every_column_of_the_rules(open_page: OpenPage) -> None:
    table = finished(open_page, "what-if", size=PHONE).get_by_role("region", name="Stopping rules")
    assert table.evaluate("node => node.scrollWidth - node.clientWidth") == 0


def test_a_phone_has_room_for_long_answers_of_rules(open_page: OpenPage) -> None:
    settings = {"prompt": "62,34,98,2", "layout": "countdown"}
    page = open_page("what-if", motion="reduce", size=PHONE, **settings)
    page.locator(READY["what-if"]).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_long_tokens_and_answers_fit_a_phone(open_page: OpenPage) -> None:
    words = ["supercalifragilistic" * 4, " x" * 40, " 1234567890" * 20]
    reply = stream_of([draft(0, words, 3, settled=True, gap=9.0)], ending(1, answer=words[2]))
    page = open_page("watch", prompt="y" * 300, size=PHONE, motion="reduce", replies={COMPLETIONS: reply})
    page.locator(".after:not(:empty)").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


@pytest.mark.parametrize("view", ["watch", "what-if"])
def test_pictures_take_their_colours_from_the_theme(open_page: OpenPage, view: str) -> None:
    """Axe cannot judge pictures, so their lines are compared with the card behind them."""
    for theme in ("light", "dark"):
        page = finished(open_page, view, theme=theme)
        card = sum(colours(page, ".card", "background-color"))
        assert (card > 380) is (theme == "light")
        for selector in (".gap-line", ".bar-line", ".cursor:not(.thin)"):
            if page.locator(selector).count():
                assert abs(sum(colours(page, selector, "stroke")) - card) > 150, (theme, selector)
        for kind in ("changed", "filled") if view == "what-if" else ():
            assert abs(sum(colours(page, f"path.heat-{kind}", "fill")) - card) > 150, (theme, kind)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tokens_can_be_read(open_page: OpenPage, theme: str) -> None:
    """Axe does not judge elements with a line inside, so the contrast of tokens is computed here."""
    page = finished(open_page, "what-if", theme=theme)
    page.get_by_role("slider", name="Step", exact=True).fill("20")
    for selector in (".t.mask:not(.end)", ".t.fresh:not(.end)", ".t.kept:not(.end)", ".t.pinned", ".tag", ".badge"):
        ratio = page.locator(f".view:visible {selector}").first.evaluate(CONTRAST)
        assert ratio >= 4.5, selector


def test_the_button_changes_the_theme_and_remembers_it(open_page: OpenPage) -> None:
    page = open_page()
    button = page.get_by_role("button", name="Colours: auto")
    button.click()
    light = colours(page, "body", "background-color")
    page.get_by_role("button", name="Colours: light").click()
    assert sum(colours(page, "body", "background-color")) < 100 < sum(light)
    page.reload()
    page.get_by_role("button", name="Colours: dark").wait_for()
    assert sum(colours(page, "body", "background-color")) < 100


def test_reduced_motion_shows_the_end_at_once(open_page: OpenPage) -> None:
    page = open_page("watch", motion="reduce")
    page.locator(".hero").wait_for()
    page.evaluate("""() => {
        window.played = [];
        const note = changes => changes.forEach(({ target }) => played.push(target.dataset.name));
        const observer = new MutationObserver(note);
        observer.observe(document.querySelector(".transport"), { subtree: true, attributeFilter: ["data-name"] });
    }""")
    page.get_by_label("Prompt", exact=True).fill(PROBLEM)
    page.get_by_role("button", name="Decode").click()
    page.locator(READY["watch"]).wait_for()
    assert page.evaluate("played") == []
    assert page.locator(".t").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    moving = open_page("watch", prompt=PROBLEM, layout="word", recipe="prophet")
    assert moving.locator(".t.kept").first.evaluate("node => getComputedStyle(node).transitionDuration") != "0s"


def test_a_phone_sees_the_run_that_it_started(open_page: OpenPage) -> None:
    page = open_page(size=PHONE, motion="reduce")
    page.locator(".example").last.click()
    page.locator(".after:not(:empty)").wait_for()
    box = page.locator(".figures").first.bounding_box()
    assert -20 < box["y"] < PHONE[1] / 2


def test_a_touch_drags_the_threshold(open_page: OpenPage) -> None:
    page = finished(open_page, "what-if", size=PHONE)
    slider = page.get_by_role("slider", name="Threshold")
    slider.scroll_into_view_if_needed()
    grip, before = page.locator(".grip").bounding_box(), slider.get_attribute("aria-valuenow")
    x, y = grip["x"] + 10, grip["y"] + 9
    finger, scrolled = page.context.new_cdp_session(page), page.evaluate("scrollY")
    for kind, at in (("touchStart", y), *(("touchMove", y - 5 * step) for step in range(1, 9))):
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": at}]})
        page.wait_for_timeout(30)
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert float(slider.get_attribute("aria-valuenow")) > float(before)
    assert abs(page.locator(".grip").bounding_box()["y"] - (grip["y"] - 40)) < 2
    assert page.evaluate("scrollY") == scrolled


def test_a_server_that_does_not_answer_is_an_error(open_page: OpenPage) -> None:
    page = open_page(replies={"/foretell/info": lambda route: route.fulfill(status=404, json={})})
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "The server answered with status 404."
    page.unroute("**/foretell/info")
    page.get_by_role("button", name="Try again").click()
    page.locator(".hero").wait_for()


def test_views_that_the_server_does_not_offer_have_no_tab(open_page: OpenPage) -> None:
    def info(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"decisions": False})

    page = open_page(replies={"/foretell/info": info})
    page.locator(".hero").wait_for()
    assert page.locator("nav a").all_inner_texts() == ["Watch", "Race", "What if"]
