"""Pretrained word vectors: files of word2vec, text or binary, of GloVe and of fastText (.vec).

Of a file of millions of words, only the vectors of tokens in the vocabulary are kept. gensim's KeyedVectors would hold
all of them in memory, and does not name a broken line.
"""

import functools
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.open.text_file import OpenFile, open_files
from chatbot.corpus.reading.report import Report
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import SPECIALS, Vocabulary
from chatbot.corpus.workers import progress_bar
from chatbot.errors import UserError

BLOCK = 2**20  # bytes of a binary file that are read at a time
LONGEST_WORD = 10_000  # bytes
LINES_OF_UPDATE = 10_000  # between two updates of the progress bar

Row = npt.NDArray[np.float32]  # [size]
# A word, and a function that returns its vector.
Entry = tuple[bytes, Callable[[], Row]]


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

    The format is detected; the file may be compressed by gzip, bzip2 or xz. A word's vector is that of its token with
    and without a space in front. The first of several vectors of a word counts. size: --embedding-size.

    Raises UserError for a file that cannot be read, vectors of another width, a broken line, or if no token is found.
    """
    ids_of: dict[bytes, list[int]] = {}
    for i in range(len(SPECIALS), vocabulary.first_byte):
        ids_of.setdefault(vocabulary.tokens[i].removeprefix(SPACE).encode(), []).append(i)
    rows: dict[int, Row] = {}
    report = Report()
    try:
        with progress_bar(f"Reading {path.name}", path.stat().st_size, "B") as bar:
            for file in open_files(path, str(path), report):
                for number, (word, vector) in enumerate(_entries(file, size)):
                    if number % LINES_OF_UPDATE == 0:
                        bar.update(report.read_bytes - bar.n)
                    for i in ids_of.pop(word, ()):
                        rows[i] = vector()
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


def _entries(file: OpenFile, size: int) -> Iterator[Entry]:
    if file.member:
        raise UserError(
            f"{file.place}: --word-vectors takes a file, not an archive; unpack it and name one of its files"
        )
    head = file.stream.peek()
    first, _, after = head.partition(b"\n")
    fields = first.split()
    if not fields:
        raise UserError(f"{file.place}: its first line is empty; use another file")
    has_header = len(fields) == 2 and all(field.isdigit() for field in fields)
    width = int(fields[1]) if has_header else len(fields) - 1
    if width != size:
        raise UserError(
            f"{file.place}: its vectors have {counted(width, 'number')}, and --embedding-size is {size:,}; "
            f"use --embedding-size {width} or another file"
        )
    if not has_header:
        return _text_entries(file, size, 1)
    file.stream.readline()
    if _is_vector(after.partition(b"\n")[0], size):
        return _text_entries(file, size, 2)
    return _binary_entries(file.stream, file.place, int(fields[0]), size)


def _is_vector(line: bytes, size: int) -> bool:
    """Return whether a line is a word and its numbers in text form."""
    try:
        return len([float(field) for field in line.split(b" ", 1)[-1].split()]) == size
    except ValueError:
        return False


def _text_entries(file: OpenFile, size: int, first_line: int) -> Iterator[Entry]:
    """Yield lines of a word and its numbers, separated by spaces. first_line: the number of the next line."""
    for number, line in enumerate(file.stream, first_line):
        numbers = line.rstrip().count(b" ")
        if numbers < size:
            raise _broken_line(file.place, number, size)
        if numbers == size:  # else the word contains a space, as no token does
            yield line.partition(b" ")[0], functools.partial(_vector_of_line, line, file.place, number, size)


def _vector_of_line(line: bytes, place: str, number: int, size: int) -> Row:
    try:
        row = np.array(line.split(b" ", 1)[1].split(), np.float32)
    except ValueError:
        raise _broken_line(place, number, size) from None
    if not np.isfinite(row).all():
        raise _broken_line(place, number, size)
    return row


def _broken_line(place: str, number: int, size: int) -> UserError:
    return UserError(f"{place}, line {number:,}: not a word and {counted(size, 'number')}; repair or remove the line")


def _binary_entries(stream: io.BufferedReader, place: str, count: int, size: int) -> Iterator[Entry]:
    """Yield `count` vectors of little-endian float32, each after its word and a space."""
    buffer, start = b"", 0
    for number in range(1, count + 1):
        while (end := buffer.find(b" ", start)) < 0 or len(buffer) <= end + 4 * size:
            if end < 0 and len(buffer) - start > LONGEST_WORD:
                raise UserError(f"{place}, vector {number:,}: no word before it; download the file again")
            block = stream.read(BLOCK)
            if not block:
                raise UserError(
                    f"{place}: ends after {number - 1:,} of {counted(count, 'vector')}; download the file again"
                )
            buffer, start = buffer[start:] + block, 0
        row = np.frombuffer(buffer, "<f4", size, end + 1)
        yield buffer[start:end].lstrip(b"\n"), functools.partial(_finite, row, place, number)
        start = end + 1 + 4 * size


def _finite(row: Row, place: str, number: int) -> Row:
    if not np.isfinite(row).all():
        raise UserError(f"{place}, vector {number:,}: not {len(row):,} finite numbers; download the file again")
    return row.copy()  # without the buffer
