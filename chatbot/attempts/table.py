"""Prints a table of all attempts, and formats its cells."""

import json
from collections.abc import Callable, Sequence

from chatbot.attempts.description import BROKEN, DAMAGED, Attempt, all_attempts, as_json
from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS, ListSettings
from chatbot.display import align_columns, cut, one_line

NONE = "-"
# Maps the heading of each column to a function that formats its cells. "nats" is the best validation loss in nats per
# character, and "at" is its step.
COLUMNS: dict[str, Callable[[Attempt], str]] = {
    "name": lambda attempt: attempt.name,
    "data": lambda attempt: data_cell(attempt.data),
    "size": lambda attempt: NONE if attempt.rnn_size is None else f"{attempt.rnn_size}x{attempt.num_layers}",
    "weights": lambda attempt: millions(attempt.weights),
    "step": lambda attempt: number(attempt.step),
    "nats": lambda attempt: nats(attempt.best_nats_per_character),
    "at": lambda attempt: number(attempt.best_step),
    "saved": lambda attempt: (attempt.saved or NONE)[:10],
    "disk": lambda attempt: megabytes(attempt.bytes),
    "state": lambda attempt: attempt.state,
}
TEXTS = ("name", "data", "size", "saved", "state")  # left-aligned columns


def print_table(settings: ListSettings) -> None:
    """Print the table of all attempts, or one JSON object per attempt with --json."""
    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train')}")


def table(attempts: Sequence[Attempt]) -> list[str]:
    """Return the lines of the table, followed by a line for each broken or damaged attempt."""
    rows = [list(COLUMNS), *([cell(attempt) for cell in COLUMNS.values()] for attempt in attempts)]
    broken = [
        one_line(f"{attempt.name} is {attempt.state}: {attempt.problem}")
        for attempt in attempts
        if attempt.state in (BROKEN, DAMAGED)
    ]
    return [*align_columns(rows, [name in TEXTS for name in COLUMNS]), *([""] if broken else []), *broken]


def data_cell(names: Sequence[str]) -> str:
    """Format file names as the first name and the number of further names."""
    if len(names) > 1:
        return f"{cut(names[0], 40)} +{len(names) - 1}"
    return names[0] if names else NONE


def number(value: int | None) -> str:
    """Format a number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def nats(value: float | None) -> str:
    """Format a value in nats with three decimals."""
    return NONE if value is None else f"{value:.3f}"


def millions(value: int | None) -> str:
    """Format a number in millions, such as "3.2M"."""
    return NONE if value is None else f"{value / 1e6:.{1 if value >= 5e4 else 3}f}M"


def megabytes(size: int) -> str:
    """Format a number of bytes in kB, MB or GB."""
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
