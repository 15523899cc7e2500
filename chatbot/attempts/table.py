"""The table of all attempts."""

from collections.abc import Callable, Sequence

from chatbot.attempts.attempt import BROKEN, DAMAGED, Attempt
from chatbot.attempts.columns import aligned, column_widths, printable, shortened, total_width

NONE = "-"
# The columns: heading, whether it is aligned to the left, and its cell. "nats" are the best nats per character of
# validation, and "at" is their step.
COLUMNS: dict[str, tuple[bool, Callable[[Attempt], str]]] = {
    "name": (True, lambda attempt: attempt.name),
    "data": (True, lambda attempt: shown_data(attempt.data)),
    "size": (True, lambda attempt: _size(attempt)),
    "weights": (False, lambda attempt: millions(attempt.weights)),
    "step": (False, lambda attempt: number(attempt.step)),
    "nats": (False, lambda attempt: nats(attempt.best_nats_per_character)),
    "at": (False, lambda attempt: number(attempt.best_step)),
    "saved": (True, lambda attempt: (attempt.saved or NONE)[:10]),
    "disk": (False, lambda attempt: megabytes(attempt.bytes)),
    "state": (True, lambda attempt: attempt.state),
}
# In a narrow terminal, these columns become narrower, down to so many characters, ...
FLEXIBLE = {"data": 6, "name": 12}
# ... and these are left out, in this order.
OPTIONAL = ("weights", "at", "size", "data", "disk", "saved")


def table(attempts: Sequence[Attempt], width: int | None) -> list[str]:
    """Return the lines of the table, then a line for each attempt that is broken or damaged.

    width: of the terminal, None for a table of any width.
    """
    names = list(COLUMNS)
    lines = _fitted(attempts, names, width)
    while lines is None and (left_out := next((name for name in OPTIONAL if name in names), None)):
        names.remove(left_out)
        lines = _fitted(attempts, names, width)
    broken = [
        printable(f"{attempt.name} is {attempt.state}: {attempt.problem}")
        for attempt in attempts
        if attempt.state in (BROKEN, DAMAGED)
    ]
    rows = lines or _fitted(attempts, names, None) or []
    return [*rows, *([""] if broken else []), *broken]


def _fitted(attempts: Sequence[Attempt], names: Sequence[str], width: int | None) -> list[str] | None:
    """Return the lines of a table with these columns, None if they do not fit."""
    rows = [list(names), *([COLUMNS[name][1](attempt) for name in names] for attempt in attempts)]
    widths = column_widths(rows)
    for name, least in FLEXIBLE.items():
        if width is not None and name in names:
            place = names.index(name)
            widths[place] = max(min(least, widths[place]), widths[place] - max(0, total_width(widths) - width))
    if width is not None and total_width(widths) > width:
        return None
    return aligned(rows, [COLUMNS[name][0] for name in names], widths)


def shown_data(names: Sequence[str]) -> str:
    """Return the first name and the number of further ones."""
    if not names:
        return NONE
    return names[0] if len(names) == 1 else f"{shortened(names[0], 40)} +{len(names) - 1}"


def _size(attempt: Attempt) -> str:
    return NONE if attempt.rnn_size is None else f"{attempt.rnn_size}x{attempt.num_layers}"


def number(value: int | None) -> str:
    """Return a number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def nats(value: float | None) -> str:
    """Return nats per character."""
    return NONE if value is None else f"{value:.3f}"


def millions(value: int | None) -> str:
    """Return a number of weights in millions."""
    return NONE if value is None else f"{value / 1e6:.1f}M" if value >= 5e4 else f"{value / 1e6:.3f}M"


def megabytes(size: int) -> str:
    """Return a size on the disk."""
    return (
        f"{size / 1e9:.1f} GB" if size >= 999.5e6 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    )
