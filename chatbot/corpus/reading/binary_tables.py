"""Tables in binary formats: columnar files (Parquet, Arrow, Feather) and workbooks (.xlsx, .xls).

Each row of a columnar file becomes a dictionary keyed by column name. If the file has a single column of lists, each
row becomes its list. Folders saved by Hugging Face `datasets` are supported. Hidden sheets of workbooks are skipped.
Workbooks with too many cells are rejected, because sheets are loaded into memory.

Columnar files require pyarrow, and workbooks python-calamine. Both packages are optional.
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

ROWS = 512  # number of rows that are converted to Python objects at a time
MARK = b"ARROW1\0\0"  # magic bytes of an Arrow file; an Arrow stream follows them
MAX_SIZE = 512 * 2**20  # maximum decompressed size of an .xlsx file in bytes
MAX_CELLS = 2**24  # maximum number of cells in a workbook, including empty ones
FIRST_ROWS = 2000  # number of rows used to detect the layout of a sheet
NO_VALUE = "formula cells without a stored value; save the workbook in Excel or LibreOffice to compute the values"
# Matches the start tag of a row or cell. The groups are the optional cell reference (e.g. B2) and the end of the tag.
_PLACE = re.compile(rb'<(?:\w+:)?(?:c|(row))(?:\s+r="([A-Z]{0,3})([0-9]{1,15})")?(?:\s[^<>]*?)?(/>|></|>)')
_FORMULA = re.compile(rb"(?:</(?:\w+:)?f|<(?:\w+:)?f\s[^<>]*/)>(?:<(?:\w+:)?v\s*(?:/|></(?:\w+:)?v)>)?</(?:\w+:)?c>")


def read_columnar(path: Path, kind: str, place: str, report: Report, spend: Callable[[int], None]) -> Iterator[Any]:
    """Yield the rows of a Parquet or Arrow file, keeping only a few rows in memory.

    Args:
        path: Path of the file.
        kind: "parquet" or "arrow".
        place: Name of the file, shown in messages.
        report: Report whose `read_bytes` is updated.
        spend: Called with the size of each decompressed batch; raises UserError if the total is too large.

    Raises:
        UserError: If pyarrow is not installed or the file is damaged.
    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        title = {"parquet": "a Parquet file", "arrow": "an Arrow file"}[kind]
        raise UserError(f"{place}: {title}; run `pip install pyarrow` to read it") from None
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
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{place}: two columns have the name {one_line(duplicate, 30)}; rename one of them")
    lists = [name for name in names if batch.schema.field(name).type.num_fields]
    texts = [batch[name].cast(_times_as_text(batch[name].type)) for name in names]
    for row in type(batch).from_arrays(texts, names).to_pylist():
        yield row[lists[0]] if len(names) == len(lists) == 1 else row


def _times_as_text(kind: Any) -> Any:
    """Replace Arrow's date and time types with strings, because Python cannot represent all of their values."""
    import pyarrow.types

    if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_interval(kind):
        return pyarrow.string()
    if pyarrow.types.is_dictionary(kind):
        return _times_as_text(kind.value_type)
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_times_as_text(field.type)) for field in kind])
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        build_list = pyarrow.list_ if pyarrow.types.is_list(kind) else pyarrow.large_list
        return build_list(kind.value_field.with_type(_times_as_text(kind.value_type)))
    return kind


def _columns(schema: Any) -> list[str]:
    """Return the names of the columns to read. Nested columns without text are skipped."""
    return [field.name for field in schema if _has_text(field.type) or not field.type.num_fields]


def _has_text(kind: Any) -> bool:
    """Return whether an Arrow type is a string type, or a nested type that contains one."""
    if kind.num_fields:
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    value = getattr(kind, "value_type", kind)  # Dictionary-encoded types have a `value_type`.
    return str(value) in ("string", "large_string", "string_view")


def _parquet_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield batches of at most ROWS rows, each with the fraction of the file that has been read before it."""
    import pyarrow.parquet

    # With a buffer, pyarrow does not load whole row groups into memory.
    with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        groups = file.metadata.num_row_groups
        spend(sum(file.metadata.row_group(number).total_byte_size for number in range(groups)))
        for group in range(groups):
            for batch in file.iter_batches(ROWS, [group], _columns(file.schema_arrow), use_threads=False):
                yield batch, group / groups


def _arrow_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield the batches of an Arrow file or stream, each with the fraction of the file that has been read before it."""
    import pyarrow.ipc

    with pyarrow.OSFile(str(path)) as stream:
        if stream.read(len(MARK)) != MARK:
            stream.seek(0)
        share = 0.0
        for batch in pyarrow.ipc.open_stream(stream):
            # All batches share their dictionaries, so the dictionaries are counted only with the first batch.
            shared = sum(
                column.dictionary.nbytes for column in batch.columns if share and hasattr(column, "dictionary")
            )
            spend(batch.nbytes - shared)
            batch.validate(full=True)  # Without this check, a damaged offset crashes the process.
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS), share
            share = min(1.0, stream.tell() / path.stat().st_size)


class Table(NamedTuple):
    """A table whose rows can be iterated only once."""

    place: str  # name of the table, shown in messages
    format: str
    sample: list[list[str]]  # first non-empty rows
    rows: Iterator[tuple[int, list[str]]]  # all rows, each with its number
    unit: str = "line"  # "line" or "row", the unit of the row numbers


def open_workbook(stream: BinaryIO, archive: zipfile.ZipFile | None, name: str) -> Any:
    """Open a workbook with python-calamine, without reading any sheet.

    Args:
        stream: Content of the file.
        archive: The same file opened as a zip archive (.xlsx), or None (.xls).
        name: Name of the file, shown in messages.

    Raises:
        UserError: If python-calamine is not installed, or the file is damaged, encrypted or too large.
    """
    try:
        import python_calamine
    except ModuleNotFoundError:
        raise UserError(f"{name}: a workbook; run `pip install python-calamine` to read it") from None
    if archive and sum(info.file_size for info in archive.infolist()) > MAX_SIZE:
        raise UserError(f"{name}: more than {MAX_SIZE // 2**20} MiB of tables; save it as CSV (UTF-8)")
    with _as_user_errors(name):
        stream.seek(0)
        return python_calamine.CalamineWorkbook.from_filelike(stream)


def sheets(
    book: Any, archive: zipfile.ZipFile | None, name: str, report: Report, members: Sequence[str] = ()
) -> Iterator[Table]:
    """Yield the visible sheets of a workbook. If `members` is not empty, only the sheets with these names are yielded.

    Raises:
        UserError: If a sheet is damaged or has too many cells.
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
                sample = [*islice(rows, FIRST_ROWS)]
            yield Table(place, "xlsx" if archive else "xls", [row for _, row in sample], chain(sample, rows), "row")


def _rows_of_sheet(cells: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each non-empty row."""
    padding = [""] * (cells.start or (0, 0))[1]  # calamine omits empty columns on the left.
    for number, values in enumerate(cells.iter_rows(), start=1):
        row = padding + [_cell_text(value) for value in values]
        while row and not row[-1]:
            row.pop()
        if row:
            yield number, row


def _cell_text(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value).strip()


@contextlib.contextmanager
def _as_user_errors(place: str) -> Iterator[None]:
    """Convert errors to UserError. Damaged and encrypted files cause errors of almost any type."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Panics in Rust code are not subclasses of Exception.
        remedy = "save it again, or as CSV (UTF-8)"
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: not a workbook, or damaged or encrypted ({reason}); {remedy}") from None


def _check_cells(archive: zipfile.ZipFile, name: str) -> int:
    """Count the formula cells without a stored value. Raises UserError if the workbook has too many cells."""
    cells = formulas = 0
    for member in archive.namelist():
        content = archive.read(member) if member.endswith(".xml") else b""
        if b"sheetData" not in content:
            continue
        formulas += len(_FORMULA.findall(content))
        row = column = rows = columns = 0
        for is_row, letters, digits, end in map(re.Match.groups, _PLACE.finditer(content)):
            row = int(digits or row + bool(is_row))
            column = 0 if is_row else _column_number(letters) if letters else column + 1
            if end == b">" and not is_row:
                rows = max(rows, row)
                columns = max(columns, column)
        cells += rows * columns
    if cells > MAX_CELLS:
        raise UserError(f"{name}: {cells:,} cells, including empty ones; save the table as CSV (UTF-8)")
    return formulas


@functools.cache
def _column_number(letters: bytes) -> int:
    return functools.reduce(lambda number, letter: 26 * number + letter - 64, letters, 0)
