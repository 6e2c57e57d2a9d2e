"""Pictures of the page for the docs: a finished run in both themes, and the race as a short animation.

Times on a busy machine vary, so the race is run several times, and the animation shows the one with the median ratio.

python runs/page_pictures.py                                # starts a server with the bundled model
python runs/page_pictures.py --url http://127.0.0.1:8000/   # a server that runs already
"""

from __future__ import annotations

import argparse
import io
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from page_server import serve_page

ROOT = Path(__file__).parents[1]
PROBLEM = "Mia has 30 flowers. Noah has 3 times as many. He hides 38. He buys 26 more. How many flowers does Noah have?"
WIDE, RACE = {"width": 1280, "height": 948}, {"width": 1080, "height": 560}
RACES = 5  # of which the median is shown
MOMENTS, TICKS = 48, 150  # frames of the animation, and moments of the race's clock
FRAME, REST = 110, 3500  # milliseconds that a frame is shown, and the last one
LARGEST = 1_500_000  # bytes of the animation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running server (default: start one)")
    parser.add_argument("--problem", default=PROBLEM)
    parser.add_argument("--recipe", default="prophet", help="recipe of the still pictures")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with nullcontext(options.url) if options.url else serve_page() as url, sync_playwright() as playwright:
        # root needs --no-sandbox
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            _take_picture(browser, url, theme, options)
        _record_race(browser, url, options)
        browser.close()


def _open_run(browser: Any, url: str, theme: str, size: dict[str, int], view: str, ready: str, **settings: str) -> Any:
    """Return a page with a finished run. Reduced motion shows its end at once."""
    page = browser.new_page(color_scheme=theme, viewport=size, reduced_motion="reduce")
    page.goto(f"{url}#{view}?{urlencode(settings)}")
    page.locator(ready).wait_for()
    page.mouse.move(0, 0)
    return page


def _take_picture(browser: Any, url: str, theme: str, options: argparse.Namespace) -> None:
    settings = {"prompt": options.problem, "recipe": options.recipe}
    page = _open_run(browser, url, theme, WIDE, "watch", ".after:not(:empty)", **settings)
    file = options.out / f"page-{theme}.png"
    page.screenshot(path=file)
    page.close()
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


def _read_ratio(page: Any) -> float:
    """Return how many times sooner the recipe answered; a slower one says otherwise and is an error here."""
    verdict = page.locator(".verdict").inner_text()
    found = re.search(r"([\d.]+) times sooner", verdict)
    if found is None:
        raise SystemExit(f"the race did not end with a faster recipe: {verdict}")
    return float(found[1])


def _record_race(browser: Any, url: str, options: argparse.Namespace) -> None:
    settings = {"prompt": options.problem, "recipe": "swift", "against": "full"}
    ready = ".verdict:not(:empty)"
    races = [_open_run(browser, url, "light", RACE, "race", ready, **settings) for _ in range(RACES)]
    page = sorted(races, key=_read_ratio)[RACES // 2]
    print(f"median of {RACES} races: {page.locator('.verdict').inner_text()}")
    clock, results = page.get_by_role("slider", name="Time"), page.locator(".view:visible .results")
    images = []
    for moment in range(MOMENTS):
        clock.fill(str(1 + round(moment * (TICKS - 1) / (MOMENTS - 1))))
        clock.blur()
        images.append(Image.open(io.BytesIO(results.screenshot())).convert("RGB"))
    for race in races:
        race.close()
    file = options.out / "race.webp"
    times = [FRAME] * (MOMENTS - 1) + [REST]
    images[0].save(file, save_all=True, append_images=images[1:], duration=times, loop=0, quality=72, method=6)
    size = file.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{file} has {size} bytes, but at most {LARGEST} are wanted; take fewer moments")
    print(f"{file}: {size / 1e3:.0f} kB, {MOMENTS} frames")


if __name__ == "__main__":
    main()
