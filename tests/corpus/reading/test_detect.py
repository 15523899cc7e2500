"""Which format a text has: prose, logs and programs are in none, and a name does not prove one."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.config.corpus import FORMATS
from chatbot.corpus.reading import detect, heads
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import open_text_files
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import pairs_of, pairs_or_one_line, written
from tests.corpus.reading.test_wild import WILD

PROSE = {
    "sentences": "It was a dark night.\nThe rain fell, in torrents.\n\nIt was checked by a gust.\n\nSo it was.\n",
    "Chinese": "从前有座山，山里有座庙。\n\n庙里有个老和尚，在给小和尚讲故事。\n讲的什么故事呢？\n从前有座山。\n",
    "a log": "2020-01-01 12:00:00 INFO started\n2020-01-01 12:00:01 INFO ready\n2020-01-01 12:00:02 ERROR lost\n",
    "a log with levels": "[2024-01-01 10:00:00] app.INFO: started\n[2024-01-01 10:00:01] app.ERROR: lost\n",
    "names before texts": "小明：在吗\n小红：在的\n\n小明：吃了吗\n小红：吃了\n",
    "minutes": "Agenda:\n1. A new start\n2. Questions\nA: the budget\nB: the plan\n",
    "a clock": "The train leaves at 12:00:00 --> platform 2\nAll aboard\n",
    "an access log": '127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 23\n' * 3,
    "a style sheet": "color: red;\nmargin: 0;\npadding: 0 1px;\n",
    "Python": "import os, sys\n\ndef f(a, b):\n    return [a, b, 1]\n\n\nprint(f(1, 2))\n",
    "SQL": "INSERT INTO t VALUES ('a','b');\nINSERT INTO t VALUES ('c','d');\n",
    "a list of names": "Smith, John\nMiller, Anna\nWeber, Tom\n",
    "dialogue": '"Well, sir," he said, "I know."\n"You do, sir?" she asked.\nHe said, "Yes, I do."\n',
}


@pytest.mark.parametrize("content", PROSE.values(), ids=PROSE.keys())
def test_prose_is_refused_or_asked_about(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match=r"unknown format|; give --|, give --"):
        pairs_of(written(tmp_path, "a.txt", content))


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.json", "named .json, but not JSON"), ("a.srt", "named .srt, but no times of subtitles")],
)
def test_a_name_that_the_content_contradicts_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pairs_of(written(tmp_path, name, "问：甲\n答：乙\n"))
    assert pairs_of(written(tmp_path, name, "问：甲\n答：乙\n"), format="qa")[0] == [("甲", "乙")]


def test_settings_know_the_formats_of_the_readers() -> None:
    assert all(map(detect.reader_of, FORMATS))
    assert heads.texts().keys() < {*FORMATS}


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("content", ["'\"", '"\n', "{", "a\tb", "\n-", "E", "你好"])
def test_any_text_under_a_given_format_gives_pairs_or_one_line(tmp_path: Path, format_name: str, content: str) -> None:
    pairs_or_one_line(written(tmp_path, "a", content), format=format_name)


LINES = sorted(
    {line for path in WILD.glob("*.txt") for line in path.read_bytes().decode("utf-8", "replace").splitlines()[:12]}
)


@given(
    lines=st.lists(st.sampled_from(LINES) | st.text(max_size=20), max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    options=st.sampled_from([{}, {"me": "甲"}, {"head": "{name}: "}, *({"format": name} for name in FORMATS)]),
)
@settings(max_examples=400)
def test_any_lines_give_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, options: dict[str, str]
) -> None:
    content = end.join(lines).encode("utf-8", "replace")
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "lines", content), **options)


def test_no_two_signatures_fit_a_wild_text() -> None:
    for path in WILD.glob("*.txt"):
        for text in open_text_files(path, path.name, Report()):
            name, doubt = "", ""
            if not text.damage:
                name, doubt = detect.detect_format(text, ReadOptions())
            assert " or " not in doubt.partition(";")[0] or name in ("csv", "lines", "head"), path.name
