"""The encoding and the format that the user gives, in place of the detected ones."""

from pathlib import Path

import pytest

from chatbot.config.corpus import FORMATS, CorpusSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.corpus.reading import detect, read
from chatbot.corpus.reading.open.sources import find_parts
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import COMPRESSORS, Pairs, pairs_of, pairs_or_one_line, texts, written

WELL = "well, hello\noh, hi\nyes, I do\n"


def test_settings_know_the_formats_of_the_readers() -> None:
    assert set(FORMATS) == set(detect.FORMATS)


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
    assert texts(read.read(source, Report(), ReadOptions(charset="cp037"))) == [("a", "c"), ("b", "d")]


def test_unusable_lines_under_a_given_encoding_name_the_flag(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "早上好\t晚安\n".encode("gbk"))
    with pytest.raises(UserError, match=r"a: read as utf-8, .*; name the encoding with --encoding, or save"):
        pairs_of(path, charset="utf-8", format="tsv")
    with pytest.raises(UserError, match=r"a: cannot be read as utf-16 .*; give --encoding utf-16-le or utf-16-be"):
        pairs_of(path, charset="utf-16")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("content", ["'\"", '"\n', "{", "a\tb", "\n-", "E", "你好"])
def test_any_text_under_a_given_format_gives_pairs_or_one_line(tmp_path: Path, format_name: str, content: str) -> None:
    pairs_or_one_line(written(tmp_path, "a", content), format=format_name)


@pytest.mark.parametrize("settings", [CorpusSettings, EvaluationSettings])
@pytest.mark.parametrize("name", ["no-such", "gzip", "rot13", "idna", "undefined"])
def test_other_encodings_are_refused(settings: type, name: str) -> None:
    with pytest.raises(UserError, match=f"--encoding {name}: not an encoding of text in Python; use one such as utf-8"):
        settings(data=("a",), encoding=name)
