"""Workbooks: missing packages, hostile and damaged files, sheets that are parts or no pairs."""

import datetime
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from chatbot.corpus.reading import workbooks
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import cut_and_damaged, dropped, pairs_of, zipped
from tests.corpus.reading.test_wild import WILD

PAIRS: list[list[object]] = [["问题", "答案"], ["你好", "你好呀"], ["再见", "慢走"]]
SHEET = "xl/worksheets/sheet1.xml"


def workbook(path: Path, **sheets: list[list[object]]) -> Path:
    """A workbook with these sheets."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def changed(path: Path, change: Callable[[str], str]) -> Path:
    """The workbook with a changed first sheet."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    path.write_bytes(zipped({**members, SHEET: change(members[SHEET].decode())}))
    return path


def test_values_are_texts(tmp_path: Path) -> None:
    rows: list[list[object]] = [
        ["question", "answer"],
        ["6 x 7\n= ?", 42],
        ["half\tof 5", 2.5],
        [None, None],
        ["是吗", True],
        ["何时", datetime.datetime(2024, 1, 2, 3, 4, 5)],
        ["哪天", datetime.date(2024, 1, 2)],
        ["坏", "#N/A"],
    ]
    pairs, report = pairs_of(workbook(tmp_path / "a", s=[*rows, ["短"]]))
    assert pairs[:3] == [("6 x 7\n= ?", "42"), ("half\tof 5", "2.5"), ("是吗", "True")]
    assert pairs[3:] == [("何时", "2024-01-02 03:04:05"), ("哪天", "2024-01-02")]
    assert report.lines() == [f"rows with too few columns: 2 (first: {tmp_path / 'a'}: s, row 8)"]


def test_times_of_messages_may_be_dates_of_excel_or_their_numbers(tmp_path: Path) -> None:
    """Messages of different days are no conversation."""
    days = [0, 1, 2.5, 2.5 + 1 / 1440]
    first = datetime.datetime(2024, 3, 5)
    for times in ([first + datetime.timedelta(day) for day in days], [45356 + day for day in days]):
        rows: list[list[object]] = [["time", "sender", "message"]]
        rows += [[time, "甲乙"[n % 2], f"第{n}句"] for n, time in enumerate(times)]
        assert pairs_of(workbook(tmp_path / "a.xlsx", s=rows))[0] == [("第2句", "第3句")]


def test_all_rows_below_the_first_ones_are_read(tmp_path: Path) -> None:
    """Where no header is known, too."""
    rows: list[list[object]] = [[f"第{n}个问题是什么？", f"这是第{n}个回答。"] for n in range(12_000)]
    assert len(pairs_of(workbook(tmp_path / "a.xlsx", s=rows))[0]) == 12_000


def test_sheets_are_parts(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", train=PAIRS, test=[["问题", "答案"], ["谁", "我"]])
    parts = find_parts([str(path)])
    assert [q for source in parts.training for q, *_ in read(source, Report())] == ["你好", "再见"]
    assert [q for source in parts.test for q, *_ in read(source, Report())] == ["谁"]


def test_sheet_without_pairs_is_counted_if_another_has_some(tmp_path: Path) -> None:
    notes: list[list[object]] = [["甲", "乙", "丙"], ["丁", "戊", "己"]]
    pairs, report = pairs_of(workbook(tmp_path / "a", notes=notes, pairs=PAIRS))
    assert pairs == [("你好", "你好呀"), ("再见", "慢走")]
    assert dropped(report) == {"sheets that are no pairs": 1}
    with pytest.raises(UserError, match=r"notes: 3 columns, and no header names"):
        pairs_of(workbook(tmp_path / "a", notes=notes))


FAR = '<row r="{0}"><c r="XFD{0}" t="inlineStr">{1}</c></row></sheetData>'


@pytest.mark.parametrize("prefix", ["", "x:"])
def test_far_cells_are_refused_before_memory_is_taken_for_all_before_them(tmp_path: Path, prefix: str) -> None:
    text = "<is><t>x</t></is>"
    far = FAR.format(10**12, text).replace("<c", f"<{prefix}c")
    path = changed(workbook(tmp_path / "a", s=PAIRS), lambda text: text.replace("</sheetData>", far))
    with pytest.raises(UserError, match=r"a: 16,384,000,000,000,000 cells, with the empty ones"):
        pairs_of(path)


def test_cells_without_a_place_follow_each_other(tmp_path: Path) -> None:
    path = changed(workbook(tmp_path / "a", s=PAIRS), lambda text: re.sub(r' r="\w+"', "", text))
    assert pairs_of(path)[0] == [("你好", "你好呀"), ("再见", "慢走")]
    many = "<row>" + "<c><v>1</v></c>" * 5000 + "</row>" + "<row><c><v>1</v></c></row>" * 5000
    path = changed(workbook(tmp_path / "a", s=PAIRS), lambda text: text.replace("</sheetData>", many + "</sheetData>"))
    with pytest.raises(UserError, match=r"a: 25,020,000 cells, with the empty ones"):
        pairs_of(path)


@pytest.mark.parametrize("empty", ["", "<v/>"])
def test_far_empty_cells_take_no_memory(tmp_path: Path, empty: str) -> None:
    far = FAR.format(2**20, "").replace("XFD", "B" if empty else "XFD")
    path = changed(
        workbook(tmp_path / "a", s=PAIRS),
        lambda text: text.replace("</sheetData>", far).replace("A1:B3", "A1:XFD1048576"),
    )
    assert pairs_of(path)[0] == [("你好", "你好呀"), ("再见", "慢走")]


def test_formulas_without_values_are_counted(tmp_path: Path) -> None:
    rows: list[list[object]] = [*PAIRS, ["几", "=1+1"], ["谁", "=A1"]]
    pairs, report = pairs_of(workbook(tmp_path / "a", s=rows))
    assert pairs == [("你好", "你好呀"), ("再见", "慢走")]
    assert dropped(report)[workbooks.NO_VALUE] == 2
    path = changed(tmp_path / "a", lambda text: re.sub("</f><v ?/>|</f><v></v>", "</f><v>2</v>", text))
    pairs, report = pairs_of(path)
    assert pairs[2:] == [("几", "2"), ("谁", "2")]
    assert not report.dropped


def test_columns_before_the_first_cell_count(tmp_path: Path) -> None:
    rows: list[list[object]] = [[None, *row] for row in PAIRS]
    assert pairs_of(workbook(tmp_path / "a", s=rows), ["2", "3"])[0] == [("你好", "你好呀"), ("再见", "慢走")]


def test_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(workbook(tmp_path / "a", s=PAIRS), lambda text: text + "<!-- " + "x" * 10**7 + " -->")
    monkeypatch.setattr(workbooks, "MAX_SIZE", 2**20)
    with pytest.raises(UserError, match="MiB of tables; save it as CSV"):
        pairs_of(path)


def test_damaged_workbooks_give_pairs_or_one_line(tmp_path: Path) -> None:
    for name in ("two_columns.xlsx", "old.xls"):
        cut_and_damaged(tmp_path, (WILD / name).read_bytes())


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(UserError, match="run `pip install python-calamine`"):
        pairs_of(WILD / name)
