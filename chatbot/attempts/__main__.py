"""python -m chatbot.attempts [compare | prune | rename | delete]: a table of all attempts, and commands for them."""

import json
import sys
from collections.abc import Callable, Sequence

from chatbot.command_line import program, run_command
from chatbot.config.attempts import CHECKPOINTS, COMPARE, DELETE, LIST, PRUNE, RENAME
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
    from chatbot.attempts.attempt import all_attempts, as_json
    from chatbot.attempts.table import table

    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train.py')}")
    return 0


def _compare(arguments: Sequence[str]) -> None:
    settings = COMPARE.parse(arguments)
    from chatbot.attempts.compare import compare

    compare(settings)


def _prune(arguments: Sequence[str]) -> None:
    settings = PRUNE.parse(arguments)
    from chatbot.attempts.folders import prune

    prune(settings)


def _rename(arguments: Sequence[str]) -> None:
    settings = RENAME.parse(arguments)
    from chatbot.attempts.folders import rename

    rename(settings)


def _delete(arguments: Sequence[str]) -> None:
    settings = DELETE.parse(arguments)
    from chatbot.attempts.folders import delete

    delete(settings)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "compare": _compare,
    "prune": _prune,
    "rename": _rename,
    "delete": _delete,
}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
