"""Any file gives pairs or an error of one line; the encoding and the format that the user gives."""

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import Source, find_parts
from chatbot.corpus.reading.text_file import MAX_LINE
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import (
    COMPRESSORS,
    VALID,
    Pairs,
    dropped,
    pairs_of,
    pairs_or_one_line,
    texts,
    written,
)

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
    pairs.close()
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


WELL = "well, hello\noh, hi\nyes, I do\n"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("焊烹\t赂赂\n".encode("gbk"), {"charset": "gb18030"}, [("焊烹", "赂赂")]),
        ("a\tb\n".encode("cp037"), {"charset": "cp037"}, [("a", "b")]),
        ("一上三\t上\n".encode("utf-16-le"), {"charset": "utf-16-le"}, [("一上三", "上")]),
        ("\ufeff好\t上\n".encode("utf-16-be"), {"charset": "utf-16-be"}, [("好", "上")]),
        ("\ufeff好\t上\n".encode(), {"charset": "utf8"}, [("好", "上")]),
        ("\ufeff好\t上\n".encode(), {"charset": "utf-8-sig"}, [("好", "上")]),
        (WELL.encode(), {"format": "csv"}, [("well", "hello"), ("oh", "hi"), ("yes", "I do")]),
        (b"[1\t2\n", {"format": "tsv"}, [("[1", "2")]),
        (b"E\tM\nM a\nM b\n", {"format": "conv"}, [("a", "b")]),
    ],
)
def test_given_encoding_and_format_override_detection(
    tmp_path: Path, content: bytes, options: dict[str, str], expected: Pairs
) -> None:
    for compress in (bytes, COMPRESSORS["gz"], COMPRESSORS["zip"]):
        pairs, report = pairs_of(written(tmp_path, "a", compress(content)), **options)
        assert pairs == expected
        assert options.items() <= {"charset": report.charsets[0], "format": report.formats[0]}.items()


def test_given_encoding_is_that_of_parallel_files(tmp_path: Path) -> None:
    files = [str(written(tmp_path, name, text.encode("cp037"))) for name, text in (("q", "a\nb"), ("a", "c\nd"))]
    (source,) = find_parts([], *files).training
    assert texts(read(source, Report(), ReadOptions(charset="cp037"))) == [("a", "c"), ("b", "d")]


def test_unusable_lines_under_a_given_encoding_name_the_flag(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "早上好\t晚安\n".encode("gbk"))
    with pytest.raises(UserError, match=r"a: read as utf-8, .*; name the encoding with --encoding, or save"):
        pairs_of(path, charset="utf-8", format="tsv")
    with pytest.raises(UserError, match=r"a: cannot be read as utf-16 .*; give --encoding utf-16-le or utf-16-be"):
        pairs_of(path, charset="utf-16")


@pytest.mark.parametrize("flags", [CorpusSettings, EvaluationSettings])
@pytest.mark.parametrize("name", ["no-such", "gzip", "rot13", "idna", "undefined"])
def test_other_encodings_are_refused(flags: type, name: str) -> None:
    with pytest.raises(UserError, match=f"--encoding {name}: not an encoding of text in Python; use one such as utf-8"):
        flags(data=("a",), encoding=name)


def test_built_in_corpus_has_552_pairs() -> None:
    report = Report()
    (source,) = find_parts([]).training
    pairs = texts(read(source, report))
    # The pairs that yaml.safe_load gives, in their order.
    digest = hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()
    assert (len(pairs), digest[:16]) == (552, "e973df32378e84d3")
    assert (report.pairs, report.formats, report.charsets, report.dropped) == (552, ["chatterbot"], ["UTF-8"], {})
    assert report.read_bytes == sum(path.stat().st_size for path in source.paths)
