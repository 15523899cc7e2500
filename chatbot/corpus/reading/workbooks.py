"""The rows of the sheets of a workbook (.xlsx, .xls), which python-calamine reads; it is an optional dependency.

Hidden sheets are left out. All cells of a sheet are in memory, so a workbook with too many is refused before.
"""

import contextlib
import functools
import re
import zipfile
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

MAX_SIZE = 512 * 2**20  # bytes of an .xlsx file without its compression
MAX_CELLS = 2**24  # of 24 bytes and their texts, up to the last row and column of each sheet
FIRST_ROWS = 2000  # from which the layout of a sheet is detected
NO_VALUE = "cells of formulas without a value; save the workbook in Excel or LibreOffice, which compute them"
# The beginning of a row or a cell, with its place, if it is written, and whether it is empty.
_PLACE = re.compile(rb'<(?:\w+:)?(?:c|(row))(?:\s+r="([A-Z]{0,3})([0-9]{1,15})")?(?:\s[^<>]*?)?(/>|></|>)')
_FORMULA = re.compile(rb"(?:</(?:\w+:)?f|<(?:\w+:)?f\s[^<>]*/)>(?:<(?:\w+:)?v\s*(?:/|></(?:\w+:)?v)>)?</(?:\w+:)?c>")


class Sheet(NamedTuple):
    """A sheet whose rows can be read once."""

    place: str  # for messages
    format: str
    sample: list[list[str]]  # the first rows that are not empty
    rows: Iterator[tuple[int, list[str]]]  # (number, row) of all of them


def open_workbook(stream: BinaryIO, archive: zipfile.ZipFile | None, name: str) -> Any:
    """Return the workbook of python-calamine, which has the titles of its sheets before any is read.

    archive: of an .xlsx file. Raises UserError when the package is not installed, and for a file that is damaged,
    encrypted or too large.
    """
    try:
        import python_calamine
    except ModuleNotFoundError:
        raise UserError(f"{name}: a workbook; run `pip install python-calamine`, which reads it") from None
    if archive and sum(info.file_size for info in archive.infolist()) > MAX_SIZE:
        raise UserError(f"{name}: more than {MAX_SIZE // 2**20} MiB of tables; save it as CSV (UTF-8)")
    with _as_user_errors(name):
        stream.seek(0)
        return python_calamine.CalamineWorkbook.from_filelike(stream)


def sheets(
    book: Any, archive: zipfile.ZipFile | None, name: str, report: Report, members: Sequence[str] = ()
) -> Iterator[Sheet]:
    """Yield the visible sheets of a workbook. members: the titles of those to read, () for all.

    Raises UserError for a sheet that is damaged or has too many cells.
    """
    from python_calamine import SheetTypeEnum, SheetVisibleEnum

    if archive:
        with _as_user_errors(name):
            formulas = _check_cells(archive, name)
        if formulas:
            report.drop(NO_VALUE, name, formulas)
    for sheet in book.sheets_metadata:
        place = f"{name}: {one_line(sheet.name, 40)}"
        if sheet.visible != SheetVisibleEnum.Visible:
            report.drop("hidden sheets", place)
        elif sheet.typ == SheetTypeEnum.WorkSheet and (not members or sheet.name in members):
            with _as_user_errors(place):
                rows = _rows(book.get_sheet_by_name(sheet.name))
                first = [*islice(rows, FIRST_ROWS)]
            yield Sheet(place, "xlsx" if archive else "xls", [row for _, row in first], chain(first, rows))


def _rows(cells: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, row) for each row that is not empty."""
    left = [""] * (cells.start or (0, 0))[1]  # the columns before the first cell
    for number, values in enumerate(cells.iter_rows(), start=1):
        row = left + [_text(value) for value in values]
        while row and not row[-1]:
            row.pop()
        if row:
            yield number, row


def _text(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value).strip()


@contextlib.contextmanager
def _as_user_errors(place: str) -> Iterator[None]:
    """Convert the errors of a damaged or an encrypted file, which are of almost any kind, to UserError."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        remedy = "save it again, or as CSV (UTF-8)"
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: no workbook, a damaged or an encrypted one ({reason}); {remedy}") from None


def _check_cells(archive: zipfile.ZipFile, name: str) -> int:
    """Return the number of formulas whose values are missing, since a program that computes nothing saved the file.

    Raises UserError for too many cells, since the memory for all up to the last row and column would end the process.
    """
    cells = formulas = 0
    for member in archive.namelist():
        content = archive.read(member) if member.endswith(".xml") else b""
        if b"sheetData" not in content:
            continue
        formulas += len(_FORMULA.findall(content))
        row = column = rows = columns = 0
        for is_row, letters, digits, end in map(re.Match.groups, _PLACE.finditer(content)):
            row = int(digits or row + bool(is_row))
            column = 0 if is_row else _column(letters) if letters else column + 1
            if end == b">" and not is_row:
                rows = max(rows, row)
                columns = max(columns, column)
        cells += rows * columns
    if cells > MAX_CELLS:
        raise UserError(f"{name}: {cells:,} cells, with the empty ones before the last; save the table as CSV (UTF-8)")
    return formulas


@functools.cache
def _column(letters: bytes) -> int:
    return functools.reduce(lambda number, letter: 26 * number + letter - 64, letters, 0)
