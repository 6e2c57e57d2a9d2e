"""Builds the sdist and the wheel, installs the wheel into an empty environment, and runs the README there.

python -m tests.release        # or: make release-check

The blocks of the README that tests/test_examples.py runs too run in an empty folder, with only the wheel and the extras
that they need. What is built stays in dist/.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

from foretell.version import __version__
from tests.test_examples import ROOT, Block, blocks_of, commands_of, without_times

EXTRAS = ("server",)
NEEDED = (
    "foretell/py.typed",
    "foretell/checkpoints/tiny/model.safetensors",
    "foretell/checkpoints/tiny-sdtt/model.safetensors",
    "foretell/serve/static/index.html",
)
PATIENCE = 600.0  # seconds per command; a busy machine is slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for sdist and wheel (default: dist)")
    out = parser.parse_args().out
    sdist, wheel = build(out)
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory(prefix="foretell-release-") as name:
        folder = Path(name)
        programs = install(wheel, folder / "environment")
        home = folder / "empty"
        home.mkdir()
        ran = run_readme(programs, home)
    print(f"{sdist.name} and {wheel.name}: {ran} blocks of the README run with the installed wheel")


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist."""
    print("building sdist and wheel")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    return out / f"foretell-{__version__}.tar.gz", out / f"foretell-{__version__}-py3-none-any.whl"


def check_contents(sdist: Path, wheel: Path) -> None:
    """Fail if a file is missing, a test is in the wheel, or the description has a link that leads nowhere."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        description = Parser().parsestr(files.read(metadata).decode()).get_payload()
    missing = [name for name in NEEDED if name not in names]
    strays = [name for name in names if not name.startswith(("foretell/", f"foretell-{__version__}.dist-info/"))]
    dead = re.findall(r"\]\((?!https?:|#)[^)]*\)", str(description))
    if missing or strays or dead:
        sys.exit(f"{wheel.name}: missing {missing}, not ours {strays}, links that lead nowhere {dead}")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    if lost := {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "hatch_build.py", "tests/release.py"} - held:
        sys.exit(f"{sdist.name}: missing {sorted(lost)}")
    if "![" not in str(description):
        print("note: the description has no pictures; FORETELL_REPOSITORY=https://... names where they are")


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel and its extras into an empty environment, and return the folder of its programs."""
    print("installing the wheel into an empty environment")
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "torch"], check=True)
    subprocess.run([*pip, f"{wheel}[{','.join(EXTRAS)}]"], check=True)
    return folder / "bin"


def run_readme(programs: Path, home: Path) -> int:
    """Run the blocks of the README in a folder, and return how many were run."""
    printed, ran = "", 0
    for block in blocks_of(ROOT / "README.md"):
        if block.mark == "output":
            shown = [without_times(line) for line in printed.splitlines()]
            if lost := [line for line in block.code.splitlines() if without_times(line) not in shown]:
                sys.exit(f"{block}: {lost} is not printed, but {printed!r}")
        elif block.is_run and not block.mark.startswith("slow"):
            print(f"running {block}")
            printed, ran = "".join(run_block(block, programs, home)), ran + 1
    return ran


def run_block(block: Block, programs: Path, home: Path) -> Iterator[str]:
    if block.language == "python":
        yield run([str(programs / "python"), "-c", block.code], programs, home)
        return
    for words, _ in commands_of(block):
        if words[:2] == ["foretell", "serve"]:
            with serving(words, programs, home) as url, urllib.request.urlopen(f"{url}/v1/models") as answer:
                yield answer.read().decode()
        else:
            yield run([str(programs / words[0]), *words[1:]], programs, home)


def run(command: list[str], programs: Path, home: Path) -> str:
    done = subprocess.run(
        command, env=environment(programs), cwd=home, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        sys.exit(f"{command} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def serving(words: list[str], programs: Path, home: Path) -> Iterator[str]:
    """Run the server on a free port until the block ends, and check that it ends cleanly."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(programs / words[0]), *words[1:], "--port", str(port)]
    process = subprocess.Popen(command, env=environment(programs), cwd=home, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=PATIENCE)[1]
    if "Traceback" in errors:
        sys.exit(f"{command}:\n{errors}")


def wait_until_ready(url: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/ready").close()
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return
    sys.exit(f"the server at {url} never got ready")


def environment(programs: Path) -> dict[str, str]:
    """The variables of a shell in the new environment: nothing of this one leads back to the clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FORETELL", "VIRTUAL"))}
    return kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


if __name__ == "__main__":
    main()
