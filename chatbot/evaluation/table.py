"""A table of measures for the terminal."""

from collections.abc import Mapping
from typing import Any

# The columns: heading, measure, and the factor and decimals of its values.
COLUMNS = (
    ("distinct-2 of characters", "distinct_characters_2", 1, 3),
    ("top reply", "top_reply_share", 100, 1),
    ("top ten", "top10_reply_share", 100, 1),
    ("repeated", "repeated_reply_share", 100, 1),
    ("relevance", "relevance_at_1", 1, 3),
    ("BLEU", "bleu", 1, 2),
    ("chrF", "chrf", 1, 2),
    ("mean tokens", "mean_reply_tokens", 1, 1),
)


# The name of each row: its object in the JSON.
ROWS = {"references": "references", "random of this file": "random", "baseline": "baseline"}


def rows_of(measures: Mapping[str, Any]) -> dict[str, Mapping[str, float | None]]:
    """Return the rows of the table of an evaluation. measures: the result of `evaluate`."""
    return {"model": measures, **{row: measures[name] for row, name in ROWS.items() if name in measures}}


def table(rows: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return the lines of an aligned table. rows: by name, the measures of `Measures.values`; None is shown as "-"."""
    shown = cells(rows)
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(line))
        for line in (list(zip(row, widths, strict=True)) for row in shown)
    ]


def cells(rows: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    """Return the texts of the table's cells, the headings first."""
    shown = [["", *(heading for heading, *_ in COLUMNS)]]
    for name, values in rows.items():
        shown.append([name, *(_shown(values[measure], factor, digits) for _, measure, factor, digits in COLUMNS)])
    return shown


def _shown(value: float | None, factor: int, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value * factor:.{digits}f}" + ("%" if factor == 100 else "")
