"""Tokens to ids and back, without loss; word vectors of tokens."""

import bz2
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import MIN_VOCABULARY
from chatbot.corpus import vocabulary as vocabulary_module
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.tokenizer import SPACE, tokenizer
from chatbot.corpus.vocabulary import (
    BYTES,
    EOS,
    MIN_SIZE,
    PAD,
    SPECIALS,
    UNK,
    Vocabulary,
    build_vocabulary,
    load_vocabulary,
)
from chatbot.errors import UserError
from chatbot.pretrained.word_vectors import read_word_vectors

COUNTS = Counter({"你好": 5, "我": 3, "他": 1, "好": 1, "吗": 1, "a": 1, "b": 1})


def entries(vocabulary: Vocabulary) -> list[str]:
    """The characters and words of a vocabulary, in the order of ids."""
    return vocabulary.tokens[len(SPECIALS) : vocabulary.first_byte]


@given(st.text("你我他好吗a b", max_size=30) | st.text(max_size=30), st.sampled_from([MIN_SIZE, MIN_SIZE + 2, 999]))
def test_ids_restore_any_text(text: str, size: int) -> None:
    vocabulary = build_vocabulary(COUNTS, size)
    text = tidy(text)
    ids = vocabulary.ids(tokenizer()(text))
    assert vocabulary.text(ids) == text
    assert UNK not in ids


@given(st.lists(st.integers(0, 999), max_size=20))
def test_any_ids_have_a_text(ids: list[int]) -> None:
    """Also those that are not UTF-8, against a twin that decodes the whole text at once."""
    vocabulary = build_vocabulary(COUNTS, 999)
    ids = [i % len(vocabulary) for i in ids]
    shown = [i for i in ids[: ids.index(EOS) if EOS in ids else None] if i >= len(SPECIALS)]
    texts = [
        vocabulary.tokens[i].encode() if i < vocabulary.first_byte else bytes([i - vocabulary.first_byte])
        for i in shown
    ]
    assert vocabulary.text(ids) == b"".join(texts).decode(errors="replace").replace(SPACE, " ").strip()


def test_unknown_word_is_spelled_in_characters_and_unknown_character_in_bytes() -> None:
    vocabulary = Vocabulary(["你好", "你", "好", "们", *BYTES])
    ids = vocabulary.ids(["你好", "你们", "您", "<eos>"])
    assert [vocabulary.tokens[i] for i in ids[:6]] == ["你好", "你", "们", "<0xE6>", "<0x82>", "<0xA8>"]
    assert vocabulary.tokens_of(ids) == ["你好", "你", "们", "您", *"<eos>"]
    assert vocabulary.text([5, UNK, 6, EOS, 7, PAD]) == "你好你"
    assert vocabulary.tokens_of([ids[3], 5]) == ["\ufffd", "你好"]
    # Words of a text that look like special tokens are spelled, too.
    vocabulary = build_vocabulary(Counter({"<unk>": 9, "<0x0A>": 9, "<num>": 9}), 999)
    assert [entry for entry in entries(vocabulary) if len(entry) > 1] == ["<num>"]
    assert vocabulary.text(vocabulary.ids(["<unk>", "<num>", "<0x0A>"])) == "<unk><num><0x0A>"


def test_vocabulary_has_the_most_frequent_characters_then_words() -> None:
    """And no token that occurs once."""
    counts = Counter({"天安门": 3, "北京": 9, "一次": 1, "我": 2, "上海": 5})
    assert set(entries(build_vocabulary(counts, MIN_SIZE + 8 + 2))) == set("天安门北京我上海") | {
        SPACE,
        "北京",
        "上海",
    }
    assert entries(build_vocabulary(counts, 999))[0] == "京"  # by count, then by text
    assert entries(build_vocabulary(counts, MIN_SIZE + 3)) == ["京", "北", "上", SPACE]
    assert entries(build_vocabulary(counts, MIN_SIZE)) == [SPACE]
    assert MIN_SIZE == MIN_VOCABULARY


def test_vocabulary_is_read_from_its_content(tmp_path: Path) -> None:
    vocabulary = build_vocabulary(Counter({"你好": 2, "\u2028a": 2, "#": 4}), 999)
    (tmp_path / "vocabulary.txt").write_bytes(vocabulary.content())
    loaded = load_vocabulary(tmp_path / "vocabulary.txt")
    assert loaded.tokens == vocabulary.tokens


def test_damaged_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = tmp_path / "vocabulary.txt", Vocabulary(BYTES).content()
    for content in (b"a\na\n", b"a\n\nb\n", b"\xff\n", b"<pad>\n", b"<0x00>\n"):
        for damaged in (content + whole, content, whole[:-1], whole + b"a\n", b""):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="vocabulary damaged"):
                load_vocabulary(path)
    path.unlink()
    with pytest.raises(UserError, match=r"vocabulary cannot be read \(No such file or directory\); restore it from"):
        load_vocabulary(path)
    monkeypatch.setattr(vocabulary_module, "MAX_BYTES", 3000)
    path.write_bytes(b"".join(b"%d\n" % i for i in range(1000)) + whole)
    with pytest.raises(UserError, match=r"vocabulary damaged \(more than 3,000 bytes\)"):
        load_vocabulary(path)


VOCABULARY = Vocabulary(["你", "好", "hello", "▁hello", "▁world", *BYTES])
VECTORS = {"好": [1.0, -2.5], "unknown": [9.0, 9.0], "hello": [3.0, 0.5], "好的": [7.0, 7.0]}
EXPECTED = {6: [1.0, -2.5], 7: [3.0, 0.5], 8: [3.0, 0.5]}  # "hello" with and without a space


LINES = "".join(f"{word} {a} {b}\n" for word, (a, b) in VECTORS.items())
FORMATS = {
    "word2vec": f"4 2\n{LINES}".replace("\n", " \n").encode(),  # each line ends with a space
    "GloVe": LINES.encode(),
    "a word with spaces": f"{LINES}hello world 5 5\n".encode(),
    "a word twice": f"{LINES}hello 5 5\n".encode(),
    "compressed": bz2.compress(LINES.encode()),
}


@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS)
def test_vectors_of_known_words_are_read(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    ids, rows = read_word_vectors(path, VOCABULARY, 2)
    assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == EXPECTED
    assert rows.dtype == np.float32
    assert "vectors for 3 of the 5 tokens in the vocabulary" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"4 300\n" + LINES.encode(), "have 300 numbers, but --embedding-size is 2; use --embedding-size 300"),
        ("你 1 2 3\n".encode(), "have 3 numbers, but --embedding-size is 2"),
        ("你 1 2\n好 3\n".encode(), "line 2: expected a word and 2 numbers"),
        ("2 2\n你 1 2\n好 3 x\n".encode(), "line 3: expected a word and 2 numbers"),
        ("你 1 nan\n".encode(), "line 1: expected a word and 2 numbers"),
        (b"1 2\n" + "你 ".encode() + struct.pack("<2f", 1, 2), "line 2: expected a word and 2 numbers"),
        (b"other 1 2\n", "none of the 5 tokens"),
        (b"\n\n", "none of the 5 tokens"),
        (b"", "none of the 5 tokens"),
        (None, "cannot be read"),
    ],
)
def test_broken_file_is_reported(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_word_vectors(path, VOCABULARY, 2)
    assert message in str(error.value)
    assert str(path) in str(error.value)
