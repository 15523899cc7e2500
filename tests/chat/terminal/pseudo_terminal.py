"""A program in a pseudo-terminal and its screen."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

from tests.commands import ENVIRONMENT

LIMIT = 240  # seconds
# What would be another terminal than this one. Workers of pytest-xdist have COLUMNS.
NOT_INHERITED = {"NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "COLUMNS", "LINES"}
FAKE = [sys.executable, "-m", "tests.chat.terminal.fake_model"]


class PseudoTerminal:
    """A terminal that runs a program, by default the chat with the fake model.

    state: the user's state folder. received: the whole output of the program.
    """

    def __init__(
        self,
        state: Path,
        command: Sequence[str] = FAKE,
        columns: int = 80,
        variables: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.screen = pyte.Screen(columns, 24)
        self.received = ""
        self._stream = pyte.Stream(self.screen)
        environment = {**ENVIRONMENT, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state), "LC_ALL": "C.UTF-8"}
        environment = {name: value for name, value in environment.items() if name not in NOT_INHERITED}
        self.child = pexpect.spawn(
            command[0],
            [*command[1:]],
            cwd=str(state),
            env={**environment, **(variables or {})},
            dimensions=(24, columns),
            encoding=encoding,
            timeout=LIMIT,
        )
        self.child.delaybeforesend = None
        self.child.logfile_read = self  # gets all that is received

    def write(self, text: str) -> None:
        """Process output of the program."""
        self.received += text
        self._stream.feed(text)

    def flush(self) -> None:
        """Do nothing; pexpect needs this method."""

    def __enter__(self) -> "PseudoTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close(force=True)

    def type(self, text: str) -> None:
        """Type a text."""
        self.child.send(text)

    def ask(self, line: str, answer: str) -> None:
        """Type a line and Enter, wait until the screen contains the answer, and then for the prompt."""
        self.type(line + "\r")
        self.wait(answer)
        self.wait_for_prompt()

    def wait(self, text: str) -> None:
        """Wait until the screen contains a text."""
        while text not in self.text:
            self._read(text)

    def wait_for_prompt(self) -> None:
        """Wait until the cursor's line is an empty prompt."""
        while self.screen.display[self.screen.cursor.y].rstrip() != ">":
            self._read("the prompt")

    def end(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        code: int = self.child.exitstatus
        return code

    @property
    def text(self) -> str:
        """The lines of the screen. A wide character is followed by an empty cell, which is left out."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def _read(self, wanted: str) -> None:
        try:
            self.child.read_nonblocking(1 << 16, timeout=LIMIT)
        except (pexpect.TIMEOUT, pexpect.EOF) as error:
            raise AssertionError(f"{wanted!r} did not come: {type(error).__name__}\n{self.text}") from None
