"""Workbooks: missing packages, damaged files; others are in `wild`."""

import io
import sys
import zipfile
from pathlib import Path

import openpyxl
import pytest

from chatbot.corpus.reading import workbooks
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import cut_and_damaged, pairs_of
from tests.corpus.reading.wild_files import BINARY


def test_all_rows_below_the_first_ones_are_read_in_order(tmp_path: Path) -> None:
    """Where no header is known, too."""
    rows = [(f"第{n}个问题是什么？", f"这是第{n}个回答。") for n in range(12_000)]
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert pairs_of(tmp_path / "a.xlsx")[0] == rows


def test_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO((BINARY / "two_columns.xlsx").read_bytes())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/comments.xml", "x" * 10**7)
    (tmp_path / "a").write_bytes(content.getvalue())
    monkeypatch.setattr(workbooks, "MAX_SIZE", 2**20)
    with pytest.raises(UserError, match="MiB of tables; save it as CSV"):
        pairs_of(tmp_path / "a")


def test_cells_of_a_sheet_that_is_no_table_are_not_read(tmp_path: Path) -> None:
    """Such as of a macro, here in place of a chart."""
    with zipfile.ZipFile(BINARY / "chart_sheet.xlsx") as read, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as written:
        for name in read.namelist():
            same = "xl/worksheets/sheet1.xml" if name == "xl/chartsheets/sheet1.xml" else name
            written.writestr(name, read.read(same))
    assert len(pairs_of(tmp_path / "a.xlsx")[0]) == len(pairs_of(BINARY / "chart_sheet.xlsx")[0]) == 2


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_damaged_workbooks_give_pairs_or_one_line(tmp_path: Path, name: str) -> None:
    cut_and_damaged(tmp_path, (BINARY / name).read_bytes())


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(UserError, match="run `pip install python-calamine`"):
        pairs_of(BINARY / name)
