"""A comparison of attempts: the settings that differ, sizes, best values, and a picture of the curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.description import Attempt, check_saved, read_attempt
from chatbot.attempts.files import CONFIG, LAST, METRICS, trained_directory
from chatbot.attempts.settings import storable, stored_settings
from chatbot.attempts.table import NONE, megabytes, millions, nats, number
from chatbot.config.attempts import CompareSettings
from chatbot.display import aligned
from chatbot.flags import flag_of

COLUMNS, NAMES = 100, 26  # of the table, as far as its numbers leave room, and of the names of its rows


def compare(settings: CompareSettings) -> None:
    """Print the comparison, and draw the curves. Raises UserError for an attempt that cannot be used."""
    directories = [trained_directory(name, "compare") for name in settings.attempts]
    values = [storable(stored_settings(directory / CONFIG)) for directory in directories]
    attempts = [read_attempt(directory) for directory in directories]
    for attempt in attempts:
        check_saved(attempt, "compare")
    from chatbot.attempts.curves import draw, read_records  # NumPy

    records = [read_records(directory / METRICS) for directory in directories]
    rows = [
        ["", *(attempt.name for attempt in attempts)],
        *(different_settings(values) or [["no setting differs", *[""] * len(attempts)]]),
        [""] * (1 + len(attempts)),
        *results(attempts, records),
    ]
    print(*aligned(rows, [True, *[False] * len(attempts)]), sep="\n")
    validations = [read_pointer(directory / LAST).get("validation") for directory in directories]
    if len({*validations} - {None}) > 1:
        print("They were validated on different pairs, so their nats per character cannot be compared.")
    elif None not in validations and (better := better_of(attempts)):
        print(better)
    if any(records):
        names = [attempt.name for attempt in attempts]
        path = Path(settings.plot or f"curves-{'-'.join(names)}.png")
        draw(list(zip(names, records, strict=True)), path)
        print(f"Curves: {path}")
    else:
        print(f"No curves: none of them has a {METRICS} with records.")


def better_of(attempts: Sequence[Attempt]) -> str:
    """Return the line that names the better of attempts that were validated on the same pairs; "" if none is."""
    ranked = sorted((nats, one.name) for one in attempts if (nats := one.best_nats_per_character) is not None)
    if len(ranked) < len(attempts) or ranked[0][0] == ranked[1][0]:
        return ""
    (best, name), (second, _), *_ = ranked
    return f"Better: {name}, by {second - best:.4f} nats per character on the same held-out pairs."


def different_settings(values: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each setting that is not the same in all attempts: its flag, and the values.

    A text that is too long for its column, such as a path, is shown by its end.
    """
    width = max(12, (COLUMNS - NAMES) // len(values) - len("  "))
    rows = [[flag_of(name), *(_shown(each[name]) for each in values)] for name in values[0] if name != "attempt"]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return [
        [name, *(text if len(text) <= width else f"…{text[1 - width :]}" for text in row)] for name, *row in different
    ]


def results(attempts: Sequence[Attempt], records: Sequence[Sequence[dict[str, Any]]]) -> list[list[str]]:
    """Return the rows of sizes and results."""
    losses = [
        next((record["loss"] for record in of_attempt[::-1] if isinstance(record.get("loss"), float)), None)
        for of_attempt in records
    ]
    return [
        ["training pairs", *(number(attempt.pairs) for attempt in attempts)],
        ["tokens of the vocabulary", *(number(attempt.vocabulary) for attempt in attempts)],
        ["weights", *(millions(attempt.weights) for attempt in attempts)],
        ["size on disk", *(megabytes(attempt.bytes) for attempt in attempts)],
        ["step", *(number(attempt.step) for attempt in attempts)],
        ["best nats per character", *(nats(attempt.best_nats_per_character) for attempt in attempts)],
        ["at step", *(number(attempt.best_step) for attempt in attempts)],
        ["last loss, nats per token", *(nats(loss) for loss in losses)],
        ["state", *(attempt.state for attempt in attempts)],
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or NONE
    return NONE if value is None else str(value)
