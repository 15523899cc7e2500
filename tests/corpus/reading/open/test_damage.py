"""Text that was saved in a wrong encoding is told from text that merely looks strange."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading.open.charset import CHAT, damage_of
from tests.corpus.reading.open.test_charset import COUPLETS, SIMPLIFIED, TRADITIONAL, dialogue

CHARACTERS = sorted({*CHAT} - {*"，。？！"})
LINES = st.lists(st.text(CHARACTERS, min_size=4, max_size=12), min_size=2, max_size=8).map("\n".join)


def damage(text: str) -> str:
    """What the reader says about a file with this text."""
    return damage_of(text, text.encode())


@given(LINES)
def test_any_chinese_saved_from_latin_1_is_recognised(text: str) -> None:
    assert "opened as Latin-1" in damage(text.encode().decode("latin-1"))
    assert damage(text) == ""


@pytest.mark.parametrize("sentences", [SIMPLIFIED, COUPLETS, TRADITIONAL])
def test_chinese_saved_from_gbk_is_recognised(sentences: list[str]) -> None:
    text = dialogue(sentences, 30)
    assert "opened as GB18030" in damage(text.encode().decode("gb18030", "replace"))
    assert "characters are lost" in damage(text.encode("gbk").decode("utf-8", "replace"))
    assert damage(text) == ""


@pytest.mark.parametrize(("bad", "good"), [*itertools.product(range(9), range(6))])
def test_a_text_is_damaged_if_enough_of_its_lines_beyond_ascii_are(bad: int, good: int) -> None:
    """Two lines in ASCII do not count for Latin-1; they do for characters that are lost."""
    ascii_lines = ["ok", "fine"]
    latin = [*["晚安".encode().decode("latin-1")] * bad, *["晚安"] * good, *ascii_lines]
    assert ("opened as Latin-1" in damage("\n".join(latin))) == (5 * bad >= 4 * (bad + good) > 0)
    lost = [*["晚\ufffd"] * bad, *["晚安"] * good, *ascii_lines]
    assert ("characters are lost" in damage("\n".join(lost))) == (2 * bad >= bad + good + 2)


@pytest.mark.parametrize(("twos", "rare"), [*itertools.product(range(7), range(9))])
def test_gbk_is_told_by_eight_characters_most_of_them_frequent(twos: int, rare: int) -> None:
    """Two characters of three bytes are three of two bytes."""
    saved = ("人人" * twos + "Я" * rare).encode().decode("gb18030")
    expected = 2 * twos + rare >= 8 and 5 * 2 * twos >= 3 * (2 * twos + rare)
    assert ("opened as GB18030" in damage(saved)) == expected


@pytest.mark.parametrize(
    "text", ["", "hello\thi\n", "naïve\tcafé\n", "Ã\n", "你好 \ufffd\n在吗\n吃了吗\n", "联通\n", "ΑΒΓ\n"]
)
def test_other_texts_are_not_damaged(text: str) -> None:
    assert damage(text) == ""
