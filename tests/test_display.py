"""The width of text in a terminal, tables, and the length of messages."""

from hypothesis import given
from hypothesis import strategies as st

from chatbot.display import LINE, aligned, counted, cut, listing, numbered, padded, width


def test_wide_and_combining_characters() -> None:
    assert [width(text) for text in ("你a", "é", "e\u0301", "。")] == [3, 1, 1, 2]
    assert padded("你", 4) == "你  "
    assert [cut("你好a吗", columns) for columns in (7, 6, 5, 2, 0)] == ["你好a吗", "你...", "你...", "..", ""]


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(n, "step") for n in (0, 1, 2000, 1.0, 0.5)] == [
        "0 steps",
        "1 step",
        "2,000 steps",
        "1 step",
        "0.5 steps",
    ]


@given(st.text(min_size=1, max_size=120), st.lists(st.text(max_size=60), min_size=1, max_size=30))
def test_a_list_of_names_ends_with_the_line_but_has_two(message: str, names: list[str]) -> None:
    found = numbered(names)
    line = listing(message, found)
    assert line.startswith(message + ", ".join(found[:2]))
    assert len(line) <= max(LINE, len(message + ", ".join(found[:2]) + ", ..."))
    assert line.endswith(", ...") or line == message + ", ".join(found)


def test_columns_of_a_table_are_aligned() -> None:
    rows = [("part", "shape", "ms", "sum"), ("a", "123456789", "5", "")]
    assert aligned(rows, [True, True, False, False], "  ") == ["  part  shape      ms  sum", "  a     123456789   5"]
