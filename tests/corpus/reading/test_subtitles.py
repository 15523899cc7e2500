"""Subtitles: sentences over several cues, pauses, dashes, two languages, styles and sounds."""

from pathlib import Path

import pytest

from tests.corpus.reading.sample_files import conversations_of, dropped, written

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
"""
CASES: dict[str, tuple[str, str, list[list[str]], dict[str, int]]] = {
    "SubRip": (
        "srt",
        SRT,
        [["Where are you, my friend?", "Here.", "Me too!"], ["Good morning.", "Morning."]],
        {"cues without speech": 1},
    ),
    "two languages": ("srt", BILINGUAL, [["你去哪儿", "回家", "好"]], {}),
    "WebVTT": ("srt", VTT, [["Hi", "Hello"]], {}),
    "times and entities in a cue": (
        "srt",
        "WEBVTT\n\n00:01.000 --> 00:02.000\nIt&#39;s <00:01.500><c>me</c>\n\n00:02.500 --> 00:03.000\nYou &amp; who?\n",
        [["It's me", "You & who?"]],
        {},
    ),
    "SubStation Alpha": ("ass", ASS, [["你去哪儿", "回家", "好"]], {"cues without speech": 1}),
}


@pytest.mark.parametrize(("format_name", "content", "expected", "counts"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_cues_are_turns(
    tmp_path: Path, format_name: str, content: str, expected: list[list[str]], counts: dict[str, int], line_end: str
) -> None:
    found, report = conversations_of(written(tmp_path, "a.txt", content.replace("\n", line_end)))
    assert found == expected
    assert report.formats == [format_name]
    assert dropped(report) == counts
