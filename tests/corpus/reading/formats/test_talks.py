"""Texts that are conversations: Douban, labelled lines, two lines a pair, subtitles."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.detect import FORMATS
from chatbot.corpus.reading.open.text_file import open_text_files
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError
from tests.corpus.reading.formats.test_chat_exports import EXPORTS
from tests.corpus.reading.sample_files import conversations_of, dropped, pairs_of, pairs_or_one_line, written

SRT = """\
1
00:00:01,000 --> 00:00:02,500
<i>Where are you,</i>

2
00:00:02,600 --> 00:00:03,500
my friend?

3
00:00:04,000 --> 00:00:05,000
- Here. (door opens)
- JOHN: Me too!

4
00:00:05,500 --> 00:00:07,000
♪ la la la ♪

5
00:00:30,000 --> 00:00:31,000
Good morning.

6
00:00:31,500 --> 00:00:32,000
Morning.
"""
BILINGUAL = """\
1
00:00:01,000 --> 00:00:02,000
你去哪儿
Where are you going?

2
00:00:02,500 --> 00:00:03,000
{\\an8}回家
Home.

3
00:00:03,500 --> 00:00:04,000
（笑声）好
"""
VTT = "WEBVTT\n\nNOTE made by hand\n\n00:01.000 --> 00:02.000 align:start\nHi\n\n00:02.500 --> 00:03.000\nHello\n"
ASS = """\
[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,回家\\N{\\fs14}Home, now
Dialogue: 0,0:00:01.00,0:00:02.50,Default,,0,0,0,,{\\i1}你去哪儿{\\i0}\\NWhere are you going?
Comment: 0,0:00:04.00,0:00:05.00,Default,,0,0,0,,note
Dialogue: 0,0:00:04.00,0:00:05.00,Default,,0,0,0,,{\\p1}m 0 0 l 100 0{\\p0}
Dialogue: 0,0:00:04.50,0:00:05.00,Chinese,,0,0,0,,好
Dialogue: 0,0:00:04.50,0:00:05.00,English,,0,0,0,,OK
Dialogue: 0,x,0:00:05.00,Default,,0,0,0,,lost
"""

TALKS: dict[str, tuple[str, str, list[list[str]], dict[str, int]]] = {
    "Douban": (
        "douban",
        "1\t吃 了 吗\t刚 吃\t吃 的 什么\t面\n0\t吃 了 吗\t刚 吃\t吃 的 什么\t不 知道\n1\t在 吗\t在\n0\t在 吗\t冰箱\n",
        [["吃 了 吗", "刚 吃", "吃 的 什么", "面"], ["在 吗", "在"]],
        {"responses labelled as false": 2},
    ),
    "two lines": (
        "lines",
        "你好\n你好呀\n\n吃了吗\n刚吃过\n\n\n在吗\n在的\n",
        [["你好", "你好呀"], ["吃了吗", "刚吃过"], ["在吗", "在的"]],
        {},
    ),
    "Q and A": (
        "qa",
        "Q: How are you?\nA: Fine.\nQ: Who are you?\nA: A bot.\n",
        [["How are you?", "Fine."], ["Who are you?", "A bot."]],
        {},
    ),
    "问答": (
        "qa",
        "问：怎么退货\n\n答：打开订单\n点退货\n\n问：多久到\n问：能开发票吗\n答：能。\n答：可以\n问：在吗\n",
        [["怎么退货", "打开订单，点退货"], ["能开发票吗", "能。"], ["能开发票吗", "可以"]],
        {"questions without an answer": 2},
    ),
    "answers on the same line": ("qa", "问：甲 答：乙\n问：丙\t答：丁\n", [["甲", "乙"], ["丙", "丁"]], {}),
    "a title, bullets and full-width labels": (
        "qa",
        "常见问题\n\n- \uff31：甲\n- \uff21：乙\n\n2. Q: c?\n   A:\td\n",
        [["甲", "乙"], ["c?", "d"]],
        {"lines before the first label": 1},
    ),
    "tabs after labels": ("qa", "Q:\ta?\nA:\tb\n", [["a?", "b"]], {}),
    "labels in brackets": ("qa", "【问】甲\n【答】乙\n\n【问】丙\n【答】丁\n", [["甲", "乙"], ["丙", "丁"]], {}),
    "bold labels": ("qa", "**Q:** a?\n**A:** b\n", [["a?", "b"]], {}),
    "numbers": ("qa", "Q1: a?\nA1: b\n\nQ2: c?\nA2: d\n", [["a?", "b"], ["c?", "d"]], {}),
    "user and bot": (
        "qa",
        "用户: 你好\n机器人: 你好呀\n用户: 再见\n机器人: 再见！\n\nuser: 在吗\nbot: 在\n",
        [["你好", "你好呀", "再见", "再见！"], ["在吗", "在"]],
        {},
    ),
    "SubRip": (
        "srt",
        SRT,
        [["Where are you, my friend?", "Here.", "Me too!"], ["Good morning.", "Morning."]],
        {"cues without speech": 1},
    ),
    "SubRip in two languages": ("srt", BILINGUAL, [["你去哪儿", "回家", "好"]], {}),
    "WebVTT": ("srt", VTT, [["Hi", "Hello"]], {}),
    "WebVTT with times and entities": (
        "srt",
        "WEBVTT\n\n00:01.000 --> 00:02.000\nIt&#39;s <00:01.500><c>me</c>\n\n00:02.500 --> 00:03.000\nYou &amp; who?\n",
        [["It's me", "You & who?"]],
        {},
    ),
    "SubStation Alpha": (
        "ass",
        ASS,
        [["你去哪儿", "回家", "好"]],
        {"cues without speech": 1, "cues without a time": 1},
    ),
}


@pytest.mark.parametrize(("format_name", "content", "expected", "counts"), TALKS.values(), ids=TALKS.keys())
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_talks_are_conversations(
    tmp_path: Path, format_name: str, content: str, expected: list[list[str]], counts: dict[str, int], line_end: str
) -> None:
    found, report = conversations_of(written(tmp_path, "a.txt", content.replace("\n", line_end)))
    assert found == expected
    assert report.formats == [format_name]
    assert dropped(report) == counts


PROSE = {
    "sentences": "It was a dark night.\nThe rain fell, in torrents.\n\nIt was checked by a gust.\n\nSo it was.\n",
    "paragraphs": (
        "The wind swept up the streets of the old town, and rattled along the housetops\nand the lamps.\n\n" * 5
    ),
    "Chinese": "从前有座山，山里有座庙。\n\n庙里有个老和尚，在给小和尚讲故事。\n讲的什么故事呢？\n从前有座山。\n",
    "a log": "2020-01-01 12:00:00 INFO started\n2020-01-01 12:00:01 INFO ready\n2020-01-01 12:00:02 ERROR lost\n",
    "a play": "小明：你好\n小红：你好呀\n小明：再见\n",
    "a log with levels": "[2024-01-01 10:00:00] app.INFO: started\n[2024-01-01 10:00:01] app.ERROR: lost\n",
    "names before texts": "小明：在吗\n小红：在的\n\n小明：吃了吗\n小红：吃了\n",
    "names and times before texts": "张三 09:01\n在吗\n\n李四 09:02\n在的\n",
    "subtitles of YouTube": "0:00:00.599,0:00:04.160\nHello\n\n0:00:04.160,0:00:06.770\nHi\n",
    "a poem": "Two roads diverged in a yellow wood,\nAnd I took one\n\nThe other, just as fair,\nI left\n",
    "minutes": "Agenda:\n1. A new start\n2. Questions\nA: the budget\nB: the plan\n",
    "a clock": "The train leaves at 12:00:00 --> platform 2\nAll aboard\n",
}


@pytest.mark.parametrize("content", PROSE.values(), ids=PROSE.keys())
def test_prose_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match=r"unknown format|give --format"):
        conversations_of(written(tmp_path, "a.txt", content))


def test_format_lines_reads_a_text_without_blank_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "你好\n你好呀\n吃了吗\n刚吃过\n")
    with pytest.raises(UserError, match=r"each two lines may be a pair; .* give --format lines") as error:
        pairs_of(path)
    reading, *shown = error.value.details
    assert reading.endswith("read as format lines, UTF-8:")
    assert shown == ["  你好  ->  你好呀", "  吃了吗  ->  刚吃过"]
    assert pairs_of(path, format="lines")[0] == [("你好", "你好呀"), ("吃了吗", "刚吃过")]


def test_long_monologue_is_no_turn(tmp_path: Path) -> None:
    lines = [
        "[1.1.20, 10:00] A: hi",
        *["[1.1.20, 10:00] B: " + "x" * 90] * 200,
        "[1.1.20, 10:00] A: oh",
        "[1.1.20, 10:00] B: " + "x" * 10_000,
    ]
    found, report = conversations_of(written(tmp_path, "a.txt", "\n".join(lines)))
    assert found == [["oh", "x" * 10_000]]
    assert dropped(report) == {"turns of more than 10,000 characters": 1}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("format_name", "content"),
    [
        ("qa", "Q: a\nA: b\nQ" + " " * 500_000 + "x\n"),
        ("qa", "Q: a\nA: b\n" + "c\n" * 200_000),
        ("whatsapp", "[1.1.20, 10:00] A: a\n[1.1.20, 10:00] B: b\n" + "c\n" * 200_000),
        ("qq", "2020-01-01 12:00:00 A(12345)\n" + " " * 500_000 + "\n" + "c\n" * 200_000),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\n" + "(" * 500_000 + "\n" + "\n" * 200_000 + "a\n"),
        ("ass", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,," + "{" * 500_000),
        ("telegram", '{"messages": [' + '{"a": [' * 200_000),
        ("telegram", '{"chats": ' * 200_000),
        ("json", '{"a": ' * 200_000),
    ],
)
def test_readers_take_linear_time(tmp_path: Path, format_name: str, content: str) -> None:
    for text in open_text_files(written(tmp_path, "a", content), "a", Report()):
        with contextlib.suppress(UserError):
            list(FORMATS[format_name].read(text, ReadOptions(), Report()))


SAMPLES = {name: content for name, (_, content, _, _) in {**EXPORTS, **TALKS}.items()}
NAMES = sorted({name for name, _, _, _ in [*EXPORTS.values(), *TALKS.values()]})
FRAGMENTS = st.sampled_from(sorted({line for content in SAMPLES.values() for line in content.splitlines()}))


@given(lines=st.lists(FRAGMENTS | st.text(max_size=20), max_size=12), end=st.sampled_from(["\n", "\r\n", "\n\n"]))
@settings(deadline=None, max_examples=200)
def test_any_lines_give_pairs_or_one_line(tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str) -> None:
    content = end.join(lines).encode("utf-8", "replace")
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "lines", content))


@pytest.mark.parametrize("format_name", NAMES)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_every_reader_accepts_any_text(
    tmp_path_factory: pytest.TempPathFactory, format_name: str, data: st.DataObject
) -> None:
    samples = [content for name, content, _, _ in [*EXPORTS.values(), *TALKS.values()] if name == format_name]
    content = data.draw(st.sampled_from(samples) | st.text(max_size=100))
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    content = content[:start] + data.draw(st.text(max_size=8)) + content[end:]
    path = written(tmp_path_factory.getbasetemp(), format_name, content.encode("utf-8", "replace"))
    for text in open_text_files(path, "a", Report()):
        with contextlib.suppress(UserError):
            pairs = list(
                FORMATS[format_name].read(text, ReadOptions(me=data.draw(st.sampled_from([None, "Anna"]))), Report())
            )
            assert all(isinstance(text, str) for pair in pairs for text in pair[:2])
