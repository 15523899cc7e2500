"""Reads pretrained word vectors from the text files of word2vec, GloVe and fastText (.vec).

Only the vectors of tokens in the vocabulary are kept in memory. gensim is not used, because it would load all vectors,
and its errors do not name the damaged line.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.reading.containers import open_files
from chatbot.corpus.reading.report import Report
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import SPECIALS, Vocabulary
from chatbot.display import pluralize
from chatbot.errors import UserError

Row = npt.NDArray[np.float32]  # [size]


class WordVectors(NamedTuple):
    """The vectors that were found for tokens of the vocabulary."""

    ids: npt.NDArray[np.int64]  # ids of the tokens, [found]
    rows: npt.NDArray[np.float32]  # their vectors, [found, size]


def check_readable(path: Path) -> None:
    """Raise UserError if a file cannot be read."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from None


def read_word_vectors(path: Path, vocabulary: Vocabulary, size: int) -> WordVectors:
    """Read the vectors of the tokens in a vocabulary, and print how many were found.

    The vector of a word applies to its tokens with and without a leading space. If a word occurs repeatedly, its first
    vector is used.

    Args:
        path: The file, which can be compressed or in an archive.
        vocabulary: The vocabulary.
        size: The expected size of the vectors (--embedding-size).

    Raises:
        UserError: The file cannot be read, a line is damaged, the vectors have another size, or no token was found.
    """
    token_ids: dict[bytes, list[int]] = {}
    for i in range(len(SPECIALS), vocabulary.first_byte):
        token_ids.setdefault(vocabulary.tokens[i].removeprefix(SPACE).encode(), []).append(i)
    rows: dict[int, Row] = {}
    try:
        for file in open_files(path, str(path), Report()):
            for number, line in enumerate(file.stream, 1):
                if number == 1 and _is_header(line, file.place, size):
                    continue
                word, _, numbers = line.partition(b" ")
                if word in token_ids and numbers.rstrip().count(b" ") < size:  # Words with spaces are skipped.
                    row = _vector(numbers, f"{file.place}, line {number:,}", size)
                    rows |= dict.fromkeys(token_ids.pop(word), row)
    except OSError as error:
        raise _unreadable(path, error) from None
    words = vocabulary.first_byte - len(SPECIALS)
    if not rows:
        raise UserError(
            f"{path}: none of the {pluralize(words, 'token')} of the vocabulary was found; "
            "check its language and format"
        )
    print(
        f"{path}: vectors for {len(rows):,} of the {pluralize(words, 'token')} in the vocabulary; "
        "the others are drawn at random."
    )
    return WordVectors(np.array(list(rows), np.int64), np.stack(list(rows.values())))


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"--word-vectors {path}: cannot be read ({error.strerror}); check the path")


def _is_header(line: bytes, place: str, size: int) -> bool:
    """Return whether the first line is a header with the numbers of words and columns."""
    fields = line.split()
    is_header = len(fields) == 2 and all(field.isdigit() for field in fields)
    width = int(fields[1]) if is_header else len(fields) - 1
    if fields and width != size:
        raise UserError(
            f"{place}: its vectors have {pluralize(width, 'number')}, but --embedding-size is {size:,}; "
            f"use --embedding-size {width} or another file"
        )
    return is_header


def _vector(numbers: bytes, place: str, size: int) -> Row:
    try:
        row = np.array(numbers.split(), np.float32)
    except ValueError:
        row = np.zeros(0, np.float32)
    if len(row) != size or not np.isfinite(row).all():
        raise UserError(
            f"{place}: expected a word and {pluralize(size, 'number')} as text; repair the line, or convert a binary "
            "file to text"
        )
    return row
