"""Heads: patterns of the user, and the texts of applications."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading import heads
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import conversations_of, dropped, pairs_of, written
from tests.corpus.reading.test_wild import WILD

ANNA_AND_BEN: list[list[str]] = [["Hi there", "Hello", "Bye"]]
PATTERNS: list[tuple[str, str, list[list[str]]]] = [
    (
        "{name} ({time}):",
        "A (2024-01-01 10:00): Hi\nthere\nB (2024-01-01 10:01): Hello\nA (2024-01-01 10:02): Bye\n",
        [],
    ),
    (
        "[{time}] {name}",
        "[01/31/2024 10:00 AM] A\nHi\nthere\n\n[01/31/2024 10:01 AM] B\nHello\n[01/31/2024 10:02 AM] A\nBye\n",
        [],
    ),
    (r"{time}\n{name}", "2024-01-01 10:00\nA\nHi there\n2024-01-01 10:01\nB\nHello\n2024-01-01 10:02\nA\nBye\n", []),
    ("{name}（{id}）：", "A（a@b.c）：Hi there\nB（b@b.c）：Hello\nA（a@b.c）：Bye\n", []),
    ("<{name}> ", "<A> Hi there\n<B> Hello\n<A> Bye\n", []),
    ("{clock} {name}: {text}", "10:00 A: Hi\nthere\n10:01 B: Hello\n10:02 A: Bye\n", []),
    ("{any}|{name}|", "7|A|Hi there\n8|B|Hello\n9|A|Bye\n", []),
    (
        "{name}: ",
        "A: Hi\nthere: or not\nso\nB: Hello\nA: Bye\nB: So\n",
        [["Hi there: or not so", "Hello", "Bye", "So"]],
    ),
    ("{name}: ", "A: Hi\nB: Hello\n-----\nB: One\nA: Two\n", [["Hi", "Hello"], ["One", "Two"]]),
    (
        "## {question}",
        "# Help\n## Is it free?\nYes,\nit is.\n## Costs\nNone.\n## How long?\n\nA day.\n",
        [["Is it free?", "Yes, it is."], ["How long?", "A day."]],
    ),
    ("{number}{question}", "1. 怎么退货？\n打开订单\n2、多久\n三天\n", [["怎么退货？", "打开订单"], ["多久", "三天"]]),
]


@pytest.mark.parametrize(("head", "content", "expected"), PATTERNS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_head_begins_messages(
    tmp_path: Path, head: str, content: str, expected: list[list[str]], line_end: str
) -> None:
    path = written(tmp_path, "a.txt", content.replace("\n", line_end))
    assert conversations_of(path, head=head)[0] == (expected or ANNA_AND_BEN)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("({time})", "no {name}; write one such as '{name} ({time}):'"),
        ("{name} {date}", "its fields may be name, time, clock, id, text, question, number and any"),
        ("{name} {name}", "each once in braces"),
        ("", "no {name}"),
    ],
)
def test_heads_that_are_no_patterns_are_refused(head: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        heads.compiled(head)
    assert message in str(error.value)


def test_a_head_that_no_line_has_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "A: Hi\nB: Hello\n")
    with pytest.raises(UserError, match=r"no line has the head '<{name}>'; copy one from the file"):
        pairs_of(path, head="<{name}>")


def test_me_is_a_name_or_a_number(tmp_path: Path) -> None:
    content = (
        "A(123) 2024-01-01 10:00:00\nHi\n\nB(456) 2024-01-01 10:01:00\nHello\n\nA(123) 2024-01-01 10:02:00\nBye\n\n"
    )
    path = written(tmp_path, "a.txt", content)
    assert conversations_of(path)[0] == [["Hi", "Hello", "Bye"]]
    for me in ("123", "a"):
        assert conversations_of(path, me)[0] == [["Hello", "Bye"]]
    with pytest.raises(UserError, match="nobody is called C; give --me one of: A, B"):
        conversations_of(path, "C")


def test_a_line_that_cannot_be_decoded_ends_its_conversation(tmp_path: Path) -> None:
    lines = [f"[2020/12/31 21:15:0{n}] {'AB'[n % 2]}: {n}" for n in range(8)]
    lines[3] += "\ufffd"
    found, report = conversations_of(written(tmp_path, "a.txt", "\n".join(lines)))
    assert found == [["0", "1"], ["4", "5", "6", "7"]]  # 2 may have had more lines
    assert dropped(report)["lines not UTF-8"] == 1


def test_dates_above_messages_belong_to_their_clocks(tmp_path: Path) -> None:
    chat = "2023/05/02（火）\n20:10\tA\t一\n20:11\tB\t二\n2023/05/03（水）\n08:00\tB\t三\n08:01\tA\t四\n"
    assert conversations_of(written(tmp_path, "a.txt", chat))[0] == [["一", "二"], ["三", "四"]]


def test_each_declared_text_has_a_file() -> None:
    formats = set()
    for path in (*WILD.glob("*.txt"), *WILD.glob("*.md"), *WILD.glob("*.log")):
        with contextlib.suppress(UserError):
            formats.update(pairs_of(path)[1].formats)
    assert heads.texts().keys() <= formats


@given(st.text("{}nametimeclock ()[]\\^$.*+?|：:\n\t", max_size=20))
def test_any_pattern_is_compiled_or_refused(head: str) -> None:
    with contextlib.suppress(UserError):
        heads.compiled(head)


@given(st.from_regex(r"[A-Za-z0-9 ()\[\].*+?$^|-]{1,12}", fullmatch=True).filter(str.strip))
def test_other_characters_of_a_pattern_stand_for_themselves(mark: str) -> None:
    mark = "<" + " ".join(mark.split()) + ">"
    match = heads.compiled(f"{mark}{{name}}:").fullmatch(f"{mark}Anna: Hi")
    assert match is not None
    assert match["name"] == "Anna"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", '[\n{"question": "a: b", "answer": "c"}\n]\n'), ("a.csv", "question,answer\na: 1,b\na: 2,c\n")],
)
def test_json_and_tables_have_no_heads(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(UserError, match="--head, but JSON and tables have no heads; leave it out"):
        pairs_of(written(tmp_path, name, content), head="{name}: ")


@pytest.mark.parametrize("head", [*heads.USUAL, "{name} {time}", "{name} ({time}):{text}"])
def test_spaces_take_no_time(head: str) -> None:
    pattern = heads.compiled(head)
    start = time.process_time()
    for _ in range(100):
        pattern.fullmatch("# a" + " " * 197)
    assert time.process_time() - start < 0.05
