"""Messages of chats: what ends a conversation, whose replies are learned, and order within bounds; see also `wild`."""

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chatbot.corpus.reading import records, turns
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import FIRST_LINES
from chatbot.corpus.reading.texts import plain_text
from chatbot.corpus.reading.turns import MAX_TURN, TOO_LONG, Message, pairs_of_messages
from tests.corpus.reading.sample_files import conversations, conversations_of, dropped, written


def talks_of(said: Sequence[tuple[str, str, str] | None], me: str | None = None) -> tuple[list[list[str]], Report]:
    """The conversations of messages: (name, time, text)."""
    report = Report()
    found = (each and Message(each[0], (each[0],), each[1], each[2]) for each in said)
    return conversations(pairs_of_messages(found, ReadOptions(me=me), report, "a")), report


def test_the_end_of_a_chat_ends_its_conversation() -> None:
    said = [("甲", "", "一"), None, ("乙", "", "二"), ("甲", "", "三")]
    assert talks_of(said)[0] == [["二", "三"]]
    # Its last time tells no pause within the next one, whose first message has no time.
    said = [("甲", "2024-01-01 10:00", "一"), None, ("乙", "", "二"), ("甲", "2024-01-03 10:00", "三")]
    assert talks_of(said)[0] == [["二", "三"]]


def test_a_chat_of_one_person_is_counted() -> None:
    found, report = talks_of([("甲", "", "一"), ("甲", "", "二")])
    assert found == []
    assert dropped(report) == {"chats in which nobody answers": 1}


TURNS = [("A", "", "0"), ("B", "", "1"), ("A", "", "2"), ("B", "", "3"), ("C", "", "4"), ("B", "", "5")]


@pytest.mark.parametrize(
    ("me", "expected"),
    [(None, [["0", "1", "2", "3", "4", "5"]]), ("b", [["0", "1", "2", "3", "4", "5"]]), ("A", [["1", "2"]])],
)
def test_me_chooses_whose_replies_are_learned(me: str | None, expected: list[list[str]]) -> None:
    assert talks_of(TURNS, me)[0] == expected


def test_newest_first_is_turned_around_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block begins a conversation."""
    monkeypatch.setattr(turns, "MAX_HELD", 250)
    said = [("AB"[n % 2], f"2024-01-01 {n // 60:02}:{n % 60:02}", str(n)) for n in range(600)]
    assert sorted(talks_of(said[::-1])[0], key=lambda turns: int(turns[0])) == [
        [*map(str, range(first, last))] for first, last in ((0, 100), (100, 350), (350, 600))
    ]


def test_chats_that_alternate_are_told_apart_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_HELD", 40)
    rows = [{"dialog_id": chat, "speaker": "AB"[n % 2], "text": f"{chat} {n}"} for n in range(4) for chat in range(5)]
    rows += [{"dialog_id": 9, "speaker": "AB"[n % 2], "text": f"9 {n}"} for n in range(50)]
    found, _ = conversations_of(written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert found[:5] == [[f"{chat} {n}" for n in range(4)] for chat in range(5)]
    assert [turn for turns in found[5:] for turn in turns] == [f"9 {n}" for n in range(50)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *(
            ("[音乐分享]", ""),
            ("[链接]...", ""),
            ("[音乐分享] 晴天 - 小禾", ""),
            ("[Voice over 3 s]", ""),
            ("[捂脸][捂脸]", ""),
        ),
        *(("[CQ:face,id=14]", ""), ("[CQ:image,file=a.jpg,url=https://a.cn/b?c=1]", ""), ("[CQ:at,qq=1] 好", "好")),
        *(("嗯[微笑]", "嗯[微笑]"), ("[重要]开会", "[重要]开会"), ("看\n [音乐分享] \n听", "看\n \n听")),
        *(("[1]", "[1]"), ("[3, 4]", "[3, 4]"), ("[真的吗？]", "[真的吗？]"), ("【好】", "【好】"), ("[]", "[]")),
    ],
)
def test_plain_text_of_messages(written: str, expected: str) -> None:
    """Emoticons are text beside a text, and pictures by themselves; who writes a sentence in brackets, writes."""
    assert plain_text(written) == expected


@pytest.mark.parametrize("texts", [["长" * (MAX_TURN + 1)], ["长" * 90] * 200])
def test_a_turn_that_is_too_long_is_counted(texts: list[str]) -> None:
    said = [("甲", "", "一"), *(("乙", "", text) for text in texts), ("甲", "", "二"), ("乙", "", "长" * MAX_TURN)]
    found, report = talks_of(said)
    assert found == [["二", "长" * MAX_TURN]]
    assert dropped(report) == {TOO_LONG: 1}


@pytest.mark.parametrize(
    ("line", "late", "expected"),
    [
        ("{}: {}\n", "丙: x\n甲: y\n丙: z\n", ["x", "y", "z"]),
        ("{}: {}\n", "丙: x\n甲: y\n", ["x", "y"]),  # every line begins with a name
        ("{}: {}\nand so on\n", "丙: x\n甲: y\nPS: w\n丙: z\n", ["x", "y PS: w", "z"]),
        ("{}: {}\n", "", []),
    ],
)
def test_a_name_that_first_appears_late_begins_messages(
    tmp_path: Path, line: str, late: str, expected: list[str]
) -> None:
    first = "".join(line.format("甲乙"[n % 2], n) for n in range(FIRST_LINES + 2))
    (found,), _ = conversations_of(written(tmp_path, "a", first + late), head="{name}: ")
    assert len(found) == FIRST_LINES + 2 + len(expected)
    assert found[FIRST_LINES + 2 :] == expected


def days(first: int, last: int, layout: str = "%d/%m/%Y %I:%M %p") -> list[tuple[str, str, str]]:
    """Thirty messages in the evening of each day of a month, as (name, time, text)."""
    moments = [datetime.datetime(2024, 3, day, 20, minute) for day in range(first, last + 1) for minute in range(30)]
    return [("AB"[n % 2], f"{moment:{layout}}", str(n)) for n, moment in enumerate(moments)]


@pytest.mark.parametrize("layout", ["%d/%m/%Y %I:%M %p", "%m/%d/%Y %H:%M"])
def test_all_dates_of_a_chat_decide_which_order_they_have(layout: str) -> None:
    """The first 360 of 600 messages are of the first twelve days of a month."""
    found, report = talks_of(days(1, 20, layout))
    assert [len(turns) for turns in found] == [30] * 20
    assert report.unused == {}


def test_messages_that_wait_for_a_date_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_HELD", 200)
    read = []

    def said() -> Iterator[Message]:
        for name, time, text in days(1, 20):
            read.append(text)
            yield Message(name, (name,), time, text)

    next(pairs_of_messages(said(), ReadOptions(), Report(), "a"))
    assert len(read) == 200


def test_later_times_that_are_not_understood_are_reported() -> None:
    assert talks_of([*days(13, 20), ("B", "", "y")])[1].notes() == []
    assert talks_of([*days(13, 20), ("A", "soon", "x")])[1].notes() == [
        "some times cannot be parsed, so no pause is detected before them (first: a)"
    ]
