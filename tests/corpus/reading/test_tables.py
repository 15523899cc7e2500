"""CSV and TSV: what programs write is read back, and columns that may be no pairs are asked about."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, dropped, pairs_of, pairs_or_one_line, written
from tests.pace import cost

CELL = st.text("ab\"',;|\t\n 你好，。", min_size=1, max_size=8).filter(
    # With both, a line within the cell may look like a row of TSV.
    lambda cell: cell.strip() and not ("\t" in cell and "\n" in cell)
)
PLAIN = st.text("ab\"', 你好，。", min_size=1, max_size=8).filter(
    lambda cell: cell.strip() and not (cell[0] == cell[-1] == '"')
)
HEADERS = ("question", "answer")


@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12),
    separator=st.sampled_from(",;|\t"),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    ends=st.sampled_from(["\n", "\r\n"]),
    escaped=st.booleans(),
)
@example(rows=[('a"b', '"')], separator="\t", quoting=csv.QUOTE_MINIMAL, ends="\n", escaped=False)
@example(rows=[('"|;\n;', ";")], separator="|", quoting=csv.QUOTE_ALL, ends="\n", escaped=True)
def test_what_a_csv_writer_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: Pairs, separator: str, quoting: Any, ends: str, escaped: bool
) -> None:
    written_with: dict[str, Any] = {"delimiter": separator, "quoting": quoting, "lineterminator": ends}
    if escaped and separator != "\t":
        written_with |= {"doublequote": False, "escapechar": "\\"}
    buffer = io.StringIO(newline="")
    # Ten plain rows show the number of columns.
    csv.writer(buffer, **written_with).writerows([HEADERS, *[("你好", "在的")] * 10, *rows])
    path = written(tmp_path_factory.getbasetemp(), "written", buffer.getvalue())
    pairs, _ = pairs_of(path, ("1", "2"))
    stripped = [(question.strip(), answer.strip()) for question, answer in pairs]
    assert stripped[10:] == [(question.strip(), answer.strip()) for question, answer in rows]


@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=12))
def test_what_is_written_without_quotes_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: Pairs) -> None:
    content = "".join(f"{question}\t{answer}\n" for question, answer in [HEADERS, *rows])
    assert pairs_of(written(tmp_path_factory.getbasetemp(), "plain", content), ("1", "2"))[0] == rows


def test_a_cell_may_have_a_million_characters(tmp_path: Path) -> None:
    """The limit of the csv module is 131,072."""
    long = "说明，" * 50_000
    path = written(tmp_path, "a.csv", f'question,answer\n丙,丁\n甲,"{long}\n{long}"\n')
    assert pairs_of(path, ("1", "2"))[0] == [("丙", "丁"), ("甲", f"{long}\n{long}")]
    path = written(tmp_path, "a.csv", f'question,answer\n丙,丁\n甲,"{long * 8}"\n戊,己\n')
    assert pairs_of(path, ("1", "2"))[1].lines() == [
        f"lines longer than 1,048,576 characters: 1 (first: {path}, line 3)"
    ]


def test_unclosed_quote_in_a_long_file_drops_one_row(tmp_path: Path) -> None:
    rows = [f"问{i},答{i}" for i in range(50_000)]
    rows[100] = '问100,"答100'
    pairs, report = pairs_of(written(tmp_path, "a.csv", "\n".join(rows)))
    assert len(pairs) == 49_999
    assert dropped(report) == {"rows with a stray or unclosed quote": 1}
    assert report.dropped["rows with a stray or unclosed quote"].first.endswith("line 101")


@pytest.mark.parametrize("columns", [("0", "1"), ("1", "1"), ("1", "2", "3")])
def test_columns_are_two(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"--columns: give two, .* by number from 1"):
        pairs_of(written(tmp_path, "a", "甲\t乙\n"), columns)


SENTENCES = st.text("你好吗吃了没有今天去哪里我们都很想念天气", min_size=3, max_size=14)
PAIRS = st.tuples(SENTENCES, SENTENCES).filter(lambda pair: pair[0] != pair[1])
QUESTIONS = st.lists(st.text("你好吗吃了没有", min_size=2, max_size=5), min_size=2, max_size=9, unique=True)


def find_doubt(folder: Path, rows: Pairs) -> str:
    """Why a TSV file with these rows may have no pairs, "" if it is read."""
    try:
        pairs, _ = pairs_of(written(folder, "rows.tsv", "".join("\t".join(row) + "\n" for row in rows)))
    except UserError as error:
        return str(error)
    assert pairs == rows
    return ""


@given(st.lists(PAIRS, min_size=1, max_size=60, unique_by=(lambda pair: pair[0], lambda pair: pair[1])))
def test_different_texts_are_pairs(tmp_path_factory: pytest.TempPathFactory, rows: Pairs) -> None:
    doubt = find_doubt(tmp_path_factory.getbasetemp(), rows)
    assert doubt == "" or "if the first row is a header" in doubt


@given(questions=QUESTIONS, answers=st.integers(2, 5))
def test_several_answers_to_a_question_stand_together(
    tmp_path_factory: pytest.TempPathFactory, questions: list[str], answers: int
) -> None:
    rows = [(question, f"{question}第{number}种回答") for question in questions for number in range(answers)]
    assert find_doubt(tmp_path_factory.getbasetemp(), rows) == ""


SCRIPTS = [("甲乙丙丁戊己庚辛壬癸子", "第{}次，来了", 6), ("jklmnopqrst", "I came {} times, today", 20)]


@pytest.mark.parametrize(("letters", "sentence", "longest_name"), SCRIPTS)
def test_names_and_labels_are_short_and_come_often(
    tmp_path: Path, letters: str, sentence: str, longest_name: int
) -> None:
    def doubt(values: int, size: int, rows: int, side: int = 0, in_order: bool = False, end: str = "") -> str:
        """Of as many rows, beside whose sentences stand so many different words, in turns or in order."""
        words = [letters[i * values // rows if in_order else i % values] * size for i in range(rows)]
        beside = [sentence.format(i) + end for i in range(rows)]
        return find_doubt(tmp_path, [pair if side == 0 else pair[::-1] for pair in zip(words, beside, strict=True)])

    # Names come in turns, or six times each; so do labels of answers, six times each.
    assert "first column has 2 values, like names or labels" in doubt(2, longest_name, 3)
    assert doubt(2, longest_name + 1, 3) == doubt(3, 1, 3) == doubt(2, longest_name, 11, in_order=True) == ""
    assert "first column has 2 values, like names or labels" in doubt(2, longest_name, 12, in_order=True)
    assert "second column has 2 values, like names or labels" in doubt(2, longest_name, 12, side=1)
    assert doubt(2, longest_name + 1, 12, side=1) == doubt(2, longest_name, 11, side=1) == ""
    assert doubt(2, 1, 12, side=1, end="?") == ""
    # A single word is a label beside anything.
    assert "first column has 1 value, like names or labels" in doubt(1, 50, 3)


@pytest.mark.parametrize("cell", ["3", "2020-01-01", "a@b.org", "C:\\a", "x.png", "n1/x n2/y", "A"])
def test_nine_of_ten_cells_decide(tmp_path: Path, cell: str) -> None:
    """Cells that are no texts, but for one of ten, and letters of choices among the answers."""
    texts = [f"I came {i} times, today" for i in range(10)]
    others = ["B", *[cell] * 7] if cell == "A" else [f"{cell}{i}" for i in range(8)]
    for cells, is_doubtful in (([*others, others[0], texts[9]], True), ([*others, *texts[8:]], False)):
        assert bool(find_doubt(tmp_path, [*zip(texts, cells, strict=True)])) == is_doubtful


@pytest.mark.parametrize("unit", ["1", "1 ", " ", "a.", "@", "a@", "/", "http://", "2024年", "星期", "[", "是，"])
def test_hostile_cells_take_linear_time(tmp_path: Path, unit: str) -> None:
    long = unit * (20_000 // len(unit))
    path = written(tmp_path, "a.tsv", "".join(f"{long}{i}\t{i}{long}\n" for i in range(4)))
    assert cost(lambda: pairs_or_one_line(path)) < 20
