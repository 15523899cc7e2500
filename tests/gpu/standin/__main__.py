"""Runs a command on stand-in GPUs: python -m tests.gpu.standin [--count N] COMMAND ..."""

import os
import sys

from tests.gpu import standin


def main(arguments: list[str]) -> None:
    """Replace this process by the command. The number of GPUs is 4, or that of --count."""
    count = 4
    if arguments[:1] == ["--count"]:
        count, arguments = int(arguments[1]), arguments[2:]
    os.execvpe(arguments[0], arguments, standin.environment(count))


if __name__ == "__main__":
    main(sys.argv[1:])
