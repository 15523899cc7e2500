"""Makes the pictures of the documents from real runs: demo.webp, demo.zh.webp and the PNG files, except benchmarks'.

    pip install '.[pictures]'
    apt-get install chromium chromium-driver fonts-noto-cjk    # on Debian
    python docs/pictures/make.py data/toy_train.txt data/toy_valid.txt data/coffee    # the files of docs/tutorial.md

The script takes half an hour on 2 CPU cores; all runs are in a temporary folder. Nothing in the pictures is edited, but
the time of the moving ones (demo.py) is compressed: each part of it, such as the training, is played faster as a whole.

- demo.webp, demo.zh.webp: training on the coffee orders and on the first file, in a real pseudo-terminal, until the
  validation no longer improves; then the chat with the result in headless Chromium.
- report.png: the report of the latter's replies to questions of the second file.
- charts.png: TensorBoard's page of all charts of a run with two towers on the coffee orders, stopped by its validation.
- tensorboard.png, page.png: a run with two towers on the built-in corpus; the chat as on a desktop and as on a phone.
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
from collections.abc import Iterator, Mapping
from pathlib import Path

from browser import chromium, still, wait_for
from chat_page import chat_picture
from demo import Demo, demo_film
from PIL import Image

PICTURES = Path(__file__).resolve().parent
ROOT = PICTURES.parents[1]
MAX_FILE = 300_000  # bytes

ENGLISH = Demo(
    "coffee", "data/coffee", "en", ("Hi, can I get a latte?", "what syrups do you have?", "what is cold brew?")
)
CHINESE = Demo("weibo", "data/toy_train.txt", "zh", ("早上好", "我想吃火锅", "明天考试"))
BUILTIN, QUESTIONS = "small-talk", ("你好", "什么是ai", "你会死吗", "你最喜欢什么书?")  # on the built-in corpus
TOWERS = "towers"
REPORTED = 200  # pairs of the report
OPENED = 1  # replies whose attention the report shows

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
    training, held_out, coffee = (Path(name).resolve() for name in sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="pictures-") as temporary:
        english = run_folder(temporary, ENGLISH.attempt, {ENGLISH.data: coffee})
        chinese = run_folder(temporary, CHINESE.attempt, {CHINESE.data: training})
        demo_film(english, ENGLISH).save(PICTURES / "demo.webp")
        demo_film(chinese, CHINESE).save(PICTURES / "demo.zh.webp")
        save(report_picture(chinese, held_out), PICTURES / "report.png")
        train(english, "--attempt", TOWERS, "--data", ENGLISH.data, "--towers", "2")
        save(charts_picture(english / "tensorboard" / TOWERS), PICTURES / "charts.png")
        # With a precision that is given, the curves do not depend on the CPU.
        builtin = run_folder(temporary, BUILTIN, {})
        train(builtin, "--attempt", BUILTIN, "--towers", "2", "--precision", "float32")
        save(tensorboard_picture(builtin / "tensorboard" / BUILTIN), PICTURES / "tensorboard.png")
        save(chat_picture(builtin, BUILTIN, QUESTIONS), PICTURES / "page.png")
    return 0


def run_folder(parent: str, name: str, data: Mapping[str, Path]) -> Path:
    """Make a folder for runs, with the scripts and data; of its own."""
    folder = Path(parent) / name
    for link, target in {"train.py": ROOT / "train.py", "chat.py": ROOT / "chat.py", **data}.items():
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        (folder / link).symlink_to(target)
    return folder


def train(folder: Path, *arguments: str) -> None:
    """Train in a folder."""
    command = [sys.executable, "train.py", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def save(picture: Image.Image, path: Path) -> None:
    """Write a PNG of at most 256 colours. Raises ValueError where it is larger than MAX_FILE."""
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MAX_FILE:
        raise ValueError(f"{path}: {size:,} bytes, at most {MAX_FILE:,} wanted; make the screen or the page smaller")
    print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height} pixels, {size:,} bytes")


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


def charts_picture(logs: Path) -> Image.Image:
    """The page of a TensorBoard with all charts of a run."""
    with tensorboard(logs) as address, chromium() as browser:
        browser.set_window_size(*CHARTS_SIZE)

        def loaded() -> bool:
            browser.get(f"{address}/?refresh#custom_scalars&_smoothingWeight=0.6")
            time.sleep(10)
            return "Matches (3)" in browser.find_element("css selector", "tf-custom-scalar-dashboard").text

        wait_for(loaded)
        return still(browser)


def report_picture(folder: Path, held_out: Path) -> Image.Image:
    """The top of the report of an evaluation, with the attention of the first replies."""
    lines = held_out.read_text(encoding="utf-8").splitlines(keepends=True)[:REPORTED]
    (folder / held_out.name).write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "chatbot.evaluation", "--attempt", CHINESE.attempt, "--data", held_out.name]
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
