"""Makes the pictures of the documents from real runs: terminal.png, tensorboard.png, charts.png, report.png, page.png.

    pip install '.[pictures]'
    apt-get install chromium chromium-driver fonts-noto-cjk    # on Debian
    python docs/pictures/make.py data/toy_train.txt data/toy_valid.txt    # the files of docs/tutorial.md

The script trains on the built-in corpus in a temporary folder (a minute or two on 2 CPU cores) and talks to the result,
both in a real pseudo-terminal, whose screen it draws. Then it starts TensorBoard on the loopback interface and takes a
picture of its page with headless Chromium, and one of the chat in a browser, as on a desktop and as on a phone. The
page with all charts shows a second run, on the first file, until its validation no longer improves (five minutes), and
the report its replies to questions of the second file. Nothing in the pictures is edited.
"""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pyte
from browser import chromium, still, wait_for
from chat_page import chat_picture
from PIL import Image, ImageDraw, ImageFont

PICTURES = Path(__file__).resolve().parent
ROOT = PICTURES.parents[1]
LARGEST_FILE = 300_000  # bytes

ATTEMPT = "pictures"
# With --precision, the curves do not depend on what is faster at the moment.
TRAIN = f"python train.py --attempt {ATTEMPT} --towers 2 --precision float32"
ANYTHING = r"[\s\S]+"
CHAT = f"python chat.py --attempt {ATTEMPT}"
VALIDATED = "weibo"
QUESTIONS = ("你好", "什么是ai", "你会死吗", "你最喜欢什么书?")
REPORTED = 200  # pairs of the report
OPENED = 1  # replies whose attention the report shows

# The terminal: the progress bar needs 110 columns. GitHub shows the picture at about 60% of its size. A slow run prints
# more lines; rows without text are not drawn.
COLUMNS, ROWS = 114, 60
FONT_SIZE, ROW_HEIGHT, MARGIN = 24, 32, 28  # pixels
BLOCKS = "█▉▊▋▌▍▎▏"  # of the progress bar, 8 to 1 eighths of a cell wide; the font's own are too wide
BACKGROUND, TEXT, PROMPT = "#1e1e2e", "#e4e4ec", "#8fd694"

# Pages, in CSS pixels, drawn at twice that resolution.
REPORT_SIZE = 1250, 1100
CHARTS_SIZE = 1460, 1200
# TensorBoard's own settings, as its Settings pane stores them in the browser.
PAGE_SETTINGS = {
    "theme": "light",
    "ignoreOutliers": False,
    "scalarSmoothing": 0,
    "sideBarWidthInPercent": 17,
    "timeSeriesSettingsPaneOpened": False,
    "timeSeriesCardMinWidth": 735,
}


def main() -> int:
    """Make all pictures."""
    training, held_out = (Path(name).resolve() for name in sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="pictures-") as temporary:
        folder = Path(temporary)
        save(terminal_picture(recorded_session(folder)), PICTURES / "terminal.png")
        save(tensorboard_picture(folder / "tensorboard" / ATTEMPT), PICTURES / "tensorboard.png")
        save(charts_picture(folder, training), PICTURES / "charts.png")
        save(report_picture(folder, held_out), PICTURES / "report.png")
        save(chat_picture(folder, ATTEMPT, QUESTIONS), PICTURES / "page.png")
    return 0


def save(picture: Image.Image, path: Path) -> None:
    """Write a PNG of at most 256 colours. Raises ValueError where it is larger than LARGEST_FILE."""
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(
            f"{path}: {size:,} bytes, at most {LARGEST_FILE:,} wanted; make the screen or the page smaller"
        )
    print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height} pixels, {size:,} bytes")


def recorded_session(folder: Path) -> pyte.Screen:
    """Train and chat in a shell in `folder`. Returns the terminal's screen at the end."""
    for script in ("train.py", "chat.py"):
        (folder / script).symlink_to(ROOT / script)
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
        "PS1": r"\[\e[32m\]$\[\e[0m\] ",
    }
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    size = {"dimensions": (ROWS, COLUMNS), "encoding": "utf-8", "timeout": 600}
    with pexpect.spawn("bash", ["--norc", "--noprofile"], cwd=str(folder), env=environment, **size) as shell:
        shell.logfile_read = types.SimpleNamespace(write=stream.feed, flush=lambda: None)
        shell.expect_exact("$")
        shell.sendline(TRAIN)
        shell.expect_exact(f"Talk to it: {CHAT}")
        shell.expect_exact("$")
        shell.sendline(CHAT)
        for question in QUESTIONS:
            wait_for_prompt(shell, screen)
            shell.send(question)
            while f"> {question}" not in shown(screen):
                shell.expect(ANYTHING)
            shell.send("\r")
            shell.expect(ANYTHING)
        wait_for_prompt(shell, screen)
    return screen


def shown(screen: pyte.Screen) -> list[str]:
    """Return the used rows of a terminal's screen."""
    return [row.rstrip() for row in screen.display if row.strip()]


def wait_for_prompt(shell: pexpect.spawn, screen: pyte.Screen) -> None:
    """Wait until the chat asks for the next question: its editor draws the prompt several times."""
    while shown(screen)[-1:] != [">"]:
        shell.expect(ANYTHING)


def terminal_picture(screen: pyte.Screen) -> Image.Image:
    """Draw the used rows of a terminal's screen, each character in its cell; a Chinese one takes two cells."""
    font, cell_width = terminal_font(), FONT_SIZE // 2
    used = max(row for row, line in enumerate(screen.display) if line.strip()) + 1
    size = (2 * MARGIN + COLUMNS * cell_width, 2 * MARGIN + used * ROW_HEIGHT)
    picture = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for row in range(used):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            x, y = MARGIN + column * cell_width, MARGIN + row * ROW_HEIGHT
            if cell.data and cell.data in BLOCKS:  # the second cell of a Chinese character is empty
                width = cell_width * (len(BLOCKS) - BLOCKS.index(cell.data)) // len(BLOCKS)
                draw.rectangle((x, y + 6, x + width - 1, y + ROW_HEIGHT - 2), TEXT)
            else:
                draw.text((x, y), cell.data, PROMPT if cell.fg == "green" else TEXT, font)
    return picture


def terminal_font() -> ImageFont.FreeTypeFont:
    """Noto Sans Mono CJK, whose Latin characters are half as wide as its Chinese ones."""
    command = ["fc-match", "--format=%{file}\n%{index}", "Noto Sans Mono CJK SC"]
    file, index = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return ImageFont.truetype(file, FONT_SIZE, index=int(index))


def tensorboard_picture(logs: Path) -> Image.Image:
    """The page of a TensorBoard on `logs`, with the chart `loss`: a curve for each tower and one for all."""
    with tensorboard(logs) as address, chromium() as browser:
        browser.get(address)
        settings = json.dumps(PAGE_SETTINGS)
        browser.execute_script("localStorage.setItem('_tb_global_settings', arguments[0])", settings)

        def loaded() -> bool:
            """The page reads the curves when it is loaded, and TensorBoard may not have read the files by then."""
            browser.get(f"{address}/?tagFilter=%5Eloss%24#timeseries")
            time.sleep(5)
            return bool(browser.find_elements("css selector", "line-chart"))

        wait_for(loaded)
        return still(browser)


def charts_picture(folder: Path, training: Path) -> Image.Image:
    """The page of a TensorBoard with all charts of a run, which is validated on a part of its file."""
    command = [sys.executable, "train.py", "--attempt", VALIDATED, "--data", str(training), "--towers", "2"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    with tensorboard(folder / "tensorboard" / VALIDATED) as address, chromium() as browser:
        browser.set_window_size(*CHARTS_SIZE)

        def loaded() -> bool:
            browser.get(f"{address}/?refresh#custom_scalars&_smoothingWeight=0")
            time.sleep(10)
            return "Matches (3)" in browser.find_element("css selector", "tf-custom-scalar-dashboard").text

        wait_for(loaded)
        return still(browser)


def report_picture(folder: Path, held_out: Path) -> Image.Image:
    """The top of the report of an evaluation, with the attention of the first replies."""
    lines = held_out.read_text(encoding="utf-8").splitlines(keepends=True)[:REPORTED]
    (folder / held_out.name).write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "chatbot.evaluation", "--attempt", VALIDATED, "--data", held_out.name]
    subprocess.run(
        [*command, "--report", "report.html"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    with chromium() as browser:
        browser.set_window_size(*REPORT_SIZE)
        browser.get((folder / "report.html").as_uri())
        for reply in browser.find_elements("css selector", "summary")[:OPENED]:
            reply.click()
        browser.execute_script("scrollTo(0, 0)")
        return Image.open(io.BytesIO(browser.get_screenshot_as_png()))


@contextlib.contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """A running TensorBoard on the loopback interface. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The page shows the path of the logs: here only the last part.
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs.name, "--host", "127.0.0.1"]
    with subprocess.Popen([*command, "--port", str(port)], cwd=logs.parent, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
