"""The table of all attempts, and its cells."""

import json
from collections.abc import Callable, Sequence

from chatbot.attempts.description import BROKEN, DAMAGED, Attempt, all_attempts, as_json
from chatbot.commands import program
from chatbot.config.attempts import CHECKPOINTS, ListSettings
from chatbot.display import aligned, cut, one_line

NONE = "-"
# The columns: heading, and its cell. "nats" are the best nats per character of validation, and "at" is their step.
COLUMNS: dict[str, Callable[[Attempt], str]] = {
    "name": lambda attempt: attempt.name,
    "data": lambda attempt: shown_data(attempt.data),
    "size": lambda attempt: NONE if attempt.rnn_size is None else f"{attempt.rnn_size}x{attempt.num_layers}",
    "weights": lambda attempt: millions(attempt.weights),
    "step": lambda attempt: number(attempt.step),
    "nats": lambda attempt: nats(attempt.best_nats_per_character),
    "at": lambda attempt: number(attempt.best_step),
    "saved": lambda attempt: (attempt.saved or NONE)[:10],
    "disk": lambda attempt: megabytes(attempt.bytes),
    "state": lambda attempt: attempt.state,
}
TEXTS = ("name", "data", "size", "saved", "state")  # columns that are aligned to the left


def print_table(settings: ListSettings) -> None:
    """Print the table of all attempts, or their JSON."""
    attempts = all_attempts()
    if settings.json:
        for attempt in attempts:
            print(json.dumps(as_json(attempt), ensure_ascii=False))
    elif attempts:
        print(*table(attempts), sep="\n")
    else:
        print(f"No attempts in {CHECKPOINTS.absolute()}; train one with {program('train')}")


def table(attempts: Sequence[Attempt]) -> list[str]:
    """Return the lines of the table, then a line for each attempt that is broken or damaged."""
    rows = [list(COLUMNS), *([cell(attempt) for cell in COLUMNS.values()] for attempt in attempts)]
    broken = [
        one_line(f"{attempt.name} is {attempt.state}: {attempt.problem}")
        for attempt in attempts
        if attempt.state in (BROKEN, DAMAGED)
    ]
    return [*aligned(rows, [name in TEXTS for name in COLUMNS]), *([""] if broken else []), *broken]


def shown_data(names: Sequence[str]) -> str:
    """Return the first name and the number of further ones."""
    if len(names) > 1:
        return f"{cut(names[0], 40)} +{len(names) - 1}"
    return names[0] if names else NONE


def number(value: int | None) -> str:
    """Return a number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def nats(value: float | None) -> str:
    """Return nats per character."""
    return NONE if value is None else f"{value:.3f}"


def millions(value: int | None) -> str:
    """Return a number of weights in millions."""
    return NONE if value is None else f"{value / 1e6:.{1 if value >= 5e4 else 3}f}M"


def megabytes(size: int) -> str:
    """Return a size on the disk."""
    if size >= 999.5e6:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
