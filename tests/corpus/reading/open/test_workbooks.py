"""Workbooks: missing packages, hostile and damaged files, sheets that are parts or no pairs."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest

from chatbot.corpus.reading.open import workbooks
from chatbot.corpus.reading.open.sources import find_parts
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import cut_and_damaged, dropped, pairs_of, written, zipped

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
        ["坏", "#N/A"],
    ]
    pairs, report = pairs_of(workbook(tmp_path / "a", s=[*rows, ["短"]]))
    assert pairs == [("6 x 7 = ?", "42"), ("half of 5", "2.5"), ("是吗", "True")]
    assert report.lines() == [f"lines without a tab: 2 (first: {tmp_path / 'a'}: s, line 6)"]


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


def test_far_cells_take_no_time(tmp_path: Path) -> None:
    row = '<row r="{0}"><c r="XFD{0}" t="inlineStr"><is><t>x</t></is></c></row></sheetData>'
    path = changed(
        workbook(tmp_path / "a", s=PAIRS),
        lambda text: text.replace("</sheetData>", row.format(10**12)).replace("A1:B3", "A1:XFD1048576"),
    )
    assert pairs_of(path)[0] == [("你好", "你好呀"), ("再见", "慢走")]


def test_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(workbook(tmp_path / "a", s=PAIRS), lambda text: text + "<!-- " + "x" * 10**7 + " -->")
    monkeypatch.setattr("chatbot.corpus.reading.open.compression.FREE_OUTPUT", 2**20)
    with pytest.raises(UserError, match="refused, it expands to more than"):
        pairs_of(path)
    monkeypatch.undo()
    monkeypatch.setattr(workbooks, "MAX_SIZE", 2**20)
    with pytest.raises(UserError, match="MiB of tables; save it as CSV"):
        pairs_of(path)


def test_damaged_workbooks_give_pairs_or_one_line(tmp_path: Path) -> None:
    from tests.corpus.reading.wild_binaries import old_workbook

    workbook(tmp_path / "new", s=PAIRS)
    old_workbook(tmp_path / "old")
    for name in ("new", "old"):
        cut_and_damaged(tmp_path, (tmp_path / name).read_bytes())


@pytest.mark.parametrize(("package", "name"), [("openpyxl", "two_columns.xlsx"), ("xlrd", "old.xls")])
def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    from tests.corpus.reading.wild_binaries import BINARIES

    BINARIES[name](tmp_path / name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"run `pip install {package}`"):
        pairs_of(tmp_path / name)


def test_missing_zstandard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match="a Zstandard file; run `pip install zstandard`"):
        pairs_of(written(tmp_path, "a.zst", b"\x28\xb5\x2f\xfd" + bytes(20)))
