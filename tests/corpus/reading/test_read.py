"""Any file: the format is detected from the content, and any content gives pairs or a one-line error."""

import tracemalloc
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.open.sources import Source
from chatbot.corpus.reading.open.text_file import MAX_LINE
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import COMPRESSORS, VALID, dropped, pairs_of, pairs_or_one_line, written

PROSE = "It was a dark and stormy night.\nThe rain fell in torrents, except at times,\nwhen it was checked.\nSo, no.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PROSE, "each two lines may be a pair; if the pairs above are right, give --format lines"),
        ("从前有座山。\n山里有座庙。\n", "unknown format, it begins with '从前有座山。"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 9, "no text, it begins with '?PNG"),
        ("<html>\n<body>你好</body>\n</html>\n", "unknown format, it begins with '<html>"),
    ],
)
def test_unknown_formats_are_errors(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a.tsv", content))
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "\n\n", " \r\n", "\ufeff"])
def test_empty_file_has_no_pairs(tmp_path: Path, content: str) -> None:
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert (pairs, report.formats, report.dropped) == ([], [], {})


def test_line_of_50_megabytes_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "甲\t乙\n" + "x" * 50_000_000 + "\n丙\t丁\n" + "y" * MAX_LINE + "\n戊\t己\n")
    tracemalloc.start()
    try:
        pairs, report = pairs_of(path)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert pairs == [("甲", "乙"), ("丙", "丁"), ("戊", "己")]
    assert report.dropped["lines longer than 1,048,576 characters"].first == f"{path}, line 2"
    assert dropped(report) == {"lines longer than 1,048,576 characters": 1, "lines without a tab": 1}


def test_pairs_are_read_lazily_and_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[IO[bytes]] = []
    original = Path.open

    def recorded_open(path: Path, mode: str) -> IO[bytes]:
        opened.append(original(path, mode))
        return opened[-1]

    path = written(tmp_path, "a", "甲\t乙\n" * 1_000_000)
    monkeypatch.setattr(Path, "open", recorded_open)
    report = Report()
    pairs = read(Source("a", (path,), "file"), report)
    next(pairs)
    assert report.read_bytes < path.stat().st_size / 2
    pairs.close()  # type: ignore[attr-defined]
    assert opened
    assert all(file.closed for file in opened)


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"a.tsv: cannot be read \(Permission denied\)"):
        list(read(Source("a.tsv", (tmp_path / "a.tsv",), "file"), Report()))


@pytest.mark.parametrize("format_name", VALID)
def test_truncated_files_give_pairs_or_one_line(tmp_path: Path, format_name: str) -> None:
    content = VALID[format_name].encode()
    for tenth in range(11):
        pairs_or_one_line(written(tmp_path, "a", content[: len(content) * tenth // 10]))


@given(content=st.binary(max_size=300) | st.text('[]{}":,;甲EM \t\r\n\\u-#', max_size=200).map(str.encode))
@settings(deadline=None, max_examples=300)
def test_any_bytes_give_pairs_or_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "fuzz", content))


@pytest.mark.parametrize("compression", ["", *COMPRESSORS])
@pytest.mark.parametrize("format_name", VALID)
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_mutated_files_give_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, format_name: str, compression: str, data: st.DataObject
) -> None:
    content = bytearray(VALID[format_name].encode())
    if compression:
        content = bytearray(COMPRESSORS[compression](bytes(content)))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(1, 20)))
        mutation = data.draw(st.sampled_from(["delete", "duplicate", "flip", "insert"]))
        if mutation == "delete":
            del content[start:end]
        elif mutation == "duplicate":
            content[end:end] = content[start:end] * data.draw(st.integers(1, 50))
        elif mutation == "flip":
            content[start:end] = bytes(byte ^ data.draw(st.integers(1, 255)) for byte in content[start:end])
        else:
            content[start:start] = data.draw(st.binary(max_size=8))
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "mutated", bytes(content)))
