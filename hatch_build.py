"""The description of the package on an index, where relative links and pictures lead nowhere, and its URLs.

FORETELL_REPOSITORY=https://github.com/OWNER/NAME names the repository when a release is built: then pictures and links
lead to the files of the release's tag there. Without it, pictures and relative links are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def describe(readme: str, repository: str | None, version: str) -> str:
    """The README with absolute addresses, or without pictures and relative links if the repository is not known."""
    if repository is None:
        readme = re.sub(rf"(?m)^{PICTURE.pattern}\n\n(?:\*.*\n)?(?:.*\*\n)?\n?", "", readme)
        return LINK.sub(r"\1", readme)
    readme = PICTURE.sub(rf"![\1]({repository}/raw/v{version}/\2)", readme)
    return LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", readme)


def name_urls(repository: str | None) -> dict[str, str]:
    """The project's URLs: the paper's code, and the repository if it is known."""
    urls = {"Prophet (the paper's code)": "https://github.com/pixeli99/Prophet"}
    if repository is not None:
        urls |= {
            "Homepage": repository,
            "Documentation": f"{repository}/tree/main/docs",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
    return urls


class Description(MetadataHookInterface):
    """Called by hatchling when it builds or installs the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        text = (root / "src/foretell/version.py").read_text(encoding="utf8")
        (version,) = re.findall(r'"([^"]+)"$', text.strip(), re.MULTILINE)
        repository = os.environ.get("FORETELL_REPOSITORY", "").rstrip("/") or None
        readme = (root / "README.md").read_text(encoding="utf8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(readme, repository, version)}
        metadata["urls"] = name_urls(repository)
