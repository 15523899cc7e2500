"""Text that was saved in a wrong encoding is told from text that merely looks strange."""

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


@pytest.mark.parametrize(
    "text", ["", "hello\thi\n", "naïve\tcafé\n", "Ã\n", "你好 \ufffd\n在吗\n吃了吗\n", "联通\n", "ΑΒΓ\n"]
)
def test_other_texts_are_not_damaged(text: str) -> None:
    assert damage(text) == ""
