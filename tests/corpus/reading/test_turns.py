"""Who said what: what one turn is, which turns are learned, which roles are known; see also `wild`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.corpus.reading import turns
from chatbot.corpus.reading.names import ROLES, key_of, load_table
from chatbot.corpus.reading.turns import MAX_TURN, Utterance, pairs_of_turns
from tests.corpus.reading.sample_files import conversations, conversations_of, dropped, written


def talks_of(said: Sequence[Utterance | None]) -> tuple[list[list[str]], list[str]]:
    reasons: list[str] = []
    return conversations(pairs_of_turns(said, reasons.append)), reasons


A, B = (lambda text: Utterance(text, "a")), (lambda text: Utterance(text, "b"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            [A("一"), A("二"), B("三"), B("四。"), B("五"), A("six"), A("seven")],
            [["一，二", "三，四。五", "six seven"]],
        ),
        (
            [Utterance("哈"), Utterance("哈"), Utterance("哈")],
            [["哈", "哈", "哈"]],
        ),  # each is a turn
        ([A(" 一\n"), B("二\n三")], [[" 一\n", "二\n三"]]),  # a single message stays as it is
        ([A("一"), None, B("二"), A("三")], [["二", "三"]]),
        ([A("一"), B(""), A("二"), B("三")], [["二", "三"]]),
        ([A("一"), A(""), B(" "), B("二")], [["一", "二"]]),
        ([A("x" * (MAX_TURN + 1)), B("一")], [["x" * (MAX_TURN + 1), "一"]]),
        (
            [Utterance("问", "a", answers=False), Utterance("答", "b", asks=False), A("再问"), B("再答")],
            [["问", "答", "再问", "再答"]],
        ),
    ],
)
def test_turns(said: Sequence[Utterance | None], expected: list[list[str]]) -> None:
    assert talks_of(said) == (expected, [])


def test_each_role_has_a_source_and_does_one_thing() -> None:
    rows = load_table("names.yaml")["roles"]
    assert all(row["source"] for row in rows)
    found = [key_of(name) for row in rows for kind in ("asks", "answers", "unheard") for name in row.get(kind, ())]
    assert len(found) == len(ROLES)


def rows_of(roles: str, field: str = "role") -> list[dict[str, str]]:
    """Messages whose texts are numbers: 'user assistant' -> those of a user and an assistant."""
    return [{field: role, "content": str(number)} for number, role in enumerate(roles.split(), start=1)]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("developer user assistant user assistant", [["2", "3", "4", "5"]]),
        ("system customer agent CUSTOMER AGENT", [["2", "3", "4", "5"]]),
        ("user user assistant assistant user", [["1 2", "3 4"]]),
        ("human function_call observation gpt", [["1", "4"]]),
        ("user assistant tool assistant user assistant", [["1", "2 4", "5", "6"]]),
        ("系统 客户 客服 客服", [["2", "3 4"]]),
        ("assistant user assistant", [["2", "3"]]),
    ],
)
@pytest.mark.parametrize("form", ["messages", "rows", "csv", "labels", "history", "heads"])
def test_roles_are_read_alike_in_every_layout(tmp_path: Path, roles: str, expected: list[list[str]], form: str) -> None:
    messages = rows_of(roles)
    options = {}
    if form == "messages":
        content = json.dumps({"messages": messages})
    elif form == "rows":
        content = "\n".join(map(json.dumps, messages))
    elif form == "csv":
        content = "\n".join(["role,content", *(f"{each['role']},{each['content']}" for each in messages)])
    elif form == "labels":
        content = json.dumps({"dialog": [[*each.values()] for each in messages]})
        options = {"map": "{turns: dialog}"}
    elif form == "history":
        content = json.dumps({"history": messages, "question": "q", "answer": "a"})
        *others, last = expected
        is_asked = roles.endswith("user")  # then the question is one turn with it
        expected = [*others, [*last, "5 q", "a"] if is_asked else [*last, "q", "a"]]
    else:
        content = "\n".join(f"{each['role']}: {each['content']}" for each in messages)
        options = {"head": "{name}: "}
    path = written(tmp_path, "a.csv" if form == "csv" else "a", content + "\n")
    found, report = conversations_of(path, **options)
    assert found == expected
    unheard = {*roles.split()} & {"developer", "system", "function_call", "observation", "tool", "系统"}
    assert dropped(report) == ({turns.OF_PROGRAMS: len(unheard)} if unheard else {})


def test_role_that_appears_late_is_left_out_and_counted(tmp_path: Path) -> None:
    """It stands between the turns around it."""
    rows = rows_of("user assistant " * 100 + "user narrator assistant user assistant")
    path = written(tmp_path, "a", "\n".join(map(json.dumps, rows)))
    found, report = conversations_of(path)
    assert found == [[*map(str, range(1, 201)), "204", "205"]]
    assert dropped(report) == {turns.UNKNOWN_ROLES: 1}


FLAGS = [(True, "1"), (False, "2"), (True, "3"), (True, "4"), (False, "5")]


@pytest.mark.parametrize(
    ("field", "yes", "no"),
    [("is_user", True, False), ("fromCustomer", 1, 0), ("is_bot", "False", "True"), ("is_agent", "否", "是")],
)
@pytest.mark.parametrize("form", ["messages", "rows", "csv"])
def test_flag_is_a_role(tmp_path: Path, field: str, yes: object, no: object, form: str) -> None:
    """A value that is neither is one that is not known."""
    messages = [{field: yes if asks else no, "content": text} for asks, text in FLAGS]
    content = "\n".join(map(json.dumps, messages))
    if form == "messages":
        content = json.dumps({"messages": messages})
    elif form == "csv":
        content = "\n".join([f"{field},content", *(f"{each[field]},{each['content']}" for each in messages)])
    found, report = conversations_of(written(tmp_path, "a.csv" if form == "csv" else "a", content + "\n"))
    assert found == [["1", "2", "3 4", "5"]]
    assert dropped(report) == {}
