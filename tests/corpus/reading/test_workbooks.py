"""Workbooks: missing packages, damaged files, sheets that are parts; others are in `wild`."""

import io
import sys
import zipfile
from pathlib import Path

import openpyxl
import pytest

from chatbot.corpus.reading import workbooks
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import cut_and_damaged, pairs_of
from tests.corpus.reading.test_wild import WILD


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


def test_all_rows_below_the_first_ones_are_read_in_order(tmp_path: Path) -> None:
    """Where no header is known, too."""
    rows = [(f"第{n}个问题是什么？", f"这是第{n}个回答。") for n in range(12_000)]
    assert pairs_of(workbook(tmp_path / "a.xlsx", s=[[*row] for row in rows]))[0] == rows


def test_sheets_are_parts(tmp_path: Path) -> None:
    header: list[object] = ["问题", "答案"]
    path = workbook(
        tmp_path / "a.xlsx", train=[header, ["你好", "你好呀"], ["再见", "慢走"]], test=[header, ["谁", "我"]]
    )
    parts = find_parts([str(path)])
    assert [q for source in parts.training for q, *_ in read(source, Report())] == ["你好", "再见"]
    assert [q for source in parts.test for q, *_ in read(source, Report())] == ["谁"]


def test_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO((WILD / "two_columns.xlsx").read_bytes())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/comments.xml", "x" * 10**7)
    (tmp_path / "a").write_bytes(content.getvalue())
    monkeypatch.setattr(workbooks, "MAX_SIZE", 2**20)
    with pytest.raises(UserError, match="MiB of tables; save it as CSV"):
        pairs_of(tmp_path / "a")


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_damaged_workbooks_give_pairs_or_one_line(tmp_path: Path, name: str) -> None:
    cut_and_damaged(tmp_path, (WILD / name).read_bytes())


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(UserError, match="run `pip install python-calamine`"):
        pairs_of(WILD / name)
