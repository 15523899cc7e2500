"""Lines that cannot be written do not end a run."""

import os
import subprocess
import sys

import pytest

from chatbot.training.reporting.terminal import Stream
from tests.commands import ENVIRONMENT


def test_reader_that_is_gone_is_replaced_by_the_null_device() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as file:
        stream = Stream(file)
        stream.write("nobody reads this\n")
        stream.flush()
        print("nor this", file=file, flush=True)  # other code, which would end in a BrokenPipeError
    stream.write("closed\n")
    stream.flush()
    Stream(None).write("there is no stream\n")
    assert not Stream(None).is_terminal


def test_full_disk_is_no_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    file = open("/dev/full", "w", buffering=1)  # noqa: SIM115  # its content cannot be written when it is closed
    Stream(file).write("no space\n")
    Stream(file).flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    file.close()


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- 2>&-"])
def test_closed_streams_are_replaced(closed: str) -> None:
    """Otherwise the next file that is opened gets the number of standard error, and the log lines of libraries."""
    code = (
        "import os, sys; from chatbot.errors import exit_code_of\n"
        "def main():\n"
        "    print('one line', file=sys.stderr); print('line')\n"
        "    return 7 + (os.open('.', os.O_RDONLY) < 3)\n"
        "sys.exit(exit_code_of(main))"
    )
    command = f'exec {sys.executable} -c "{code}" {closed}'
    assert subprocess.run(["sh", "-c", command], env=ENVIRONMENT, timeout=60, check=False).returncode == 7
