"""The picture of the chat in a browser."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from browser import chromium, wait_for
from PIL import Image
from selenium import webdriver

ROOT = Path(__file__).resolve().parents[2]

# In CSS pixels, drawn at twice that resolution.
CHAT_SIZE = 1160, 800
PHONE_SIZE = 390, 800
PHONE_MARGIN = 24  # pixels between the two


def chat_picture(folder: Path, attempt: str, questions: Sequence[str]) -> Image.Image:
    """The chat in a browser: on a desktop with the attention of a reply, and in Chinese and dark on a phone.

    folder: with the attempt.
    """
    with chat_server(folder, attempt) as address:
        with chromium() as browser:
            desktop = chat_screenshot(browser, address, CHAT_SIZE, {"language": "en", "theme": "light"}, questions[::2])
        with chromium() as browser:
            phone = chat_screenshot(browser, address, PHONE_SIZE, {"language": "zh", "theme": "dark"}, questions[1::2])
    picture = Image.new("RGB", (desktop.width + PHONE_MARGIN + phone.width, desktop.height), "white")
    picture.paste(desktop, (0, 0))
    picture.paste(phone, (desktop.width + PHONE_MARGIN, 0))
    return picture


def chat_screenshot(
    browser: webdriver.Chrome, address: str, size: tuple[int, int], settings: dict[str, str], questions: Sequence[str]
) -> Image.Image:
    """The page after some questions. size: in CSS pixels. On a desktop, with the attention of the last reply."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(address)
    browser.execute_script("localStorage.setItem('chatbot.settings', arguments[0])", json.dumps(settings))
    browser.refresh()
    wait_for_element(browser, "#model option")
    for number, question in enumerate(questions, 1):
        browser.find_element("id", "message").send_keys(question, "\ue007")  # Enter
        wait_for_element(browser, f".turn:nth-child({number}) .answer .actions")
    if size == CHAT_SIZE:
        browser.find_elements("css selector", "[data-key^=why]")[-1].click()
        wait_for_element(browser, ".attention table")
    return Image.open(io.BytesIO(browser.get_screenshot_as_png()))


def wait_for_element(browser: webdriver.Chrome, selector: str) -> None:
    """Wait until the page has an element."""
    wait_for(lambda: bool(browser.find_elements("css selector", selector)))


@contextlib.contextmanager
def chat_server(folder: Path, attempt: str) -> Iterator[str]:
    """A running server of the chat on the loopback interface, with the attempt in `folder`. Yields its address."""
    command = [sys.executable, "chat.py", "--attempt", attempt, "--serve", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield re.findall(r"http://[\d.:]+", process.stdout.readline())[0]
        finally:
            process.terminate()
