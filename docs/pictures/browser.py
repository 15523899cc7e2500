"""Headless Chromium, and pictures of its pages."""

import contextlib
import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

from PIL import Image
from selenium import webdriver

# In CSS pixels, drawn at twice that resolution.
PAGE_WIDTH, PAGE_HEIGHT = 1000, 734
CHROMIUM_FLAGS = f"""
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=2
    --window-size={PAGE_WIDTH},{PAGE_HEIGHT}
""".split()
PAGE_LIMIT = 60.0  # seconds


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A headless browser with an empty profile."""
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium")
        for flag in (*CHROMIUM_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options, webdriver.ChromeService(program("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()


def program(name: str) -> str:
    """The path of an installed program. Raises FileNotFoundError where there is none."""
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name}: not installed; see the top of docs/pictures/make.py")
    return path


def wait_for(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError after PAGE_LIMIT seconds."""
    end = time.monotonic() + PAGE_LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"The page was not ready after {PAGE_LIMIT:.0f} s")
        time.sleep(0.2)


def still(browser: webdriver.Chrome) -> Image.Image:
    """The page as soon as it no longer changes: charts and legends appear one after the other."""
    screenshots = [b""]

    def drawn() -> bool:
        time.sleep(2)
        screenshots.append(browser.get_screenshot_as_png())
        return screenshots[-1] == screenshots[-2]

    wait_for(drawn)
    return Image.open(io.BytesIO(screenshots[-1]))
