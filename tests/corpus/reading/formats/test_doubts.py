"""Doubts about two columns: ordinary pairs are never asked about, and hostile cells take no time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.formats.columns import layout_of
from chatbot.corpus.reading.formats.doubts import doubt_of

SENTENCES = st.text("你好吗吃了没有今天去哪里我们都很想念天气", min_size=3, max_size=14)


@given(st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=60, unique_by=(lambda p: p[0], lambda p: p[1])))
@settings(deadline=None)
def test_different_texts_are_pairs(rows: list[tuple[str, str]]) -> None:
    assert doubt_of(rows) == ""


@given(
    st.lists(st.text("你好吗吃了没有", min_size=2, max_size=5), min_size=2, max_size=9, unique=True), st.integers(2, 9)
)
def test_several_answers_to_a_question_stand_together(questions: list[str], answers: int) -> None:
    rows = [(question, f"{question}第{number}种回答") for question in questions for number in range(answers)]
    assert doubt_of(rows) == ""


@pytest.mark.parametrize("unit", ["1", "1 ", " ", "a.", "@", "a@", "/", "http://", "2024年", "星期", "[", "是，"])
def test_hostile_cells_take_linear_time(unit: str) -> None:
    rows = [[unit * (100_000 // len(unit)) + str(i), f"{i}" + unit * (100_000 // len(unit))] for i in range(4)]
    start = time.process_time()
    layout_of(rows, (), "a")
    assert time.process_time() - start < 0.3


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        ([["问题 1", "答 1"], ["一", "二"], ["三", "四"]], ""),  # a pair, not a header: it has numbers
        ([["用户", "客服"], ["用户", "客服"], ["三", "四"]], ""),
        ([["name", "city"], ["Ann", "Rome"], ["Ben", "Paris"]], "--columns 1 2"),
    ],
)
def test_first_rows(rows: list[list[str]], doubt: str) -> None:
    layout = layout_of(rows, (), "a")
    assert doubt in layout.doubt
    assert bool(doubt) == bool(layout.doubt)
