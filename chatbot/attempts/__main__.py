"""python -m chatbot.attempts [compare | prune | rename | average]: a table of all attempts, and commands for them."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from chatbot.attempts.attempt import all_attempts, as_json
from chatbot.attempts.average import average
from chatbot.attempts.compare import compare
from chatbot.attempts.folders import prune, rename
from chatbot.attempts.table import table, terminal_width
from chatbot.config.attempts import (
    CHECKPOINTS,
    AverageSettings,
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
prune [ATTEMPT ...] (lists what no attempt needs, and removes it with --yes); rename OLD NEW;
average ATTEMPT [CHECKPOINT ...] (a new attempt with the mean of the weights of checkpoints)."""
ABOUT_COMPARE = "Compare attempts: the settings that differ, sizes, best values, and a picture of the curves."
ABOUT_PRUNE = (
    "List what no attempt needs, with its size, and remove it with --yes: checkpoints that neither `last` nor `best` "
    "names, attempts that never saved a checkpoint, and curves in tensorboard/ of attempts that are gone."
)
ABOUT_RENAME = "Rename an attempt: its folders in checkpoints/ and tensorboard/, and its name in config.json."
ABOUT_AVERAGE = (
    "Write a new attempt whose weights are the mean of those of an attempt's checkpoints. Chat, evaluation and "
    "--init-from can use it; without a state of the optimizer, it cannot be resumed."
)


def main() -> int:
    """Run the command that the first argument names, or print the table of all attempts."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in COMMANDS:
        return COMMANDS[command](sys.argv[2:])
    if command and not command.startswith("-"):
        raise UserError(f"{command}: no such command; choose {', '.join(list(COMMANDS)[:-1])} or {list(COMMANDS)[-1]}")
    return list_command(sys.argv[1:])


def list_command(arguments: Sequence[str]) -> int:
    """Print the table of all attempts. Return the exit code."""
    settings = parse(ListSettings, MODULE, ABOUT, arguments)
    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts, terminal_width()), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train.py')}")
    return 0


def _run(run: Callable[[Any], None], kind: type[Any], positional: str, about: str, arguments: Sequence[str]) -> int:
    """Run a command with its settings, of this kind. positional: the one whose values are positional arguments."""
    run(parse(kind, f"{MODULE} {run.__name__}", about, arguments, positional=positional))
    return 0


COMMANDS = {
    "compare": functools.partial(_run, compare, CompareSettings, "attempts", ABOUT_COMPARE),
    "prune": functools.partial(_run, prune, PruneSettings, "attempts", ABOUT_PRUNE),
    "rename": functools.partial(_run, rename, RenameSettings, "names", ABOUT_RENAME),
    "average": functools.partial(_run, average, AverageSettings, "checkpoints", ABOUT_AVERAGE),
}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
