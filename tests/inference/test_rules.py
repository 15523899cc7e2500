"""The fixed answers of --rules, wherever replies are asked for, and files that are wrong."""

import dataclasses
from pathlib import Path

import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.inference.request import Question
from chatbot.inference.rules import fixed_answer, read_rules
from tests.inference.messages import answer_of, best_of, replies_of, reply_of
from tests.tiny_models import Table

TABLE = Table()


def test_the_first_rule_whose_pattern_is_in_the_question_answers(tmp_path: Path) -> None:
    path = tmp_path / "rules.tsv"
    path.write_text("\ufeff# hours\n营业|几点\t九点到六点\n\n ^HELLO$ \t hi \r\n几点了\tno\n", encoding="utf-8")
    rules = read_rules(path)
    asked = {"你们几点了": "九点到六点", "hello": "hi", "hello!": None, "# hours": None, "": None}
    assert {question: fixed_answer(rules, question) for question in asked} == asked


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"a\tb\n(\tb", "line 2: missing )"),
        (b"a\n", "line 1 is not"),
        (b"a\t \n", "line 1 is not"),
        (b"\tb\n", "line 1 is not"),
        (b"a\tb\tc\n", "line 1 is not"),
        (b"a{99999999999999}\tb", "line 1"),
        (b"\xff\tb", "it is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "rules.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"--rules .*rules\.tsv: ") as error:
        read_rules(path)
    assert named in str(error.value)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_fixed_answers_are_given_wherever_replies_are_asked_for(tmp_path: Path, beam_size: int) -> None:
    """Before anything is searched, also to a question of which the model reads only a part."""
    path = tmp_path / "rules.tsv"
    path.write_text("退货\t七天内可以\n", encoding="utf-8")
    plain = DecodingSettings(beam_size=beam_size)
    one, other = (TABLE.responder(x) for x in (dataclasses.replace(plain, rules=str(path)), plain))
    fixed, free = "怎么退货" + "啊" * 1900, "你好"
    own = dataclasses.replace(plain, rules=str(path))
    assert replies_of(one, [fixed, free, " "]) == ["七天内可以", *replies_of(other, [free, " "])]
    for text, expected in ((fixed, "七天内可以"), (free, reply_of(other, free))):
        assert reply_of(one, text) == best_of(one, text)[0].text == expected
        assert answer_of(other, Question(text, decoding=own)).texts == [expected]
    assert answer_of(one, Question(fixed, replies=2)).texts == ["七天内可以"] * 2
    assert reply_of(other, fixed) != "七天内可以"
