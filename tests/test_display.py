"""The width of text in a terminal, tables, and the length of messages."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.display import (
    LINE,
    align_columns,
    cut,
    listing,
    number_names,
    one_line,
    padded,
    pluralize,
    replace_surrogates,
    visible,
    width,
)


def test_wide_and_combining_characters() -> None:
    assert [width(text) for text in ("你a", "é", "e\u0301", "。")] == [3, 1, 1, 2]
    assert padded("你", 4) == "你  "
    assert [cut("你好a吗", columns) for columns in (7, 6, 5, 2, 0)] == ["你好a吗", "你...", "你...", "..", ""]


def test_text_of_others_is_one_line_that_moves_no_cursor() -> None:
    assert one_line("a\r\nb\nc\x1bd") == "a↵b↵c?d"
    assert [one_line("abc", longest) for longest in (3, 2)] == ["abc", "ab…"]
    assert visible("a\tb\x1b\u202ec\u200d") == "a b\ufffd\ufffdc\u200d"
    assert replace_surrogates("a\ud83d你") == "a?你"
    assert number_names(["甲" * 30, "b"]) == [f"1 '{'甲' * 20}…'", "2 'b'"]


def test_one_is_counted_in_the_singular() -> None:
    assert [pluralize(n, "step") for n in (0, 1, 2000, 1.0, 0.5)] == [
        "0 steps",
        "1 step",
        "2,000 steps",
        "1 step",
        "0.5 steps",
    ]


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=120), st.lists(st.text(max_size=40), min_size=1, max_size=15))
def test_a_list_of_names_ends_with_the_line_but_has_two(message: str, names: list[str]) -> None:
    found = number_names(names)
    line = listing(message, found)
    assert line.startswith(message + ", ".join(found[:2]))
    assert len(line) <= max(LINE, len(message + ", ".join(found[:2]) + ", ..."))
    assert line.endswith(", ...") or line == message + ", ".join(found)


def test_columns_of_a_table_are_aligned() -> None:
    rows = [("part", "shape", "ms", "sum"), ("a", "123456789", "5", "")]
    assert align_columns(rows, [True, True, False, False], "  ") == [
        "  part  shape      ms  sum",
        "  a     123456789   5",
    ]
