"""Heads: patterns of the user, and the texts of applications; what they read is in `wild`."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading import heads
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import pairs_of
from tests.corpus.reading.test_wild import WILD


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


@pytest.mark.parametrize("head", [*heads.USUAL, "{name} {time}", "{name} ({time}):{text}"])
def test_spaces_take_no_time(head: str) -> None:
    pattern = heads.compiled(head)
    start = time.process_time()
    for _ in range(100):
        pattern.fullmatch("# a" + " " * 197)
    assert time.process_time() - start < 0.05
