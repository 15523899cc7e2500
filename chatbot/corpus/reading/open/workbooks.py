"""The sheets of a workbook (.xlsx, .xls) as tab-separated texts, one line for each row.

openpyxl and xlrd read them; they are optional dependencies. Hidden sheets are left out. A row of an .xlsx file is held
at a time, beside the file's table of texts; an .xls file has at most 65,536 rows a sheet.
"""

import datetime
import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.open.archive import Member
from chatbot.corpus.reading.open.compression import Stream, allowance, reading
from chatbot.corpus.reading.open.file_kinds import OLE, ZIP
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

MAX_ROWS, MAX_COLUMNS = 2**20, 256  # of an .xlsx file, which may claim any number
MAX_EMPTY = 10_000  # rows without a cell, after which a sheet ends: a cell may stand in any row
MAX_SIZE = 512 * 2**20  # bytes of an .xlsx file without its compression: its texts are held in memory
ROWS = 500  # read at once
HIDDEN = "hidden sheets"
TOTALS = "rows of totals"
_TOTAL = frozenset(
    {"total", "totals", "sum", "count", "subtotal", "合计", "总计", "小计", "共计", "总数", "合計", "summe"}
)
_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!"})
_SPACES = str.maketrans(dict.fromkeys("\t\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))
# What the two packages raise for files that are damaged, beside errors of their own.
_DAMAGED = (
    *(ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError, EOFError, OverflowError),
    *(MemoryError, RecursionError, SyntaxError, NotImplementedError, RuntimeError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)


def is_workbook(path: Path) -> bool:
    """Return whether a file is a workbook of Excel, from its content."""
    with path.open("rb") as file:
        head = file.read(len(OLE))
    if head == OLE:
        return True
    if not head.startswith(ZIP):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (*_DAMAGED, OSError):
        return False


def sheets(path: Path, name: str, report: Report, wanted: Sequence[str] = ()) -> Iterator[Member]:
    """Yield the visible sheets, each as a text with the name SHEET.tsv. wanted: the names of those to read, () for all.

    Each content must be read before the next is requested. Raises UserError when the package is not installed, for a
    damaged or encrypted file, and for one that is suspiciously large when decompressed.
    """
    before = report.read_bytes
    with path.open("rb") as file:
        read = _sheets_of_xls if file.read(len(OLE)) == OLE else _sheets_of_xlsx
    for title, rows in read(path, name, report):
        member = f"{title}.tsv"
        if not wanted or member in wanted:
            place = f"{name}: {one_line(title, 40)}"
            yield Member(member, place, Stream(reading(_lines(rows, place, report))))
    report.read_bytes = before + path.stat().st_size


def _lines(rows: Iterable[Sequence[object]], place: str, report: Report) -> Iterator[bytes]:
    try:
        for row in rows:
            cells = [_text(value) for value in row]
            while cells and not cells[-1]:
                cells.pop()
            if _is_total(cells):
                report.drop(TOTALS, place)
                continue
            yield ("\t".join(cells) + "\n").encode("utf-8", "replace")
    except UserError:
        raise
    except Exception as error:  # openpyxl raises almost anything for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(_damage(place, error)) from None


def _is_total(cells: Sequence[str]) -> bool:
    """Return whether a row has nothing but the name of a total, and numbers."""
    name, *numbers = [cell for cell in cells if cell] or [""]
    named = name.rstrip(":： ").casefold() in _TOTAL
    return named and bool(numbers) and all(number.replace(".", "").replace(",", "").isdecimal() for number in numbers)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    text = str(value).translate(_SPACES).strip()
    return "" if text in _ERRORS else text


def _damage(place: str, error: Exception) -> str:
    return f"{place}: a damaged workbook ({one_line(str(error), 60)}); save it again, or as CSV (UTF-8)"


def _sheets_of_xlsx(path: Path, name: str, report: Report) -> Iterator[tuple[str, Iterator[Sequence[object]]]]:
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise UserError(f"{name}: a workbook; run `pip install openpyxl`, which reads it") from None
    _check_size(path, name)
    with path.open("rb") as file:  # of a path, openpyxl wants the ending .xlsx
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about styles and charts
                book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
        except (*_DAMAGED, OSError) as error:
            raise UserError(_damage(name, error)) from None
        for sheet in book.worksheets:
            if sheet.sheet_state != "visible":
                report.drop(HIDDEN, f"{name}: {one_line(sheet.title, 40)}")
            else:
                yield sheet.title, _rows_of_xlsx(sheet)


def _check_size(path: Path, name: str) -> None:
    """Raise UserError for a file that is suspiciously large when decompressed, or that defines entities."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            total = sum(info.file_size for info in infos)
            allowance(name, path.stat().st_size).spend(total)
            if total > MAX_SIZE:
                raise UserError(f"{name}: more than {MAX_SIZE // 2**20} MiB of tables; save it as CSV (UTF-8)")
            for info in infos:
                if info.filename.endswith((".xml", ".rels")):
                    with archive.open(info) as member:
                        if b"<!DOCTYPE" in member.read(4096):
                            raise UserError(f"{name}: refused, no program writes entities; save it as CSV (UTF-8)")
    except (*_DAMAGED, OSError) as error:
        raise UserError(_damage(name, error)) from None


def _rows_of_xlsx(sheet: Any) -> Iterator[Sequence[object]]:
    rows = sheet.iter_rows(max_row=MAX_ROWS, max_col=MAX_COLUMNS, values_only=True)
    empty = 0
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            some = list(islice(rows, ROWS))
        for row in some:
            if row.count(None) < len(row):
                yield from ((),) * empty  # so that the numbers of lines are those of rows
                yield row
                empty = 0
            else:
                empty += 1
        if len(some) < ROWS or empty > MAX_EMPTY:
            return


def _sheets_of_xls(path: Path, name: str, report: Report) -> Iterator[tuple[str, Iterator[Sequence[object]]]]:
    try:
        import xlrd
    except ModuleNotFoundError:
        raise UserError(f"{name}: an Office document of before 2007; run `pip install xlrd` for a workbook") from None
    try:
        book = xlrd.open_workbook(path, on_demand=True, logfile=io.StringIO())
    except (xlrd.XLRDError, xlrd.compdoc.CompDocError):
        raise UserError(
            f"{name}: no workbook, or an encrypted one; save it as .xlsx or CSV without a password"
        ) from None
    except _DAMAGED as error:
        raise UserError(_damage(name, error)) from None
    for number, title in enumerate(book.sheet_names()):
        place = f"{name}: {one_line(title, 40)}"
        try:
            sheet = book.sheet_by_index(number)
        except Exception as error:  # xlrd raises almost anything for damaged records
            raise UserError(_damage(place, error)) from None
        if sheet.visibility:
            report.drop(HIDDEN, place)
        else:
            yield title, ([_cell_of_xls(cell, book) for cell in sheet.row(row)] for row in range(sheet.nrows))
        book.unload_sheet(number)


def _cell_of_xls(cell: Any, book: Any) -> object:
    import xlrd

    if cell.ctype == xlrd.XL_CELL_DATE:
        return xlrd.xldate_as_datetime(cell.value, book.datemode)
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return bool(cell.value)
    return None if cell.ctype == xlrd.XL_CELL_ERROR else cell.value
