"""Doubts about two columns: ordinary pairs are never asked about, and hostile cells take no time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.doubts import doubt_of
from chatbot.corpus.reading.tables import columns_of

SENTENCES = st.text("你好吗吃了没有今天去哪里我们都很想念天气", min_size=3, max_size=14)
PAIRS = st.tuples(SENTENCES, SENTENCES).filter(lambda pair: pair[0] != pair[1])


@given(st.lists(PAIRS, min_size=1, max_size=60, unique_by=(lambda pair: pair[0], lambda pair: pair[1])))
@settings(deadline=None)
def test_different_texts_are_pairs(rows: list[tuple[str, str]]) -> None:
    assert doubt_of(rows) == ""


@given(
    st.lists(st.text("你好吗吃了没有", min_size=2, max_size=5), min_size=2, max_size=9, unique=True), st.integers(2, 9)
)
def test_several_answers_to_a_question_stand_together(questions: list[str], answers: int) -> None:
    rows = [(question, f"{question}第{number}种回答") for question in questions for number in range(answers)]
    assert doubt_of(rows) == ""


SCRIPTS = [("甲乙丙丁戊己庚辛壬癸子", "第{}次，来了", 6, 4), ("jklmnopqrst", "I came {} times, today", 20, 8)]


@pytest.mark.parametrize(("letters", "sentence", "longest_name", "longest_label"), SCRIPTS)
def test_names_and_labels_are_short_and_come_often(
    letters: str, sentence: str, longest_name: int, longest_label: int
) -> None:
    def doubt(values: int, size: int, rows: int, side: int = 0, in_order: bool = False, end: str = "") -> str:
        """Of as many rows, beside whose sentences stand so many different words, in turns or in order."""
        words = [letters[i * values // rows if in_order else i % values] * size for i in range(rows)]
        beside = [sentence.format(i) + end for i in range(rows)]
        return doubt_of([*zip(words, beside, strict=True)] if side == 0 else [*zip(beside, words, strict=True)])

    # Labels come in turns.
    assert "first column has 2 values, as labels have" in doubt(2, longest_label, 3)
    assert doubt(2, longest_label + 1, 3) == doubt(2, longest_label, 3, in_order=True) == ""
    # So do names, each in three rows. Labels of answers are in six, and at most ten.
    assert "first column has 2 values, as names or labels" in doubt(2, longest_name, 6)
    assert doubt(2, longest_name + 1, 6) == doubt(2, longest_name, 5) == ""
    assert "second column has 2 values, as names or labels" in doubt(2, longest_name, 12, side=1)
    assert doubt(2, longest_name + 1, 12, side=1) == doubt(2, longest_name, 11, side=1) == ""
    assert "second column has 10 values, as names or labels" in doubt(10, 1, 60, side=1)
    assert doubt(11, 1, 66, side=1) == doubt(2, 1, 12, side=1, end="?") == ""
    # Short words in order come from ten rows on.
    assert "first column has 2 values, as names or labels" in doubt(2, longest_label, 20, in_order=True)
    assert doubt(2, longest_label + 1, 20, in_order=True) == doubt(2, longest_label, 19, in_order=True) == ""
    # A single word is a label beside anything.
    assert "first column has 1 value, as names or labels have" in doubt(1, 50, 3)


@pytest.mark.parametrize("cell", ["3", "2020-01-01", "a@b.org", "C:\\a", "x.png", "n1/x n2/y", "A"])
def test_nine_of_ten_cells_decide(cell: str) -> None:
    """Cells that are no texts, but for one of ten, and letters of choices among the answers."""
    texts = [f"I came {i} times, today" for i in range(10)]
    others = ["B", *[cell] * 7] if cell == "A" else [f"{cell}{i}" for i in range(8)]
    for cells, is_doubtful in (([*others, others[0], texts[9]], True), ([*others, *texts[8:]], False)):
        assert bool(doubt_of([*zip(texts, cells, strict=True)])) == is_doubtful


@pytest.mark.parametrize("unit", ["1", "1 ", " ", "a.", "@", "a@", "/", "http://", "2024年", "星期", "[", "是，"])
def test_hostile_cells_take_linear_time(unit: str) -> None:
    rows = [[unit * (100_000 // len(unit)) + str(i), f"{i}" + unit * (100_000 // len(unit))] for i in range(4)]
    start = time.process_time()
    columns_of(rows, (), "a")
    assert time.process_time() - start < 0.3


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        ([["问题 1", "答 1"], ["一", "二"], ["三", "四"]], ""),  # a pair, not a header: it has numbers
        ([["用户", "客服"], ["用户", "客服"], ["三", "四"]], ""),
        ([["name", "city"], ["Ann", "Rome"], ["Ben", "Paris"]], "--columns name city"),
    ],
)
def test_first_rows(rows: list[list[str]], doubt: str) -> None:
    columns = columns_of(rows, (), "a")
    assert doubt in columns.doubt
    assert bool(doubt) == bool(columns.doubt)
