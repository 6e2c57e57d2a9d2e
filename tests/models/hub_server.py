"""A stand-in for the Hugging Face hub on loopback: what a snapshot download asks for, and a list of what was asked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """The models by id and revision, and how the hub behaves."""

    models: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # as with a token that is not valid
    asked: list[str] = field(default_factory=list)  # "GET /path", and "bytes=..." after it for a range
    lost: set[str] = field(default_factory=set)  # files that are listed, but cannot be downloaded
    break_at: int | None = None  # bytes after which the next download of weights is cut off
    claimed: int | None = None  # the size that the hub states for weights
    address: str = ""
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})  # by branch; default: a hash of its name

    def add(self, repo: str, folder: Path, *, revision: str = "main", more: dict[str, bytes] | None = None) -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.models[repo, revision] = files | (more or {})

    def commit(self, revision: str) -> str:
        return self.commits.get(revision) or hashlib.sha1(revision.encode()).hexdigest()

    def find(self, repo: str, revision: str) -> dict[str, bytes] | None:
        for (name, branch), files in self.models.items():
            if name == repo and revision in (branch, self.commit(branch)):
                return files
        return None


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        if self.path.count("/") > 2:  # huggingface_hub also asks for things that are not about a model
            self.hub.asked.append(f"{self.command} {self.path} {wanted}".strip())
        if found := re.fullmatch(r"/api/models/([^/]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?(?:\?.*)?", self.path):
            repo, kind, revision = found.groups()
            self._describe(repo, kind, revision or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)", self.path):
            repo, revision, name = found.groups()
            self._send_file(repo, revision, name, wanted)
        else:
            self._refuse(404, "RepoNotFound")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _describe(self, repo: str, kind: str | None, revision: str) -> None:
        files = self.hub.find(repo, revision)
        if repo in self.hub.refused:
            return self._refuse(403, "Forbidden")
        if not any(name == repo for name, _ in self.hub.models):
            return self._refuse(404, "RepoNotFound")
        if repo in self.hub.gated:
            return self._refuse(401, "GatedRepo")
        if files is None:
            return self._refuse(404, "RevisionNotFound")
        sizes = {name: self._size(name, content) for name, content in files.items()}
        if kind == "tree":
            answer: Any = [
                {"type": "file", "path": name, "size": size, "oid": _etag(files[name])} for name, size in sizes.items()
            ]
        else:
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            commit = revision if len(revision) == len(COMMIT) else self.hub.commit(revision)
            answer = {"id": repo, "sha": commit, "siblings": siblings}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        return None

    def _size(self, name: str, content: bytes) -> int:
        stated = self.hub.claimed if name.endswith(".safetensors") else None
        return len(content) if stated is None else stated

    def _send_file(self, repo: str, revision: str, name: str, wanted: str) -> None:
        files = self.hub.find(repo, revision)
        if files is None:
            return self._refuse(404, "RepoNotFound")
        if name not in files or name in self.hub.lost:
            return self._refuse(404, "EntryNotFound")
        content = files[name]
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command != "GET":
            return None
        rest = content[start:]
        if self.hub.break_at is not None and name.endswith(".safetensors"):
            rest, self.hub.break_at = rest[: self.hub.break_at], None
            self.close_connection = True
        self.wfile.write(rest)
        return None


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
