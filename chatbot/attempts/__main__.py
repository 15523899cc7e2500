"""python -m chatbot.attempts [compare | prune | rename | average]: a table of all attempts, and commands for them."""

import json
import sys
from collections.abc import Sequence

from chatbot.config.attempts import (
    CHECKPOINTS,
    AverageSettings,
    CompareSettings,
    ListSettings,
    PruneSettings,
    RenameSettings,
)
from chatbot.errors import UserError, exit_code_of
from chatbot.flags import Composed, parse, program

MODULE = "-m chatbot.attempts"
ABOUT = """List the attempts in checkpoints/. Further commands, each with its own --help:
compare ATTEMPT ATTEMPT ... (settings that differ, sizes, best values, and a picture of the curves);
prune [ATTEMPT ...] (lists what no attempt needs, and removes it with --yes); rename OLD NEW;
average ATTEMPT [CHECKPOINT ...] (a new attempt with the mean of the weights of checkpoints)."""


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
    from chatbot.attempts.attempt import all_attempts, as_json
    from chatbot.attempts.columns import terminal_width
    from chatbot.attempts.table import table

    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts, terminal_width()), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train.py')}")
    return 0


def compare_command(arguments: Sequence[str]) -> int:
    """Print what differs between attempts, and draw their curves. Return the exit code."""
    about = "Compare attempts: the settings that differ, sizes, best values, and a picture of the curves."
    settings = _parsed(CompareSettings, "compare", about, arguments, "attempts")
    from chatbot.attempts.compare import compare

    compare(settings)
    return 0


def prune_command(arguments: Sequence[str]) -> int:
    """List what no attempt needs, and remove it with --yes. Return the exit code."""
    about = (
        "List what no attempt needs, with its size, and remove it with --yes: checkpoints that neither `last` nor "
        "`best` names, attempts that never saved a checkpoint, and curves in tensorboard/ of attempts that are gone."
    )
    settings = _parsed(PruneSettings, "prune", about, arguments, "attempts")
    from chatbot.attempts.prune import prune

    prune(settings)
    return 0


def rename_command(arguments: Sequence[str]) -> int:
    """Rename an attempt. Return the exit code."""
    about = "Rename an attempt: its folders in checkpoints/ and tensorboard/, and its name in config.json."
    settings = _parsed(RenameSettings, "rename", about, arguments, "names")
    from chatbot.attempts.rename import rename

    rename(*settings.names)
    return 0


def average_command(arguments: Sequence[str]) -> int:
    """Write the mean of checkpoints as a new attempt. Return the exit code."""
    about = (
        "Write a new attempt whose weights are the mean of those of an attempt's checkpoints. Chat, evaluation and "
        "--init-from can use it; without a state of the optimizer, it cannot be resumed."
    )
    settings = _parsed(AverageSettings, "average", about, arguments, "checkpoints")
    from chatbot.attempts.average import average

    average(settings)
    return 0


def _parsed(kind: type[Composed], command: str, about: str, arguments: Sequence[str], positional: str) -> Composed:
    """Return the settings of a command. positional: the setting whose values are positional arguments."""
    return parse(kind, f"{MODULE} {command}", about, arguments, positional=positional)


COMMANDS = {
    "compare": compare_command,
    "prune": prune_command,
    "rename": rename_command,
    "average": average_command,
}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
