"""Messages of chats: turns, what is no text, pauses and order, and --me."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.corpus.reading import messages
from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.messages import Message, pairs_of_messages, plain_text
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import conversations, conversations_of, dropped, written

NO_TEXT, NOTICES = (
    "messages without text, such as pictures",
    "notices of the application, such as calls and deleted messages",
)


def pairs(said: Sequence[tuple[str, str, str] | None], me: str | None = None) -> tuple[list[Pair], Report]:
    """The pairs of messages: (name, time, text)."""
    report = Report()
    found = (each and Message(each[0], (each[0],), each[1], each[2]) for each in said)
    return [*pairs_of_messages(found, ReadOptions(me=me), report, "a")], report


def at(clock: str, day: int = 1) -> str:
    return f"2024-01-{day:02} {clock}"


CHATS: dict[str, tuple[list[tuple[str, str, str] | None], list[list[str]], dict[str, int]]] = {
    "turns of several messages": (
        [
            ("甲", at("10:00"), "在吗"),
            ("乙", at("10:01"), "在"),
            ("乙", at("10:02"), "怎么了"),
            ("甲", at("10:03"), "没事"),
        ],
        [["在吗", "在，怎么了", "没事"]],
        {},
    ),
    "a picture stands between two texts": (
        [("甲", "", "在吗"), ("乙", "", "[图片]"), ("甲", "", "好看"), ("乙", "", "谢谢")],
        [["好看", "谢谢"]],
        {NO_TEXT: 1},
    ),
    "a notice does not": (
        [("甲", "", "在吗"), ("系统消息", "", "对方正在输入"), ("乙", "", "乙撤回了一条消息"), ("乙", "", "在")],
        [["在吗", "在"]],
        {NOTICES: 2},
    ),
    "a picture beside a text of the same person": (
        [("甲", "", "在吗"), ("乙", "", "[图片]"), ("乙", "", "看")],
        [["在吗", "看"]],
        {NO_TEXT: 1},
    ),
    "a pause": (
        [("甲", at("08:00"), "早"), ("乙", at("12:00"), "晚"), ("甲", at("12:01"), "嗯")],
        [["晚", "嗯"]],
        {},
    ),
    "no pause of three hours": ([("甲", at("08:00"), "早"), ("乙", at("11:00"), "早")], [["早", "早"]], {}),
    "the newest message first": (
        [("乙", at("18:01"), "丁"), ("甲", at("18:00"), "丙"), ("乙", at("10:01"), "乙"), ("甲", at("10:00"), "甲")],
        [["甲", "乙"], ["丙", "丁"]],
        {},
    ),
    "the end of a chat": ([("甲", "", "一"), None, ("乙", "", "二"), ("甲", "", "三")], [["二", "三"]], {}),
    "one person": ([("甲", "", "一"), ("甲", "", "二")], [], {"chats in which nobody answers": 1}),
    "a monologue is no turn": (
        [("甲", "", "一"), *[("乙", "", "x" * 90)] * 200, ("甲", "", "二"), ("乙", "", "x" * 10_000)],
        [["二", "x" * 10_000]],
        {"turns of more than 10,000 characters": 1},
    ),
}


@pytest.mark.parametrize(("said", "expected", "counts"), CHATS.values(), ids=CHATS.keys())
def test_messages_are_conversations(
    said: list[tuple[str, str, str] | None], expected: list[list[str]], counts: dict[str, int]
) -> None:
    found, report = pairs(said)
    assert conversations(found) == expected
    assert dropped(report) == counts


@pytest.mark.parametrize("reply", ["已取消", "已拒绝", "null", "通话", "对方已取消", "None"])
def test_what_a_person_may_write_is_learned(reply: str) -> None:
    """Though applications write it, too."""
    assert pairs([("甲", "", "订单取消了吗"), ("乙", "", reply)])[0] == [("订单取消了吗", reply, 0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[图片]", ""),
        ("[图片: a.jpg]", ""),
        ("[语音消息] 12秒", ""),
        ("[动画表情]好的", "好的"),
        ("看[图片]", "看"),
        ("[重要]开会", "[重要]开会"),
        ("<msg><img/></msg>", ""),
        ("「甲：在吗」\n- - - - - - -\n在", "在"),
        ("[回复消息]太好了", "太好了"),
        ("> quoted\nyes", "yes"),
        ("<@U1> see <https://a.cn|this>", "see this"),
        ("a < b", "a < b"),
        ("语音/视频通话[通话时长 02:13]", ""),
    ],
)
def test_text_of_a_message(text: str, expected: str) -> None:
    assert plain_text(text) == expected


TURNS = [("A", "", "0"), ("B", "", "1"), ("A", "", "2"), ("B", "", "3"), ("C", "", "4"), ("B", "", "5")]


@pytest.mark.parametrize(
    ("me", "expected"),
    [(None, [["0", "1", "2", "3", "4", "5"]]), ("b", [["0", "1", "2", "3", "4", "5"]]), ("A", [["1", "2"]])],
)
def test_me_chooses_whose_replies_are_learned(me: str | None, expected: list[list[str]]) -> None:
    assert conversations(pairs(TURNS, me)[0]) == expected


def test_unknown_name_lists_the_names_found() -> None:
    with pytest.raises(UserError, match=r"a: nobody is called Eva; give --me one of: A, B, C"):
        pairs(TURNS, "Eva")
    with pytest.raises(UserError, match=r"a: --me Eva, but nothing in it has a name; leave --me out"):
        pairs([("", "", "0"), ("", "", "1")], "Eva")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (["5/6/2024 10:00", "6/6/2024 10:01", "7/6/2024 10:02"], ""),
        (["5/6/2024 23:59", "6/6/2024 0:01", "6/6/2024 0:02"], "days and months of times such as"),
        (["gestern", "heute", "morgen"], "times such as 'gestern' are not understood, so that no pause ends"),
    ],
)
def test_what_is_not_known_of_times_is_said(times: list[str], said: str) -> None:
    _, report = pairs([(name, time, "x") for name, time in zip("ABA", times, strict=True)])
    assert bool(said) == bool(report.notes())
    assert all(said in note for note in report.notes())


def test_newest_first_is_turned_around_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block begins a conversation."""
    monkeypatch.setattr(messages, "MAX_HELD", 250)
    said = [("AB"[n % 2], f"2024-01-01 {n // 60:02}:{n % 60:02}", str(n)) for n in range(600)]
    found = conversations(pairs(said[::-1])[0])
    assert sorted(found, key=lambda turns: int(turns[0])) == [
        [*map(str, range(first, last))] for first, last in ((0, 100), (100, 350), (350, 600))
    ]


def test_chats_that_alternate_are_told_apart_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_HELD", 40)
    rows = [{"dialog_id": chat, "speaker": "AB"[n % 2], "text": f"{chat} {n}"} for n in range(4) for chat in range(5)]
    rows += [{"dialog_id": 9, "speaker": "AB"[n % 2], "text": f"9 {n}"} for n in range(50)]
    found, _ = conversations_of(written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert found[:5] == [[f"{chat} {n}" for n in range(4)] for chat in range(5)]
    assert [turn for turns in found[5:] for turn in turns] == [f"9 {n}" for n in range(50)]
