"""Files to pairs, and what cannot be used is counted or named."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.pairs import read_pairs
from chatbot.corpus.readers import read_chatterbot, read_file
from chatbot.corpus.report import Report
from chatbot.errors import UserError


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    """A file with this content."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_tsv(tmp_path: Path) -> None:
    report = Report()
    path = written(tmp_path, "a.tsv", "\ufeff你好\t你好呀\r\n\n没有\n一\t二\t三\n吃了吗\t吃了")
    assert list(read_file(path, report)) == [("你好", "你好呀"), ("吃了吗", "吃了")]
    assert report.lines() == [
        f"lines without a tab: 1 (first: {path}, line 3)",
        f"lines with more than one tab: 1 (first: {path}, line 4)",
    ]


def test_jsonl_makes_a_pair_of_every_adjacent_two(tmp_path: Path) -> None:
    report = Report()
    lines = [json.dumps(x, ensure_ascii=False) for x in (["甲", "乙", "丙"], ["独"], {"a": 1}, ["丁", 3])]
    path = written(tmp_path, "a.jsonl", "\n".join([*lines, "{", "[" * 200_000]))
    assert list(read_file(path, report)) == [("甲", "乙"), ("乙", "丙")]
    assert {reason: entry.count for reason, entry in report.dropped.items()} == {
        "conversations of one utterance": 1,
        "lines that are not a list of utterances": 2,
        "lines that are not JSON": 2,
    }


def test_a_few_undecodable_lines_are_counted(tmp_path: Path) -> None:
    report = Report()
    path = written(tmp_path, "a.tsv", "一\t二\n三\t四\n".encode() + "五\t六\n".encode("gbk"))
    assert list(read_file(path, report)) == [("一", "二"), ("三", "四")]
    assert report.lines() == [f"lines not UTF-8: 1 (first: {path}, line 3)"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", "你好\t再见\n".encode("gb18030"), "iconv -f GB18030"),
        ("a.tsv", b"\x89PNG\0\0", "line 1: a NUL byte"),
        ("a.tsv", "你好\t再见\n".encode("utf-16"), "line 1: a NUL byte"),
        ("a.tsv", "", "the file is empty"),
        ("a.tsv", "\n\n", "no question-answer pairs"),
        ("a.tsv", "没有制表符\n", "lines without a tab: 1"),
        ("a.tsv", " \t \n", "pairs with an empty side: 1"),
        ("a.jsonl", "你好\t再见\n", "lines that are not JSON: 1"),
        ("a.docx", "你好\t再见\n", "known are .tsv, .jsonl"),
        ("a", "你好\t再见\n", "known are .tsv, .jsonl"),
    ],
)
def test_a_file_without_pairs_is_one_line(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        read_pairs([str(path)], Report())
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_pairs([str(tmp_path / "none.tsv")], Report())
    with pytest.raises(UserError, match="a directory; name a file"):
        read_pairs([str(tmp_path)], Report())


@pytest.mark.parametrize("ending", [".tsv", ".jsonl"])
@given(content=st.binary(max_size=200) | st.text('[]",甲\t\n\\u', max_size=200).map(str.encode))
def test_any_bytes_give_pairs_or_a_clean_error(
    tmp_path_factory: pytest.TempPathFactory, ending: str, content: bytes
) -> None:
    path = written(tmp_path_factory.getbasetemp(), "fuzz" + ending, content)
    with contextlib.suppress(UserError):
        pairs = read_pairs([str(path)], Report())
        assert all(question and answer for question, answer in pairs)


def test_the_chatterbot_corpus_has_552_pairs() -> None:
    assert len(list(read_chatterbot())) == 552
