"""Word vectors in each format; a broken file is reported with its line or vector."""

import bz2
import struct
from pathlib import Path

import numpy as np
import pytest

from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.corpus.word_vectors import read_word_vectors
from chatbot.errors import UserError

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
    assert "vectors of 3 of the 5 tokens in the vocabulary" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"4 300\n" + LINES.encode(), "have 300 numbers, and --embedding-size is 2; use --embedding-size 300"),
        ("你 1 2 3\n".encode(), "have 3 numbers, and --embedding-size is 2"),
        ("你 1 2\n好 3\n".encode(), "line 2: not a word and 2 numbers"),
        ("2 2\n你 1 2\n好 3 x\n".encode(), "line 3: not a word and 2 numbers"),
        ("你 1 nan\n".encode(), "line 1: not a word and 2 numbers"),
        (b"1 2\n" + "你 ".encode() + struct.pack("<2f", 1, 2), "line 2: not a word and 2 numbers"),
        (b"other 1 2\n", "has none of the 5 tokens"),
        (b"\n\n", "has none of the 5 tokens"),
        (b"", "has none of the 5 tokens"),
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
