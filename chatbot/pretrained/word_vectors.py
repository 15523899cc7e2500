"""Pretrained word vectors: text files of word2vec, GloVe and fastText (.vec).

Of a file of millions of words, only the vectors of tokens in the vocabulary are kept. gensim's KeyedVectors would hold
all of them in memory, and does not name a broken line.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.reading.containers import open_files
from chatbot.corpus.reading.report import Report
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import SPECIALS, Vocabulary
from chatbot.display import counted
from chatbot.errors import UserError

Row = npt.NDArray[np.float32]  # [size]


class WordVectors(NamedTuple):
    """The vectors of tokens in the vocabulary."""

    ids: npt.NDArray[np.int64]  # [found]
    rows: npt.NDArray[np.float32]  # [found, size]


def check_readable(path: Path) -> None:
    """Raise UserError for a file that cannot be read."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from None


def read_word_vectors(path: Path, vocabulary: Vocabulary, size: int) -> WordVectors:
    """Read the vectors of the tokens in the vocabulary, and print how many were found.

    The file may be compressed, or in an archive. A word's vector is that of its token with and without a space in
    front. The first of several vectors of a word counts. size: --embedding-size.

    Raises UserError for a file that cannot be read, vectors of another width, a broken line, or if no token is found.
    """
    ids_of: dict[bytes, list[int]] = {}
    for i in range(len(SPECIALS), vocabulary.first_byte):
        ids_of.setdefault(vocabulary.tokens[i].removeprefix(SPACE).encode(), []).append(i)
    rows: dict[int, Row] = {}
    try:
        for file in open_files(path, str(path), Report()):
            for number, line in enumerate(file.stream, 1):
                if number == 1 and _is_header(line, file.place, size):
                    continue
                word, _, numbers = line.partition(b" ")
                if word in ids_of and numbers.rstrip().count(b" ") < size:  # else the word contains a space
                    row = _vector(numbers, f"{file.place}, line {number:,}", size)
                    rows |= dict.fromkeys(ids_of.pop(word), row)
    except OSError as error:
        raise _unreadable(path, error) from None
    words = vocabulary.first_byte - len(SPECIALS)
    if not rows:
        raise UserError(
            f"{path}: has none of the {counted(words, 'token')} in the vocabulary; check its language and format"
        )
    print(
        f"{path}: vectors of {len(rows):,} of the {counted(words, 'token')} in the vocabulary; "
        "the others start at random."
    )
    return WordVectors(np.array(list(rows), np.int64), np.stack(list(rows.values())))


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"--word-vectors {path}: cannot be read ({error.strerror}); check the path")


def _is_header(line: bytes, place: str, size: int) -> bool:
    """Return whether the first line has the numbers of words and of columns. Raises UserError for another width."""
    fields = line.split()
    is_header = len(fields) == 2 and all(field.isdigit() for field in fields)
    width = int(fields[1]) if is_header else len(fields) - 1
    if fields and width != size:
        raise UserError(
            f"{place}: its vectors have {counted(width, 'number')}, and --embedding-size is {size:,}; "
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
            f"{place}: not a word and {counted(size, 'number')} as text; repair the line, or convert a binary file to "
            "text"
        )
    return row
