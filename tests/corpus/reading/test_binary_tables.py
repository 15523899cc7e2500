"""Parquet, Arrow and workbooks: damaged files, missing packages, lazy reading, and bombs; others are in `wild`."""

import errno
import io
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pytest
from pyarrow import ipc, parquet

from chatbot.corpus.reading import binary_tables
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.text_file import open_text_files
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import cut_and_damaged, pairs_of, pairs_or_one_line
from tests.corpus.reading.wild_files import BINARY

SAID = ("user", "早"), ("assistant", "早安")


def stored(path: Path, rows_per_group: int | None = None, **columns: Any) -> Path:
    """A Parquet file with these columns."""
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_per_group)
    return path


def streamed(path: Path, rows_per_batch: int, **columns: Any) -> Path:
    """An Arrow stream with these columns, as `datasets` saves it."""
    table = pyarrow.table(columns)
    with pyarrow.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


def test_damaged_files_are_an_error_or_give_pairs(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"question": [f"问{i}" for i in range(500)], "answer": [f"答{i}" for i in range(500)]}
    content = stored(tmp_path / "a", **columns).read_bytes()
    assert all("a damaged Parquet file" in result for result in cut_and_damaged(tmp_path, content))
    content = streamed(tmp_path / "b", 100, **columns).read_bytes()
    cut_and_damaged(tmp_path, content)
    (tmp_path / "cut").write_bytes(content[:-300])
    assert "a damaged Arrow file" in str(pairs_or_one_line(tmp_path / "cut"))


def test_times_beyond_python_are_read(tmp_path: Path) -> None:
    """Nanoseconds, as pandas writes them, and years above 9999, beside the texts and in lists of messages."""
    nanoseconds = pyarrow.array([1_700_000_000_000_000_001] * 2, pyarrow.timestamp("ns"))
    late = pyarrow.array([2**50] * 2, pyarrow.timestamp("s"))
    columns = {"question": ["甲", "丙"], "answer": ["乙", "丁"], "sent": nanoseconds, "until": late}
    assert pairs_of(stored(tmp_path / "a", **columns))[0] == [("甲", "乙"), ("丙", "丁")]
    others: dict[str, Any] = {"again": late.dictionary_encode(), "every": [pyarrow.MonthDayNano([1, 2, 3])] * 2}
    assert pairs_of(streamed(tmp_path / "c", 1, **columns, **others))[0] == [("甲", "乙"), ("丙", "丁")]
    fields = [("role", pyarrow.string()), ("content", pyarrow.string()), ("time", pyarrow.timestamp("ns"))]
    messages = [{"role": role, "content": text, "time": 1_700_000_000_000_000_001} for role, text in SAID]
    for number, kind in enumerate([pyarrow.list_, pyarrow.large_list]):
        turns = pyarrow.array([messages], kind(pyarrow.struct(fields)))
        assert pairs_of(stored(tmp_path / f"b{number}", messages=turns))[0] == [("早", "早安")]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    columns = [["甲"], ["丙"], ["乙"]]
    table = pyarrow.table([*map(pyarrow.array, columns)], names=["question", "question", "answer"])
    parquet.write_table(table, tmp_path / "a")
    with pytest.raises(UserError, match=r"a: two columns have the name question; rename one of them$"):
        pairs_of(tmp_path / "a")


@pytest.mark.parametrize("write", [stored, streamed])
def test_rows_are_read_lazily(tmp_path: Path, write: Callable[..., Path]) -> None:
    texts = [f"第{i}句{'话' * 500}" for i in range(4_000)]
    path = write(tmp_path / "a", 1_000, question=texts, answer=texts[::-1])
    before = pyarrow.total_allocated_bytes()
    report = Report()
    tracemalloc.start()
    try:
        most = 0
        for number, pair in enumerate(read(find_sources([str(path)])[0], report)):
            if number == 0:
                assert (pair[:2], report.read_bytes) == ((texts[0], texts[-1]), 0)
            if number % 100 == 0:
                most = max(most, pyarrow.total_allocated_bytes() - before)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert most < 8 * 2**20
    assert report.read_bytes == path.stat().st_size


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("new", [ipc.new_file, ipc.new_stream])
def test_arrow_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, new: Callable[..., Any]
) -> None:
    monkeypatch.setattr("chatbot.corpus.reading.containers.FREE_OUTPUT", 2**20)
    monkeypatch.setattr("chatbot.corpus.reading.containers.OUTPUT_RATIO", 2)
    texts = ["a" * 1000] * 50_000
    words = pyarrow.array(["b" * 4 * 10**6]).dictionary_encode()  # the size of a dictionary counts, too
    for name, table in {
        "texts": pyarrow.table({"question": texts, "answer": texts}),
        "words": pyarrow.table({"question": ["x"], "answer": words}),
    }.items():
        with new(str(tmp_path / name), table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)
        with pytest.raises(UserError, match=r"refused, it expands to more than 1 MiB and 2 times its size"):
            pairs_of(tmp_path / name)


def test_parquet_bomb_and_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which does not mean that the file is damaged."""
    monkeypatch.setattr("chatbot.corpus.reading.containers.FREE_OUTPUT", 2**20)
    table = pyarrow.table({"question": ["a" * 1000] * 5000, "answer": ["b" * 1000] * 5000})
    parquet.write_table(table, tmp_path / "a", compression="zstd", use_dictionary=False)
    with pytest.raises(UserError, match="refused, it expands to more than 1 MiB and"):
        pairs_of(tmp_path / "a")
    with pytest.raises(UserError, match="a: --head, but JSON and tables have no heads; leave it out"):
        pairs_of(tmp_path / "a", head="{name}:")
    with pytest.raises(UserError, match="a: a table, but a text file is required; save it as text"):
        next(open_text_files(tmp_path / "a", Report()))

    def fail(*_: object) -> Iterator[Any]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(binary_tables, "_parquet_batches", fail)
    with pytest.raises(UserError, match=r"cannot be read \(Input/output error\)"):
        pairs_of(tmp_path / "a")


def test_all_rows_below_the_first_ones_are_read_in_order(tmp_path: Path) -> None:
    """Where no header is known, too."""
    rows = [(f"第{n}个问题是什么？", f"这是第{n}个回答。") for n in range(12_000)]
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert pairs_of(tmp_path / "a.xlsx")[0] == rows


def test_workbook_bomb_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO((BINARY / "two_columns.xlsx").read_bytes())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/comments.xml", "x" * 10**7)
    (tmp_path / "a").write_bytes(content.getvalue())
    monkeypatch.setattr(binary_tables, "MAX_SIZE", 2**20)
    with pytest.raises(UserError, match="MiB of tables; save it as CSV"):
        pairs_of(tmp_path / "a")


def test_sheets_other_than_worksheets_are_not_read(tmp_path: Path) -> None:
    """Such as a macro sheet, here in place of a chart."""
    with zipfile.ZipFile(BINARY / "chart_sheet.xlsx") as read, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as written:
        for name in read.namelist():
            same = "xl/worksheets/sheet1.xml" if name == "xl/chartsheets/sheet1.xml" else name
            written.writestr(name, read.read(same))
    assert len(pairs_of(tmp_path / "a.xlsx")[0]) == len(pairs_of(BINARY / "chart_sheet.xlsx")[0]) == 2


@pytest.mark.parametrize("name", ["two_columns.xlsx", "old.xls"])
def test_damaged_workbooks_give_pairs_or_one_line(tmp_path: Path, name: str) -> None:
    cut_and_damaged(tmp_path, (BINARY / name).read_bytes())


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("two_columns.xlsx", "python_calamine", "python-calamine"),
        ("old.xls", "python_calamine", "python-calamine"),
        ("pairs.arrow", "pyarrow.parquet", "pyarrow"),
        ("cut.jsonl.zst", "zstandard", "zstandard"),
    ],
)
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"run `pip install {package}`"):
        pairs_of(BINARY / name)
