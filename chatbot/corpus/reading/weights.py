"""Weights of pairs, from the column or field that --weight-column names."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

import numpy as np

from chatbot.corpus.reading.display import listing, numbered, one_line
from chatbot.corpus.reading.pair import NEW, Pair
from chatbot.errors import UserError

REMEDY = "correct it, or leave out --weight-column"


class WeightError(UserError):
    """A weight that cannot be used."""


def weight_of(value: object) -> float:
    """Return a weight as its value in float32. Raises WeightError unless it is a finite number of at least 0."""
    number = math.nan
    if isinstance(value, int | float | Decimal | str) and not isinstance(value, bool):
        try:
            with np.errstate(over="ignore"):
                number = float(np.float32(float(value)))
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number) or number < 0:
        raise WeightError(f"the weight {one_line(repr(value), 30)} is not a finite number of at least 0; {REMEDY}")
    return number


def weighted_row(question: str, answer: str, row: Sequence[str], column: int, place: str) -> Pair:
    """Return the pair of a row of a table with its weight. Raises WeightError if the row has none that can be used."""
    with at_place(lambda: place):
        return question, answer, NEW, weight_of(row[column] if column < len(row) else "")


def weight_column_of(first: Sequence[str], name: str, place: str) -> int:
    """Return the index of the weights in a table. first: its first row. name: the name of the column, or its number.

    Raises UserError if there is no such column.
    """
    names = [cell.strip().casefold() for cell in first]
    if name.casefold() in names:
        return names.index(name.casefold())
    if name.isdecimal() and 0 < int(name) <= len(names):
        return int(name) - 1
    problem = f"{place}: no column {one_line(name, 20)}; give --weight-column one of: "
    raise UserError(listing(problem, numbered(first)))


@contextmanager
def at_place(place: Callable[[], str]) -> Iterator[None]:
    """Name the place of a weight that cannot be used. place: of the value that is read."""
    try:
        yield
    except WeightError as error:
        raise UserError(f"{place()}: {error}") from None
