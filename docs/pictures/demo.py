"""The moving picture of a run in a terminal and of its replies in a browser."""

import dataclasses
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from browser import chromium
from chat_page import wait_for_element
from PIL import Image
from selenium import webdriver
from terminal import COLUMNS, FONT_SIZE, MARGIN, ROW_HEIGHT, ROWS, Terminal, terminal_picture

ADDRESS = "127.0.0.1:8000"
RATE = 8  # frames a second
MAX_FILE = 1_000_000  # bytes
# In CSS pixels, drawn at twice that resolution: as large as the terminal.
WIDTH, HEIGHT = (2 * MARGIN + COLUMNS * FONT_SIZE // 2) // 2, (2 * MARGIN + ROWS * ROW_HEIGHT) // 2

# Seconds that a part takes in the picture if it took longer.
TYPED, TRAINED, STARTED, ASKED, ANSWERED = 1.0, 2.5, 0.4, 0.6, 0.4
READ, END = 0.9, 2.0  # seconds that the picture stands still


@dataclasses.dataclass(frozen=True)
class Demo:
    """What is shown. data: a path in the folder of the run. language: of the page."""

    attempt: str
    data: str
    language: str
    questions: Sequence[str]


@dataclasses.dataclass
class Film:
    """Frames and how many milliseconds each is shown."""

    frames: list[Image.Image] = dataclasses.field(default_factory=list)
    milliseconds: list[int] = dataclasses.field(default_factory=list)

    def add(self, screens: Iterable[Any], draw: Callable[[Any], Image.Image], most: float) -> None:
        """Show screens as they come, in at most some seconds: if they take longer, all of it is as much faster."""
        began = time.monotonic()
        recorded = [(time.monotonic() - began, screen) for screen in screens]
        duration = recorded[-1][0]
        shown = max(1, round(min(duration, most) * RATE))
        for number in range(1, shown + 1):
            instant = max(duration * number / shown, recorded[0][0])
            screen = next(screen for moment, screen in reversed(recorded) if moment <= instant)
            self.show(draw(screen), 1000 // RATE)

    def show(self, frame: Image.Image, milliseconds: int) -> None:
        """Show a frame, or the last one for longer if it is the same."""
        if self.frames and frame.tobytes() == self.frames[-1].tobytes():
            self.milliseconds[-1] += milliseconds
        else:
            self.frames.append(frame)
            self.milliseconds.append(milliseconds)

    def hold(self, seconds: float) -> None:
        """Show the last frame for longer."""
        self.milliseconds[-1] += round(1000 * seconds)

    def save(self, path: Path) -> None:
        """Write an animated WebP. Raises ValueError where it is larger than MAX_FILE."""
        first, *others = self.frames
        first.save(
            path,
            save_all=True,
            append_images=others,
            duration=self.milliseconds,
            loop=0,
            lossless=True,  # flat colours and text take half as many bytes so
            quality=80,  # of the compression
            method=4,
            minimize_size=True,
        )
        size, seconds = path.stat().st_size, sum(self.milliseconds) / 1000
        if size > MAX_FILE:
            raise ValueError(f"{path}: {size:,} bytes, at most {MAX_FILE:,} wanted")
        print(f"{path.name}: {first.width} x {first.height} pixels, {seconds:.1f} s, {size:,} bytes")


def demo_film(folder: Path, demo: Demo) -> Film:
    """Train in a terminal in `folder`, start the server there, and ask questions in a browser."""
    film = Film()
    terminal = Terminal(folder)
    serving = f"Serving {demo.attempt} at http://{ADDRESS}; press Ctrl-C to stop"
    try:
        for command, last_row, seconds in (
            (f"python train.py --data {demo.data} --attempt {demo.attempt}", "$", TRAINED),
            (f"python chat.py --attempt {demo.attempt} --serve {ADDRESS}", serving, STARTED),
        ):
            film.add(terminal.typed(command), terminal_picture, TYPED)
            terminal.shell.send("\r")
            film.add(terminal.until_last_row(last_row), terminal_picture, seconds)
            film.hold(READ)
        with chromium() as browser:
            film_chat(film, browser, demo)
    finally:
        terminal.close()
    return film


def film_chat(film: Film, browser: webdriver.Chrome, demo: Demo) -> None:
    """Add the page with its questions and replies."""
    metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"http://{ADDRESS}")
    settings = json.dumps({"language": demo.language, "theme": "light"})
    browser.execute_script("localStorage.setItem('chatbot.settings', arguments[0])", settings)
    browser.refresh()
    wait_for_element(browser, "#model option")
    film.show(page(browser.get_screenshot_as_png()), 1000 // RATE)
    film.hold(READ)
    for number, question in enumerate(demo.questions, 1):
        film.add(written(browser, question), page, ASKED)
        browser.find_element("id", "message").send_keys("\ue007")  # Enter
        film.add(answered(browser, number), page, ANSWERED)
        film.hold(READ)
    film.hold(END)


def written(browser: webdriver.Chrome, question: str) -> Iterator[bytes]:
    """Write a question, and yield the page after each character."""
    for character in question:
        browser.find_element("id", "message").send_keys(character)
        yield browser.get_screenshot_as_png()


def answered(browser: webdriver.Chrome, number: int) -> Iterator[bytes]:
    """Yield the page until it has the reply to a question."""
    while not browser.find_elements("css selector", f".turn:nth-child({number}) .answer .actions"):
        yield browser.get_screenshot_as_png()
    yield browser.get_screenshot_as_png()


def page(screenshot: bytes) -> Image.Image:
    return Image.open(io.BytesIO(screenshot)).convert("RGB")
