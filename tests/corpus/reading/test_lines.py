"""Texts without names: E and M lines, labels, ParlAI, blocks of lines, two parallel files."""

import gzip
import time
from pathlib import Path

import pytest

from chatbot.corpus.reading.marked_text import turns_of
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import VALID, conversations_of, dropped, pairs_of, texts, written, zipped


def test_conv_file_gives_pairs(tmp_path: Path) -> None:
    pairs, report = pairs_of(written(tmp_path, "a", VALID["conv"]))
    assert pairs == [("你好", "你好呀"), ("吃了吗", "刚吃过"), ("刚吃过", "那就好")]
    assert (report.formats, report.charsets, dropped(report)) == (["conv"], ["UTF-8"], {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("E\nM 你/好/呀\nM 你好\nE\nM 今天/天气/真/好\nM 是/的/呢\n", [("你好呀", "你好"), ("今天天气真好", "是的呢")]),
        (
            "E\nM 看看 http://a.cn/b\nM 有1/2好看\nE\nM 今天天气真好\nM 是的是的\n",
            [("看看 http://a.cn/b", "有1/2好看"), ("今天天气真好", "是的是的")],
        ),
    ],
)
def test_slashes_are_removed_where_they_stand_between_words(
    tmp_path: Path, content: str, expected: list[tuple[str, str]]
) -> None:
    assert pairs_of(written(tmp_path, "a", content))[0] == expected


def test_invalid_conv_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    """They end their conversation."""
    lines = ["M 甲", "M 乙", "E", "M 独", "E", "M 丙", "?", "M 丁", "", "M 戊", "E"] + ["M 己", "M 庚", "E"] * 5
    content = "\r\n".join(lines).encode() + b"\r\nM \xff\r\nM \xe8\xbe\x9b"
    path = written(tmp_path, "a", content)
    pairs, report = pairs_of(path)
    assert pairs == [("甲", "乙"), ("丁", "戊")] + [("己", "庚")] * 5
    assert sorted(report.lines()) == [
        f"lines not UTF-8: 1 (first: {path}, line 27)",
        f"lines that begin with neither E nor M: 1 (first: {path}, line 7)",
    ]


def test_douban_learns_true_responses(tmp_path: Path) -> None:
    content = "1\t吃 了 吗\t刚 吃\t面\n0\t吃 了 吗\t刚 吃\t不 知道\n1\t在 吗\t在\n0\t在 吗\t冰箱\n"
    found, report = conversations_of(written(tmp_path, "a", content))
    assert found == [["吃 了 吗", "刚 吃", "面"], ["在 吗", "在"]]
    assert dropped(report) == {"responses labelled as false": 2}


def test_turns_of_parlai_follow_each_other(tmp_path: Path) -> None:
    content = (
        "text:your persona: I sing.\\nHi\tlabels:Hello|Hey\ntext:And\\nyou?\tlabels:Well\tepisode_done:True\n"
        "text:Bye\teval_labels:See you\tepisode_done:True\n"
    )
    found, _ = conversations_of(written(tmp_path, "a", content))
    assert found == [["Hi", "Hello", "And\nyou?", "Well"], ["Bye", "See you"]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "你好\n你好呀\n\n吃了吗\n刚吃过\n\n\n在吗\n在的\n",
            [["你好", "你好呀"], ["吃了吗", "刚吃过"], ["在吗", "在的"]],
        ),
        ("甲来了\n乙也来\n丙呢\n====\n丁在家\n戊也在\n", [["甲来了", "乙也来", "丙呢"], ["丁在家", "戊也在"]]),
    ],
)
def test_blocks_of_lines_are_conversations(tmp_path: Path, content: str, expected: list[list[str]]) -> None:
    assert conversations_of(written(tmp_path, "a.txt", content))[0] == expected


def test_lines_without_blocks_are_asked_about(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "你好\n你好呀\n吃了吗\n刚吃过\n")
    with pytest.raises(UserError, match=r"each two lines may be a pair; .* give --format lines") as error:
        pairs_of(path)
    reading, *shown = error.value.details
    assert reading.endswith("read as format lines, UTF-8:")
    assert shown == ["  你好  ->  你好呀", "  吃了吗  ->  刚吃过"]
    assert pairs_of(path, format="lines")[0] == [("你好", "你好呀"), ("吃了吗", "刚吃过")]


@pytest.mark.parametrize(
    ("me", "expected", "links"),
    [
        ("1", [("乙", "丙"), ("丁", "戊")], [0, 2]),
        ("2", [("甲", "乙"), ("丙", "丁")], [0, 2]),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_me_is_a_position_where_turns_have_no_names(
    tmp_path: Path, name: str, me: str, expected: list[tuple[str, str]], links: list[int]
) -> None:
    turns = ["甲", "乙", "丙", "丁", "戊"]
    content = '["' + '", "'.join(turns) + '"]\n' if name == "a.jsonl" else "".join(f"M {turn}\n" for turn in turns)
    path = written(tmp_path, name, content * 2 if name == "a.jsonl" else f"E\n{content}E\n{content}")
    (source,) = find_parts([str(path)]).training
    pairs = [*read(source, Report(), ReadOptions(me=me))]
    assert texts(pairs) == expected * 2
    assert [pair[2] for pair in pairs] == links * 2
    with pytest.raises(UserError, match="--me 小明, but nothing in it has a name"):
        pairs_of(path, me="小明")


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


def test_parts_of_one_side_are_joined_in_linear_time() -> None:
    def seconds(parts: int) -> float:
        start = time.process_time()
        assert turns_of("### Human: a\n" * parts) is not None
        return time.process_time() - start

    assert seconds(80_000) < 12 * seconds(20_000) + 0.1
