"""Run the project's commands in this process: what is refused, help, and other short work."""

import contextlib
import io
import runpy
import shlex
import signal
import sys
from typing import NamedTuple
from unittest.mock import patch

from chatbot import commands
from tests.commands import ROOT


class Called(NamedTuple):
    """How a command has ended."""

    code: int
    out: str
    err: str


def call(line: str, *arguments: str) -> Called:
    """Run a line such as "train.py --steps 1", "chatbot.corpus inspect a.tsv" or "duida chat", with further words."""
    script, *words = shlex.split(line)
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    handler = signal.getsignal(signal.SIGINT)  # which commands replace
    with (
        patch.object(sys, "argv", [script, *words, *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            if script == "duida":
                code = commands.main()
            elif script.endswith(".py"):
                runpy.run_path(str(ROOT / script), run_name="__main__")
            else:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGINT, handler)
    assert isinstance(code, int | None)
    lines = [line for line in err.getvalue().splitlines(keepends=True) if not line.startswith("NO GPU")]
    return Called(code or 0, out.getvalue(), "".join(lines))
