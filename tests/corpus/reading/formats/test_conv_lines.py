"""Conversations of E and M lines."""

from pathlib import Path

from tests.corpus.reading.sample_files import VALID, conversations_of, dropped, pairs_of, written


def test_conv_file_gives_pairs(tmp_path: Path) -> None:
    pairs, report = pairs_of(written(tmp_path, "a", VALID["conv"]))
    assert pairs == [("你好", "你好呀"), ("吃了吗", "刚吃过"), ("刚吃过", "那就好")]
    assert (report.formats, report.charsets, dropped(report)) == (["conv"], ["UTF-8"], {})


def test_slashes_between_words_are_removed(tmp_path: Path) -> None:
    content = "E\nM 你/好/呀\nM 你好\nE\nM 今天/天气/真/好\nM 是/的/呢\n"
    assert pairs_of(written(tmp_path, "a", content))[0] == [("你好呀", "你好"), ("今天天气真好", "是的呢")]


def test_slashes_in_the_text_are_kept(tmp_path: Path) -> None:
    content = "E\nM 看看 http://a.cn/b\nM 有1/2好看\nE\nM 今天天气真好\nM 是的是的\n"
    expected = [("看看 http://a.cn/b", "有1/2好看"), ("今天天气真好", "是的是的")]
    assert pairs_of(written(tmp_path, "a", content))[0] == expected


def test_invalid_conv_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    lines = ["M 甲", "M 乙", "E", "M 独", "E", "M 丙", "?", "M 丁", "", "M 戊", "E"] + ["M 己", "M 庚", "E"] * 5
    content = "\r\n".join(lines).encode() + b"\r\nM \xff\r\nM \xe8\xbe\x9b"
    path = written(tmp_path, "a", content)
    pairs, report = pairs_of(path)
    assert pairs == [("甲", "乙"), ("丁", "戊")] + [("己", "庚")] * 5
    assert sorted(report.lines()) == [
        f"lines not UTF-8: 1 (first: {path}, line 27)",
        f"lines that begin with neither E nor M: 1 (first: {path}, line 7)",
    ]


def test_undecodable_line_ends_its_conversation(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "E\nM 甲\nM 乙\nM 丙\ufffd\nM 丁\nM 戊\nE\nM 己\nM 庚\n")
    assert conversations_of(path)[0] == [["甲", "乙"], ["丁", "戊"], ["己", "庚"]]
