"""The sheets of a workbook (.xlsx, .xls) as tab-separated texts, one line for each row.

openpyxl and xlrd read them; they are optional dependencies. Hidden sheets are left out. A row of an .xlsx file is held
at a time, beside the file's table of texts; an .xls file has at most 65,536 rows a sheet.
"""

import datetime
import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
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
Sheet = tuple[str, bool, Iterator[Sequence[object]]]  # its title, whether it is visible, its rows
_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!"})
_SPACES = str.maketrans(dict.fromkeys("\t\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


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
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return False


def sheets(path: Path, name: str, report: Report, members: Sequence[str] = ()) -> Iterator[Member]:
    """Yield the visible sheets, each as a text with the name SHEET.tsv. members: those to read, () for all.

    Each content must be read before the next is requested. Raises UserError when the package is not installed, for a
    damaged or encrypted file, and for one that is suspiciously large when decompressed.
    """
    before = report.read_bytes
    with path.open("rb") as file:
        read = _sheets_of_xls if file.read(len(OLE)) == OLE else _sheets_of_xlsx
    for title, is_visible, rows in read(path, name):
        member, place = f"{title}.tsv", f"{name}: {one_line(title, 40)}"
        if not is_visible:
            report.drop("hidden sheets", place)
        elif not members or member in members:
            yield Member(member, place, Stream(reading(_lines(rows, place, report))))
    report.read_bytes = before + path.stat().st_size


def _lines(rows: Iterable[Sequence[object]], place: str, report: Report) -> Iterator[bytes]:
    try:
        for row in rows:
            cells = [_text(value) for value in row]
            while cells and not cells[-1]:
                cells.pop()
            yield ("\t".join(cells) + "\n").encode("utf-8", "replace")
    except UserError:
        raise
    except Exception as error:  # openpyxl raises almost anything for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(_damage(place, error)) from None


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
    reason = one_line(str(error), 60)
    return f"{place}: no workbook, a damaged or an encrypted one ({reason}); save it again, or as CSV (UTF-8)"


def _sheets_of_xlsx(path: Path, name: str) -> Iterator[Sheet]:
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise UserError(f"{name}: a workbook; run `pip install openpyxl`, which reads it") from None
    _check_size(path, name)
    warnings.filterwarnings("ignore", module="openpyxl")  # about styles, charts and dates
    with path.open("rb") as file:  # of a path, openpyxl wants the ending .xlsx
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
        except Exception as error:  # openpyxl raises almost anything for damaged files
            raise UserError(_damage(name, error)) from None
        for sheet in book.worksheets:
            yield sheet.title, sheet.sheet_state == "visible", _rows_of_xlsx(sheet)


def _check_size(path: Path, name: str) -> None:
    """Raise UserError for a file that is suspiciously large when decompressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise UserError(_damage(name, error)) from None
    allowance(name, path.stat().st_size).spend(total)
    if total > MAX_SIZE:
        raise UserError(f"{name}: more than {MAX_SIZE // 2**20} MiB of tables; save it as CSV (UTF-8)")


def _rows_of_xlsx(sheet: Any) -> Iterator[Sequence[object]]:
    empty = 0
    for row in sheet.iter_rows(max_row=MAX_ROWS, max_col=MAX_COLUMNS, values_only=True):
        empty = empty + 1 if row.count(None) == len(row) else 0
        if empty > MAX_EMPTY:
            return
        yield row


def _sheets_of_xls(path: Path, name: str) -> Iterator[Sheet]:
    try:
        import xlrd
    except ModuleNotFoundError:
        raise UserError(f"{name}: an Office document of before 2007; run `pip install xlrd` for a workbook") from None
    try:
        book = xlrd.open_workbook(path, on_demand=True, logfile=io.StringIO())
    except Exception as error:  # xlrd raises almost anything for damaged or encrypted files
        raise UserError(_damage(name, error)) from None
    for number, title in enumerate(book.sheet_names()):
        place = f"{name}: {one_line(title, 40)}"
        try:
            sheet = book.sheet_by_index(number)
        except Exception as error:  # likewise
            raise UserError(_damage(place, error)) from None
        rows = ([_cell_of_xls(cell, book) for cell in sheet.row(row)] for row in range(sheet.nrows))
        yield title, not sheet.visibility, rows
        book.unload_sheet(number)


def _cell_of_xls(cell: Any, book: Any) -> object:
    import xlrd

    if cell.ctype == xlrd.XL_CELL_DATE:
        return xlrd.xldate_as_datetime(cell.value, book.datemode)
    if cell.ctype == xlrd.XL_CELL_BOOLEAN:
        return bool(cell.value)
    return None if cell.ctype == xlrd.XL_CELL_ERROR else cell.value
