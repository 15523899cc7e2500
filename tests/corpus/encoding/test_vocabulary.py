"""Tokens to ids and back, without loss."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.encoding.vocabulary import EOS, PAD, SPECIALS, UNK, Vocabulary, build_vocabulary, load_vocabulary
from chatbot.corpus.text.cleaning import tidy
from chatbot.corpus.text.tokenizer import SPACE, tokenizer
from chatbot.errors import UserError


def vocabulary_of(counts: Counter[str], size: int) -> Vocabulary:
    """A vocabulary from counted tokens."""
    characters = Counter[str]()
    for token, count in counts.items():
        for character in token:
            characters[character] += count
    return build_vocabulary(characters, counts, size)


@given(st.text("你我他好吗a b", max_size=30))
def test_ids_restore_text_with_character_fallback(text: str) -> None:
    vocabulary = vocabulary_of(Counter({"你好": 5, "我": 3, "他": 1, "好": 1, "吗": 1, "a": 1, "b": 1}), 99)
    text = tidy(text)
    assert vocabulary.text(vocabulary.ids(tokenizer()(text))) == text


def test_unknown_word_is_spelled_and_unseen_character_is_unk() -> None:
    vocabulary = Vocabulary(["你好", "你", "好", "们"])
    assert [vocabulary.tokens[i] for i in vocabulary.ids(["你好", "你们", "您"])] == [
        "你好",
        "你",
        "们",
        "<unk>",
    ]
    assert vocabulary.text([5, UNK, 6, EOS, 7, PAD]) == "你好你"


def test_vocabulary_has_all_characters_and_most_frequent_words() -> None:
    counts = Counter({"天安门": 3, "北京": 9, "一次": 1, "我": 2, "上海": 5})
    vocabulary = vocabulary_of(counts, size=len(SPECIALS) + 1 + 10 + 2)
    tokens = set(vocabulary.tokens[len(SPECIALS) :])
    assert tokens == set("天安门北京一次我上海") | {SPACE, "北京", "上海"}
    assert vocabulary.tokens[len(SPECIALS)] == "京"  # by count, then by text
    assert len(vocabulary_of(counts, size=5)) == len(SPECIALS) + 1 + 10


def test_word_that_occurs_once_is_spelled() -> None:
    assert "一次" not in vocabulary_of(Counter({"一次": 1, "两次": 2}), 99).tokens


def test_vocabulary_survives_save_and_load(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(Counter({"你好": 2, "\u2028a": 1, "#": 4}), 99)
    vocabulary.save(tmp_path / "vocabulary.txt")
    assert load_vocabulary(tmp_path / "vocabulary.txt").tokens == vocabulary.tokens


@pytest.mark.parametrize("content", [b"", b"a\nb", b"a\na\n", b"a\n\nb\n", b"\xff\n", b"<pad>\n"])
def test_damaged_vocabulary_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="vocabulary damaged"):
        load_vocabulary(path)
