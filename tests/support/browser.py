"""A Chromium of this machine, for tests that are marked `browser`."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZES = [(width, scheme) for width in (1440, 400) for scheme in ("light", "dark")]


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """The browser; the test is skipped where playwright or a Chromium is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-browser")
    with sync_api.sync_playwright() as playwright:
        try:
            made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium starts (apt install chromium, or playwright install chromium): {error}")
        yield made
        made.close()


def opened_page(browser: Any, address: str, width: int = 1440, scheme: str = "light", offline: bool = True) -> Any:
    """A page of its own context; its errors are collected in `page.errors`. The caller closes `page.context`."""
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline
    ).new_page()
    page.errors = []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(address)
    return page
