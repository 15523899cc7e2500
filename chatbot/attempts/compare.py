"""Compares attempts by their settings, sizes and results, and plots their learning curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.description import Attempt, check_saved, read_attempt
from chatbot.attempts.files import CONFIG, LAST, METRICS, trained_directory
from chatbot.attempts.settings import stored_settings, stored_values
from chatbot.attempts.table import NONE, megabytes, millions, nats, number
from chatbot.config.attempts import CompareSettings
from chatbot.display import align_columns
from chatbot.flags import flag_of

# The widths of the table and of its first column, in characters.
COLUMNS = 100
NAMES = 26


def compare(settings: CompareSettings) -> None:
    """Print the comparison and plot the learning curves. Raises UserError if an attempt cannot be used."""
    directories = [trained_directory(name, "compare") for name in settings.attempts]
    values = [stored_values(stored_settings(directory / CONFIG)) for directory in directories]
    attempts = [read_attempt(directory) for directory in directories]
    for attempt in attempts:
        check_saved(attempt, "compare")
    from chatbot.attempts.curves import draw, read_records  # imports NumPy

    records = [read_records(directory / METRICS) for directory in directories]
    rows = [
        ["", *(attempt.name for attempt in attempts)],
        *(different_settings(values) or [["no setting differs", *[""] * len(attempts)]]),
        [""] * (1 + len(attempts)),
        *results(attempts, records),
    ]
    print(*align_columns(rows, [True, *[False] * len(attempts)]), sep="\n")
    validations = [read_pointer(directory / LAST).get("validation") for directory in directories]
    if len({*validations} - {None}) > 1:
        print("The attempts were validated on different pairs, so their nats per character are not comparable.")
    elif None not in validations and (better := better_line(attempts)):
        print(better)
    if any(records):
        names = [attempt.name for attempt in attempts]
        path = Path(settings.plot or f"curves-{'-'.join(names)}.png")
        draw(list(zip(names, records, strict=True)), path)
        print(f"Curves: {path}")
    else:
        print(f"No curves: no attempt has a {METRICS} with records.")


def better_line(attempts: Sequence[Attempt]) -> str:
    """Return a line that names the attempt with the lowest validation loss; "" for a tie or missing losses.

    All attempts must be validated on the same pairs.
    """
    ranked = sorted((nats, a.name) for a in attempts if (nats := a.best_nats_per_character) is not None)
    if len(ranked) < len(attempts) or ranked[0][0] == ranked[1][0]:
        return ""
    (best, name), (second, _), *_ = ranked
    return f"Better: {name}, by {second - best:.4f} nats per character on the same held-out pairs."


def different_settings(values: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each setting that differs between attempts: the flag, then its values.

    Values that are too long for their column, such as paths, are truncated at the start.
    """
    width = max(12, (COLUMNS - NAMES) // len(values) - len("  "))
    rows = [[flag_of(name), *(_format(each[name]) for each in values)] for name in values[0] if name != "attempt"]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return [
        [name, *(text if len(text) <= width else f"…{text[1 - width :]}" for text in row)] for name, *row in different
    ]


def results(attempts: Sequence[Attempt], records: Sequence[Sequence[dict[str, Any]]]) -> list[list[str]]:
    """Return the table rows with the sizes and the results of the attempts."""
    losses = [
        next((record["loss"] for record in reversed(attempt_records) if isinstance(record.get("loss"), float)), None)
        for attempt_records in records
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


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or NONE
    return NONE if value is None else str(value)
