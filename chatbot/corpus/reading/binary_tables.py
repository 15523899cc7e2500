"""Tables that programs save in a binary form: columnar files (Parquet, Arrow, Feather) and workbooks (.xlsx, .xls).

A row of a columnar file is an object with the names of the columns, or the value of the only one that has lists; so are
the saved folders of Hugging Face's `datasets`. pyarrow and python-calamine read them; both are optional dependencies.
Hidden sheets are left out. All cells of a sheet are in memory, so a workbook with too many is refused before.
"""

import contextlib
import functools
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

ROWS = 512  # converted to Python's objects at once
MARK = b"ARROW1\0\0"  # at the beginning of an Arrow file, which is a stream between this and a directory
MAX_SIZE = 512 * 2**20  # bytes of an .xlsx file without its compression
MAX_CELLS = 2**24  # of 24 bytes and their texts, up to the last row and column of each sheet
FIRST_ROWS = 2000  # from which the layout of a sheet is detected
NO_VALUE = "cells of formulas without a value; save the workbook in Excel or LibreOffice, which compute them"
# The beginning of a row or a cell, with its place, if it is written, and whether it is empty.
_PLACE = re.compile(rb'<(?:\w+:)?(?:c|(row))(?:\s+r="([A-Z]{0,3})([0-9]{1,15})")?(?:\s[^<>]*?)?(/>|></|>)')
_FORMULA = re.compile(rb"(?:</(?:\w+:)?f|<(?:\w+:)?f\s[^<>]*/)>(?:<(?:\w+:)?v\s*(?:/|></(?:\w+:)?v)>)?</(?:\w+:)?c>")


def columnar_rows(path: Path, kind: str, place: str, report: Report, spend: Callable[[int], None]) -> Iterator[Any]:
    """Yield each row of a file, "parquet" or "arrow" by its kind. Holds a few in memory.

    spend: called with each number of bytes in memory, to refuse too many. Raises UserError when pyarrow is not
    installed, and for a damaged file.
    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        title = {"parquet": "a Parquet file", "arrow": "an Arrow file"}[kind]
        raise UserError(f"{place}: {title}; run `pip install pyarrow`, which reads it") from None
    size = path.stat().st_size
    before = report.read_bytes
    batches = {"parquet": _parquet_batches, "arrow": _arrow_batches}[kind]
    try:
        for batch, share in batches(path, spend):
            report.read_bytes = before + int(size * share)
            yield from _rows_of_batch(batch, place)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged {kind.title()} file ({reason}); download it again") from None


def _rows_of_batch(batch: Any, place: str) -> Iterator[Any]:
    names = _columns(batch.schema)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{place}: two columns have the name {one_line(twice, 30)}; rename one of them")
    lists = [name for name in names if batch.schema.field(name).type.num_fields]
    texts = [batch[name].cast(_with_written_times(batch[name].type)) for name in names]
    for row in type(batch).from_arrays(texts, names).to_pylist():
        yield row[lists[0]] if len(names) == len(lists) == 1 else row


def _with_written_times(kind: Any) -> Any:
    """Return a type with text in place of times: Python has no nanoseconds, and no years above 9999."""
    import pyarrow.types

    if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_interval(kind):
        return pyarrow.string()
    if pyarrow.types.is_dictionary(kind):
        return _with_written_times(kind.value_type)
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_with_written_times(field.type)) for field in kind])
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        new = pyarrow.list_ if pyarrow.types.is_list(kind) else pyarrow.large_list
        return new(kind.value_field.with_type(_with_written_times(kind.value_type)))
    return kind


def _columns(schema: Any) -> list[str]:
    """Return the names of the columns that are read: not those with lists or objects without text."""
    return [field.name for field in schema if _has_text(field.type) or not field.type.num_fields]


def _has_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text, or a list or an object that contains text."""
    if kind.num_fields:
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    value = getattr(kind, "value_type", kind)  # of a dictionary of repeated texts
    return str(value) in ("string", "large_string", "string_view")


def _parquet_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield batches of at most ROWS rows, each with the share of the file that was read before it."""
    import pyarrow.parquet

    # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
    with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        groups = file.metadata.num_row_groups
        spend(sum(file.metadata.row_group(number).total_byte_size for number in range(groups)))
        for group in range(groups):
            for batch in file.iter_batches(ROWS, [group], _columns(file.schema_arrow), use_threads=False):
                yield batch, group / groups


def _arrow_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield the batches of an Arrow file, or of a stream as `datasets` saves it."""
    import pyarrow.ipc

    with pyarrow.OSFile(str(path)) as stream:
        if stream.read(len(MARK)) != MARK:
            stream.seek(0)
        share = 0.0
        for batch in pyarrow.ipc.open_stream(stream):
            # A dictionary belongs to all batches.
            known = sum(column.dictionary.nbytes for column in batch.columns if share and hasattr(column, "dictionary"))
            spend(batch.nbytes - known)
            batch.validate(full=True)  # a damaged offset would end the process
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS), share
            share = min(1.0, stream.tell() / path.stat().st_size)


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
                rows = _rows_of_sheet(book.get_sheet_by_name(sheet.name))
                first = [*islice(rows, FIRST_ROWS)]
            yield Sheet(place, "xlsx" if archive else "xls", [row for _, row in first], chain(first, rows))


def _rows_of_sheet(cells: Any) -> Iterator[tuple[int, list[str]]]:
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
