"""python -m chatbot.attempts [compare | prune | rename]: a table of all attempts, and commands for them."""

import json
import sys
from collections.abc import Callable, Sequence

from chatbot.attempts.attempt import all_attempts, as_json
from chatbot.attempts.compare import compare
from chatbot.attempts.folders import prune, rename
from chatbot.attempts.table import table
from chatbot.command_line import program, run_command
from chatbot.config.attempts import CHECKPOINTS, COMPARE, LIST, PRUNE, RENAME
from chatbot.errors import exit_code_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, or print the table of all attempts."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-"):
        return run_command("", COMMANDS, arguments)
    return list_command(arguments)


def list_command(arguments: Sequence[str]) -> int:
    """Print the table of all attempts. Return the exit code."""
    settings = LIST.parse(arguments)
    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train.py')}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "compare": lambda arguments: compare(COMPARE.parse(arguments)),
    "prune": lambda arguments: prune(PRUNE.parse(arguments)),
    "rename": lambda arguments: rename(RENAME.parse(arguments)),
}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
