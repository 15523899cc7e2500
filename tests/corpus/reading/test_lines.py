"""Two parallel files."""

import gzip
from pathlib import Path

import pytest

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import dropped, texts, written, zipped


def test_parallel_files_may_differ_in_encoding_and_compression(tmp_path: Path) -> None:
    questions = written(tmp_path, "q.gz", gzip.compress("你好吗，你在做什么\n\n\n好的，我们走吧\n".encode("gbk")))
    answers = written(tmp_path, "a", "我很好\r\n\r\n丙\r\n再见\r\n".encode())
    (source,) = find_parts([], str(questions), str(answers)).training
    report = Report()
    assert texts(read(source, report)) == [("你好吗，你在做什么", "我很好"), ("", "丙"), ("好的，我们走吧", "再见")]
    assert (report.formats, report.charsets) == (["parallel"], ["GB18030", "UTF-8"])
    assert report.read_bytes == questions.stat().st_size + answers.stat().st_size


def test_line_dropped_in_one_file_is_dropped_in_both(tmp_path: Path) -> None:
    questions = written(tmp_path, "q", "甲\n乙\n丙".encode())
    answers = written(tmp_path, "a", "一\n二\n三\n".encode().replace("二".encode(), b"\xff"))
    (source,) = find_parts([], str(questions), str(answers)).training
    report = Report()
    assert texts(read(source, report)) == [("甲", "一"), ("丙", "三")]
    assert dropped(report) == {"lines not UTF-8": 1}


@pytest.mark.parametrize(
    ("questions", "answers", "message"),
    [
        ("1\n2\n3\n", "1\n2\n", "q has 3 lines and .*a has 2; "),
        ("1\n2\n", "1\n2\n\n", "q has 2 lines and .*a has 3; "),
        ("", "1\n", "q has 0 lines and .*a has 1; "),
        (zipped({"a": "甲\n", "b": "乙\n"}), "丙\n", "q: a: the archive contains more than one file"),
        ("早上好\n你在做什么\n".encode().decode("latin-1"), "1\n2\n", "q: .*opened as Latin-1 and saved again"),
    ],
)
def test_parallel_files_that_do_not_fit_are_errors(
    tmp_path: Path, questions: str | bytes, answers: str, message: str
) -> None:
    paths = [written(tmp_path, "q", questions), written(tmp_path, "a", answers)]
    (source,) = find_parts([], *map(str, paths)).training
    with pytest.raises(UserError, match=message):
        list(read(source, Report()))
