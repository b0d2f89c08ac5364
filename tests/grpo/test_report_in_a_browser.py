"""report.html in headless Chromium: it is seen, it is legible, and it asks nobody for anything."""

from __future__ import annotations

import html
import http.server
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from grpo.report import write_report
from tests.grpo.run_folder import ATTACK, make_run

Browse = Callable[..., str]


@pytest.fixture(scope="module")
def browse(missing: Callable[[str], NoReturn]) -> Browse:
    """`browse(page, "--dump-dom")`: what headless Chromium prints about a page."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if name and (found := shutil.which(name))), None)
    if browser is None:
        missing("no Chromium: apt-get install chromium, or name one with CHROMIUM=/path")

    def run(page: Path, *options: str) -> str:
        with tempfile.TemporaryDirectory() as profile:
            quiet = ["gpu", "quic", "background-networking", "component-update", "sync"]
            command = [
                browser,
                "--headless",
                "--no-sandbox",
                "--no-first-run",
                *(f"--disable-{name}" for name in quiet),
            ]
            command += [f"--user-data-dir={profile}", "--window-size=1200,1600", *options, page.as_uri()]
            return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return run


@pytest.fixture
def heard() -> Iterator[tuple[int, list[str]]]:
    """A server on this machine: its port, and the paths that it was asked for."""
    paths: list[str] = []

    class Listener(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], paths
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_shows_the_text_and_asks_nobody_for_anything(
    tmp_path: Path, browse: Browse, heard: tuple[int, list[str]]
) -> None:
    port, paths = heard
    control = tmp_path / "control.html"
    control.write_text(ATTACK % (port, port))
    browse(control, "--dump-dom")
    assert set(paths) == {"/x.js", "/x.png"}  # the listener hears a page that does ask
    paths.clear()

    folder = make_run(tmp_path / "工作 目录", 30, attack=ATTACK % (port, port))
    page = write_report(folder)
    seen = browse(page, "--dump-dom")
    assert paths == []
    assert html.escape(ATTACK % (port, port), quote=False) in seen
    assert "请解答：15 + 27 = ?" in seen
    assert "变化最大的回答" in seen
    assert seen.count("<svg ") == 22
    # Even if a response had come through as HTML, the page's own policy would load and run nothing.
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", ATTACK % (port, port)), encoding="utf-8")
    browse(page, "--dump-dom")
    assert paths == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "options"), [("light", ()), ("dark", ("--force-dark-mode",))])
def test_the_page_is_legible_in_light_and_dark(
    scheme: str, options: tuple[str, ...], tmp_path: Path, browse: Browse
) -> None:
    from PIL import Image

    picture, page = tmp_path / "page.png", write_report(make_run(tmp_path / "demo", 60))
    browse(page, *options, f"--screenshot={picture}")
    with Image.open(picture) as image:
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(image.width * image.height)}
    ground, ink, line = {
        "light": ((0xFF, 0xFF, 0xFF), (0x1D, 0x24, 0x30), (0x1C, 0x63, 0xC9)),
        "dark": ((0x14, 0x17, 0x1C), (0xE6, 0xE9, 0xEE), (0x7F, 0xB0, 0xFF)),
    }[scheme]
    assert counts[ground] > 0.3 * sum(counts.values())  # the background
    assert counts[ink] > 1000  # text
    assert counts[line] > 200  # curves
    bright, dim = sorted((_luminance(ground), _luminance(ink)), reverse=True)
    assert (bright + 0.05) / (dim + 0.05) > 7  # WCAG's ratio for enhanced contrast


def _luminance(colour: tuple[int, ...]) -> float:
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
