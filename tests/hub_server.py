"""A server on 127.0.0.1 in the Hub's place, for tests that must not reach a network."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.conftest import REPO

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Answer = tuple[int, bytes, dict[str, str]]


class Hub(BaseHTTPRequestHandler):
    """Files of `folder` under the Hub's addresses; `asked` collects what was asked for."""

    folder: Path
    asked: list[str]

    def answer(self, path: str) -> Answer:
        """Status, body and headers for a path."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def listing(self) -> Answer:
        """All files, as the address `tree` tells them."""
        files = [
            {"type": "file", "oid": "0" * 40, "size": file.stat().st_size, "path": str(file.relative_to(self.folder))}
            for file in sorted(self.folder.rglob("*"))
            if file.is_file()
        ]
        return 200, json.dumps(files).encode(), {"Content-Type": "application/json"}

    def file(self, name: str) -> Answer:
        """One file."""
        headers = {"ETag": f'"{name.replace("/", "-")}"', "X-Repo-Commit": COMMIT}
        return 200, (self.folder / name).read_bytes(), headers

    def _send(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.command} {path}")
        status, body, headers = self.answer(path)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(hub: type[Hub], folder: Path) -> Iterator[ThreadingHTTPServer]:
    """The server while it runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (hub,), {"folder": folder, "asked": []}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def environment(home: Path, **more: str) -> dict[str, str]:
    """For a process of its own, since huggingface_hub reads its environment when it is imported."""
    kept = {key: text for key, text in os.environ.items() if not re.match(r"HF_|.*_proxy$", key, re.IGNORECASE)}
    return kept | {"HF_HOME": str(home), "PYTHONPATH": str(REPO), **more}
