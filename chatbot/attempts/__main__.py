"""python -m chatbot.attempts [compare | prune | rename]: a table of all attempts, and commands for them."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from chatbot.attempts.attempt import all_attempts, as_json
from chatbot.attempts.compare import compare
from chatbot.attempts.folders import prune, rename
from chatbot.attempts.table import table
from chatbot.config.attempts import (
    CHECKPOINTS,
    CompareSettings,
    ListSettings,
    PruneSettings,
    RenameSettings,
)
from chatbot.errors import UserError, exit_code_of
from chatbot.flags import parse, program

MODULE = "-m chatbot.attempts"
ABOUT = """List the attempts in checkpoints/. Further commands, each with its own --help:
compare ATTEMPT ATTEMPT ... (settings that differ, sizes, best values, and a picture of the curves);
prune [ATTEMPT ...] (lists what no attempt needs, and removes it with --yes); rename OLD NEW."""


def main() -> int:
    """Run the command that the first argument names, or print the table of all attempts."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in COMMANDS:
        return run_command(command, sys.argv[2:])
    if command and not command.startswith("-"):
        raise UserError(f"{command}: no such command; choose {', '.join(list(COMMANDS)[:-1])} or {list(COMMANDS)[-1]}")
    return list_command(sys.argv[1:])


def run_command(command: str, arguments: Sequence[str]) -> int:
    """Run one of COMMANDS. Return the exit code."""
    run, kind, positional = COMMANDS[command]
    run(parse(kind, f"{MODULE} {command}", kind.__doc__ or "", arguments, positional=positional))
    return 0


def list_command(arguments: Sequence[str]) -> int:
    """Print the table of all attempts. Return the exit code."""
    settings = parse(ListSettings, MODULE, ABOUT, arguments)
    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train.py')}")
    return 0


# The function of each command, its settings, and the one whose values are positional arguments.
COMMANDS: dict[str, tuple[Callable[[Any], None], type[Any], str]] = {
    "compare": (compare, CompareSettings, "attempts"),
    "prune": (prune, PruneSettings, "attempts"),
    "rename": (rename, RenameSettings, "names"),
}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
