"""How much pip downloads for Foretell, with and without the libraries for a GPU, and for each extra.

python runs/download_size.py          # prints Markdown, writes docs/results/download_size.json; needs the network

Nothing is installed: pip only resolves (`--dry-run`), and the sizes are those that the package index states. The CPU
build of torch has to be where pip looks besides its default index (PIP_FIND_LINKS, or an index in pip's configuration);
the build with CUDA is the one of the default index. What pip has already cached or installed counts too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs/results/download_size.json"
EXTRAS = ("server", "decide", "lab", "plots", "hf", "quantize")
NO_CONFIGURATION = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}


def resolve(what: list[str], environment: dict[str, str]) -> dict[str, str]:
    """The files that pip would download, by package and version."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--constraint", str(ROOT / "constraints.txt"), "--report", str(report), *what]
        subprocess.run(command, check=True, env=os.environ | environment)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    files = {f"{one['metadata']['name']} {one['metadata']['version']}": one["download_info"]["url"] for one in found}
    return {name: url for name, url in files.items() if not name.startswith("foretell ")}


def size_of(url: str) -> int:
    """The size of a file in bytes, without downloading it."""
    if url.startswith("file:"):
        return Path(urllib.request.url2pathname(url.removeprefix("file://"))).stat().st_size
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        return int(answer.headers["Content-Length"])


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    sizes: dict[str, int] = {}

    def total(files: dict[str, str]) -> float:
        for name, url in files.items():
            sizes[name] = sizes.get(name) or size_of(url)
        return sum(sizes[name] for name in files) / 1e6

    plain = resolve([str(ROOT)], {})
    gpu = resolve(["torch==2.13.0"], NO_CONFIGURATION)
    torch = {name: url for name, url in plain.items() if name.startswith("torch ")}
    result = {
        "python": platform.python_version(),
        "requires": version,
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu_mb": round(total(plain)),
        "gpu_mb": round(total({**{name: url for name, url in plain.items() if name not in torch}, **gpu})),
        "torch_cpu": next(iter(torch)),
        "torch_cpu_mb": round(total(torch)),
        "extras_mb": {},
    }
    for extra in EXTRAS:
        files = resolve([f"{ROOT}[{extra}]"], {})
        result["extras_mb"][extra] = round(total({name: url for name, url in files.items() if name not in plain}), 1)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    print("| what | MB |\n|---|---:|")
    print(f"| foretell with the CPU build of torch | {result['cpu_mb']} |")
    print(f"| foretell with torch for CUDA | {result['gpu_mb']} |")
    for extra, more in result["extras_mb"].items():
        print(f"| extra {extra} | +{more} |")


if __name__ == "__main__":
    main()
