"""A few thousand pairs, cleaned and cut into tokens: the unit of work of every way to encode a corpus.

A chunk numbers its tokens for itself, so that chunks can be made anywhere, in any order, and given
the vocabulary's ids later with one table look-up.
"""

import array
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from chatbot.config.corpus import PAIR_RULES, TEXT_RULES, TextSettings
from chatbot.corpus.encoding.encoded import Ragged
from chatbot.corpus.reading.report import Report
from chatbot.corpus.text.cleaning import cleaner
from chatbot.corpus.text.tokenizer import Tokenizer, text_of, tokenizer
from chatbot.errors import UserError

Pair = tuple[str, str]
Hashes = npt.NDArray[np.uint64]

# Large enough that a chunk's own vocabulary is small beside it, small enough to be cut in a second.
PAIRS = 16384


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to each pair by itself. Hashable, and small enough to be sent with every chunk."""

    rules: tuple[str, ...]
    min_characters: int
    max_characters: int | None
    blocked: tuple[str, ...]
    tokenizer: str
    dictionary: str | None


def preparation(settings: TextSettings) -> Preparation:
    """What the settings ask for. Raises UserError when the block list cannot be read or a rule's library is missing."""
    cleaner(settings.clean)
    return Preparation(
        tuple(rule for rule in (*TEXT_RULES, *PAIR_RULES) if rule in settings.clean),
        settings.min_characters,
        settings.max_characters,
        _blocked(settings.block_list) if settings.block_list else (),
        settings.tokenizer,
        settings.dictionary,
    )


def _blocked(path: str) -> tuple[str, ...]:
    try:
        words = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"{path}: block list cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: block list not in UTF-8; give a word a line") from None
    return tuple(sorted({word.strip() for word in words} - {""}))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Pairs as the chunk's own token numbers. Rows 2i and 2i + 1 are the question and the answer of pair i."""

    tokens: list[str]
    token_hashes: Hashes  # [tokens]
    ids: npt.NDArray[np.unsignedinteger[Any]]  # [all tokens of all rows], each an index of tokens
    lengths: npt.NDArray[np.uint32]  # [2 * pairs]
    pair_hashes: Hashes  # [pairs] of question and answer
    answer_hashes: Hashes  # [pairs]

    def __len__(self) -> int:
        return len(self.pair_hashes)

    def rows(self) -> Ragged:
        """[2 * pairs] questions and answers in turn."""
        lengths = self.lengths.astype(np.int64)
        return Ragged(self.ids, np.cumsum(lengths) - lengths, lengths)

    def pairs(self, numbers: npt.NDArray[np.integer]) -> Iterator[tuple[list[str], list[str]]]:
        """The tokens of the question and of the answer of the pairs with these numbers."""
        ids = self.ids.tolist()
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        for number in numbers.tolist():
            begin = ends[2 * number - 1] if number else 0
            middle, end = ends[2 * number], ends[2 * number + 1]
            yield [self.tokens[i] for i in ids[begin:middle]], [self.tokens[i] for i in ids[middle:end]]

    def texts(self, numbers: npt.NDArray[np.integer]) -> Iterator[tuple[str, str]]:
        """The cleaned text of the pairs with these numbers."""
        return ((text_of(question), text_of(answer)) for question, answer in self.pairs(numbers))

    def save(self, path: Path) -> None:
        """Write the chunk; the same chunk gives the same bytes."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # No token has white space in it, so a new line parts them.
        arrays["tokens"] = np.frombuffer("\n".join(self.tokens).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez(file, **arrays)


def load_chunk(path: Path) -> Chunk:
    """Read what `Chunk.save` wrote."""
    with np.load(path) as arrays:
        values = dict(arrays)
    text = values.pop("tokens").tobytes().decode()
    return Chunk(text.split("\n") if text else [], **values)


def load_hashes(path: Path, which: str) -> Hashes:
    """Only the "pair_hashes" or "answer_hashes" of a chunk."""
    with np.load(path) as arrays:
        hashes: Hashes = arrays[which]
    return hashes


class _Numbers(dict[str, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def cut_chunk(pairs: Sequence[Pair], first: int, file: str, how: Preparation) -> tuple[Chunk, Report]:
    """Clean the pairs, leave out those that the settings do not want, and cut the rest into tokens.

    first: the number of the first pair in its file, from 1, for the places of the report.
    """
    report = Report(file)
    changed: Counter[str] = Counter()
    clean = cleaner(how.rules, changed)
    unwanted = _unwanted(how)
    cut, numbers = _tokenizer(how), _Numbers()
    number_of, hash_of = numbers.__getitem__, xxhash.xxh3_64_intdigest
    ids, ends = array.array("I"), array.array("Q")
    pair_hashes, answer_hashes = array.array("Q"), array.array("Q")
    for number, (question, answer) in enumerate(pairs, start=first):
        question, answer = clean(question), clean(answer)
        reason = unwanted(question, answer)
        if reason:
            report.drop(reason, f"{file}, pair {number:,}")
            continue
        for text in (question, answer):
            ids.extend(map(number_of, cut(text)))
            ends.append(len(ids))
        pair_hashes.append(hash_of(f"{question}\n{answer}".encode()))
        answer_hashes.append(hash_of(answer.encode()))
    report.changed = dict(changed)
    chunk = Chunk(
        list(numbers),
        np.array([hash_of(token.encode()) for token in numbers], np.uint64),
        np.array(ids, np.uint16 if len(numbers) <= 1 << 16 else np.uint32),
        np.diff(np.array(ends, np.int64), prepend=0).astype(np.uint32),
        np.array(pair_hashes, np.uint64),
        np.array(answer_hashes, np.uint64),
    )
    return chunk, report


@functools.cache
def _tokenizer(how: Preparation) -> Tokenizer:
    """Created once in each process: a user dictionary takes a second to load."""
    return tokenizer(how.tokenizer, how.dictionary)


def _unwanted(how: Preparation) -> Callable[[str, str], str]:
    """The function from a cleaned pair to the reason to leave it out, "" when there is none."""
    least, most = how.min_characters, how.max_characters
    clean = cleaner(how.rules)
    words = {*how.blocked, *map(clean, how.blocked)} - {""}  # as they are written, and as they are after cleaning
    blocked = re.compile("|".join(map(re.escape, sorted(words)))) if words else None
    equal = "equal" in how.rules

    def reason(question: str, answer: str) -> str:
        if not question or not answer:
            return "pairs with an empty side"
        if least > 1 and min(_visible(question), _visible(answer)) < least:
            return f"pairs with fewer than {least:,} characters on a side"
        if most is not None and max(_visible(question), _visible(answer)) > most:
            return f"pairs with more than {most:,} characters on a side"
        if equal and question == answer:
            return "pairs whose answer is the question"
        if blocked is not None and (blocked.search(question) or blocked.search(answer)):
            return "pairs with a blocked word"
        return ""

    return reason


def _visible(text: str) -> int:
    return len(text) - text.count(" ")
