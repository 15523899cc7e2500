"""A shell in a real pseudo-terminal, and pictures of its screen."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pyte
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
LIMIT, EVERY = 3600.0, 1.0  # seconds that a command may take, and between two screens

# A cell is as wide as half of a Chinese character.
COLUMNS, ROWS = 94, 24
FONT_SIZE, ROW_HEIGHT, MARGIN = 30, 37, 25  # pixels
BLOCKS = "█▉▊▋▌▍▎▏"  # of the progress bar, 8 to 1 eighths of a cell wide; the font's own are too wide
BACKGROUND, TEXT, PROMPT = "#1e1e2e", "#e4e4ec", "#8fd694"

Cells = tuple[tuple[tuple[str, str], ...], ...]  # the character and the colour of each cell of each row


class Terminal:
    """A shell with the scripts of the project in its folder, and what its screen shows."""

    def __init__(self, folder: Path) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self.screen)
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PS1": r"\[\e[32m\]$\[\e[0m\] ",
        }
        arguments = ["--norc", "--noprofile"]
        size = (ROWS, COLUMNS)
        self.shell = pexpect.spawn(
            "bash", arguments, cwd=str(folder), env=environment, dimensions=size, encoding="utf-8"
        )

    def until_last_row(self, text: str) -> Iterator[Cells]:
        """Yield the screen once a second until a text is the last row that is not empty.

        Raises TimeoutError after LIMIT seconds.
        """
        end = time.monotonic() + LIMIT
        shown = 0.0
        while self._last_row() != text:
            if time.monotonic() > end:
                raise TimeoutError("\n".join(self.screen.display))
            with contextlib.suppress(pexpect.TIMEOUT):
                self._stream.feed(self.shell.read_nonblocking(65536, timeout=0.05))
            if time.monotonic() >= shown + EVERY:
                yield self.cells()
                shown = time.monotonic()
        yield self.cells()

    def typed(self, command: str) -> Iterator[Cells]:
        """Type a command when the shell waits for one, without the Enter key, and yield the screen."""
        yield from self.until_last_row("$")
        for number, character in enumerate(command, 1):
            self.shell.send(character)
            yield from self.until_last_row(f"$ {command[:number]}".rstrip())

    def _last_row(self) -> str:
        return next((row.rstrip() for row in reversed(self.screen.display) if row.strip()), "")

    def cells(self) -> Cells:
        """What the screen shows now."""
        rows, columns = range(ROWS), range(COLUMNS)
        cell = self.screen.buffer
        return tuple(tuple((cell[row][column].data, cell[row][column].fg) for column in columns) for row in rows)

    def close(self) -> None:
        """Interrupt the running command, and end the shell when it has ended."""
        self.shell.sendintr()
        self.shell.sendline("exit")
        self.shell.expect(pexpect.EOF, timeout=LIMIT)
        self.shell.close()


def terminal_picture(cells: Cells) -> Image.Image:
    """Draw a screen, each character in its cell; a Chinese one takes two cells."""
    font, cell_width = terminal_font(), FONT_SIZE // 2
    size = (2 * MARGIN + COLUMNS * cell_width, 2 * MARGIN + ROWS * ROW_HEIGHT)
    picture = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(cells):
        for column, (character, colour) in enumerate(line):
            x, y = MARGIN + column * cell_width, MARGIN + row * ROW_HEIGHT
            if character and character in BLOCKS:  # the second cell of a Chinese character is empty
                width = cell_width * (len(BLOCKS) - BLOCKS.index(character)) // len(BLOCKS)
                draw.rectangle((x, y + 7, x + width - 1, y + ROW_HEIGHT - 3), TEXT)
            else:
                draw.text((x, y), character, PROMPT if colour == "green" else TEXT, font)
    return picture


def terminal_font() -> ImageFont.FreeTypeFont:
    """Noto Sans Mono CJK, whose Latin characters are half as wide as its Chinese ones."""
    command = ["fc-match", "--format=%{file}\n%{index}", "Noto Sans Mono CJK SC"]
    file, index = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return ImageFont.truetype(file, FONT_SIZE, index=int(index))
