"""Make result pages and their pictures again from the stored numbers; nothing is measured.

python runs/pages.py                     # all pages of docs/results that have a template
python runs/pages.py methods gap         # some of them
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

from page import TEMPLATES, write_page
from results_page import ABOUT, RESULTS, write_index
from shared import run_script


def list_pages(folder: Path) -> list[str]:
    """Return the pages that have a template and stored numbers, in reading order."""
    return [name for name in ABOUT if (TEMPLATES / f"{name}.md").exists() and (folder / f"{name}.json").exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="names of pages (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: docs/results)")
    parser.add_argument("--no-pictures", action="store_true", help="write only the text")
    options = parser.parse_args()
    mpl.use("Agg")
    for name in options.pages or list_pages(options.out):
        write_page(name, options.out, picture=not options.no_pictures)
        print(f"wrote {options.out / name}.md", flush=True)
    write_index(options.out)


if __name__ == "__main__":
    run_script(main)
