"""Chunks of some thousand tokenised pairs: the unit of work when a corpus is encoded.

Each chunk numbers its own tokens, so that chunks can be made on any machine, in any order, before the vocabulary is
known.
"""

import dataclasses
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from chatbot.corpus.pair_ids import Hashes, Mask, Ragged
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import Preparation, clean_pairs
from chatbot.corpus.tokenizer import Tokenizer, text_of, tokenizer

# Large enough that distinct tokens are a small part of all tokens, small enough to be tokenised within a second. A
# chunk may have up to twice as many, so as to end with a conversation.
PAIRS_PER_CHUNK = 16384


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokenised pairs. Rows 2i and 2i + 1 are the question and the answer of pair i.

    The links keep the turns of a conversation: see `chatbot.corpus.reading.pair` for the turns before a question. They
    never lead to another chunk: the first pair of a chunk is NEW.
    """

    token_text: npt.NDArray[np.uint8]  # the distinct tokens, in UTF-8, with a line break between them
    token_hashes: Hashes  # [tokens]
    ids: npt.NDArray[np.unsignedinteger[Any]]  # [all tokens of all rows] indices of distinct tokens
    lengths: npt.NDArray[np.uint32]  # [2 * pairs]
    pair_hashes: Hashes  # [pairs] of question and answer
    question_hashes: Hashes  # [pairs]
    answer_hashes: Hashes  # [pairs]
    links: npt.NDArray[np.uint8]  # [pairs] NEW, OVERLAP, NEXT or RESUMED
    usable: Mask | None = None  # [pairs] False: dropped, only its turns are in the history; None: all are True

    def __len__(self) -> int:
        return len(self.pair_hashes)

    def is_usable(self, pair: int) -> bool:
        """Return whether a pair is more than turns of the history."""
        return self.usable is None or bool(self.usable[pair])

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The distinct tokens."""
        text = self.token_text.tobytes().decode()
        return text.split("\n") if text else []

    def token_characters(self) -> Ragged:
        """Return the code points of each distinct token: [tokens] rows of uint32."""
        points = np.frombuffer(self.token_text.tobytes().decode().encode("utf-32-le"), np.uint32)
        return self._by_token(points)

    def token_bytes(self) -> Ragged:
        """Return the UTF-8 bytes of each distinct token: [tokens] rows of uint8."""
        return self._by_token(self.token_text)

    def _by_token(self, values: npt.NDArray[Any]) -> Ragged:
        """Split the characters or bytes of all tokens at the line breaks between tokens: [tokens] rows."""
        is_break = values == ord("\n")
        ends = np.append(np.flatnonzero(is_break), len(values))[: len(self.token_hashes)]
        return Ragged.from_lengths(values[~is_break], np.diff(ends, prepend=-1) - 1)

    def rows(self, kept: Mask) -> Ragged:
        """Return the alternating questions and answers of the kept pairs: [2 * kept pairs] rows of indices."""
        return Ragged.from_lengths(self.ids, self.lengths).select(np.flatnonzero(np.repeat(kept, 2)))

    def pairs(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[list[str], list[str]]]:
        """Yield (tokens of the question, tokens of the answer) for the pairs with these indices."""
        ids = self.ids.tolist()
        ends = np.cumsum(self.lengths, dtype=np.int64).tolist()
        for index in indices.tolist():
            begin = ends[2 * index - 1] if index else 0
            middle, end = ends[2 * index], ends[2 * index + 1]
            yield [self.tokens[i] for i in ids[begin:middle]], [self.tokens[i] for i in ids[middle:end]]

    def texts(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[str, str]]:
        """Yield the cleaned question and answer of the pairs with these indices."""
        return ((text_of(question), text_of(answer)) for question, answer in self.pairs(indices))

    def save(self, path: Path) -> None:
        """Write the chunk; equal chunks give equal bytes."""
        with path.open("wb") as file:
            fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            np.savez(file, **{name: array for name, array in fields.items() if array is not None})


def load_chunk(path: Path) -> Chunk:
    """Read what `Chunk.save` wrote."""
    with np.load(path) as arrays:
        return Chunk(**arrays)


def load_arrays(path: Path, *names: str) -> list[npt.NDArray[Any]]:
    """Return the fields of these names of a chunk that are not None, without reading the rest."""
    with np.load(path) as arrays:
        return [arrays[name] for name in names if name in arrays]


def tokenise_chunk(pairs: Sequence[Pair], first: int, file: str, preparation: Preparation) -> tuple[Chunk, Report]:
    """Clean the pairs, drop those that the filters reject, and tokenise the others.

    With history, dropped pairs whose turns are in the history of other pairs are tokenised, too, but are not usable.
    first: the number of the first pair in its file, from 1; the report names pairs by these numbers.
    """
    report = Report(file)
    cleaned = list(clean_pairs(pairs, first, report, preparation))
    tokenised, usable = [pair for pair, _ in cleaned], np.array([is_kept for _, is_kept in cleaned], np.bool_)
    tokenise = tokenizer(preparation.tokenizer, preparation.dictionary)  # created once in each process
    tokens, ids, lengths = _numbered([text for pair in tokenised for text in pair[:2]], tokenise)
    chunk = Chunk(
        np.frombuffer("\n".join(tokens).encode(), np.uint8),
        hashes_of(tokens),
        ids.astype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32),
        lengths.astype(np.uint32),
        hashes_of(f"{pair[0]}\n{pair[1]}" for pair in tokenised),
        hashes_of(pair[0] for pair in tokenised),
        hashes_of(pair[1] for pair in tokenised),
        np.fromiter((pair[2] for pair in tokenised), np.uint8, len(tokenised)),
        None if usable.all() else usable,
    )
    return chunk, report


def hashes_of(texts: Iterable[str]) -> Hashes:
    """Return the 64-bit hash of each text, [texts] uint64."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, texts)), np.uint64)


def _numbered(
    texts: Sequence[str], tokenise: Tokenizer
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the distinct tokens in order of appearance, the index of every token, and the lengths of the texts.

    One call tokenises all texts, joined by line breaks, which is faster than one call for each text. A line break is
    always a separate token.
    """
    tokens = tokenise("\n".join(texts))
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    line_break = numbers["\n"]
    ids = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
    is_break = ids == line_break
    ends = np.append(np.flatnonzero(is_break), len(ids))[: len(texts)]
    return list(numbers)[1:], ids[~is_break] - 1, np.diff(ends, prepend=-1) - 1


# Counts that are collected before they are summed: some hundred megabytes for a corpus of any size.
AT_ONCE = 4_000_000


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts of tokens and characters in a chunk or in a whole corpus. Hashes are distinct."""

    hashes: Hashes  # [tokens] of the tokens with more than one character
    counts: npt.NDArray[np.int64]  # [tokens]
    characters: Counter[str]  # in tokens of any length
    single: Counter[str]  # tokens of one character

    def most_frequent(self, number: int, min_count: int) -> Hashes:
        """Return the hashes of the `number` most frequent tokens, and of those as frequent as the last."""
        if number == 0:
            return self.hashes[:0]
        frequent = self.counts >= min_count
        if number < int(frequent.sum()):
            frequent = self.counts >= np.partition(self.counts, -number)[-number]
        return self.hashes[frequent]


def count_chunk(chunk: Chunk, kept: Mask) -> Counts:
    """Count the tokens in the pairs of a chunk that are kept."""
    counts = np.bincount(chunk.rows(kept).joined(), minlength=len(chunk.token_hashes)).astype(np.int64)
    characters = chunk.token_characters()
    by_point = np.bincount(characters.flat, np.repeat(counts, characters.lengths)).astype(np.int64)
    points = np.flatnonzero(by_point)
    longer = (characters.lengths > 1) & (counts > 0)
    single = (characters.lengths == 1) & (counts > 0)
    return Counts(
        chunk.token_hashes[longer],
        counts[longer],
        _by_character(points, by_point[points]),
        _by_character(characters.flat[characters.starts[single]], counts[single]),
    )


def _by_character(points: npt.NDArray[np.integer], counts: npt.NDArray[np.int64]) -> Counter[str]:
    """Return the count of each character. points: [characters] distinct code points."""
    return Counter(dict(zip(map(chr, points.tolist()), counts.tolist(), strict=True)))


def add_up(parts: Iterable[Counts]) -> Counts:
    """Return the counts of all parts together."""
    hashes, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    characters, single = Counter[str](), Counter[str]()
    collected = 0
    for part in parts:
        hashes.append(part.hashes)
        counts.append(part.counts)
        characters.update(part.characters)
        single.update(part.single)
        collected += len(part.hashes)
        if collected > AT_ONCE:
            summed = _summed(hashes, counts)
            hashes, counts, collected = [summed[0]], [summed[1]], 0
    return Counts(*_summed(hashes, counts), characters, single)


def _summed(hashes: Sequence[Hashes], counts: Sequence[npt.NDArray[np.int64]]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the distinct hashes and the summed counts of each."""
    distinct, index = np.unique(np.concatenate(hashes), return_inverse=True)
    return distinct, np.bincount(index, np.concatenate(counts), len(distinct)).astype(np.int64)


def token_texts(hashes: Hashes, chunks: Iterable[Path]) -> dict[int, str]:
    """Return the tokens with these hashes, by hash. Each hash must occur in one of the chunks."""
    texts: dict[int, str] = {}
    for path in chunks:
        if len(texts) < len(hashes):
            texts |= texts_in(load_chunk(path), hashes)
    return texts


def texts_in(chunk: Chunk, hashes: Hashes) -> Iterator[tuple[int, str]]:
    """Yield (hash, token) for the tokens of a chunk that have one of these hashes."""
    indices = np.flatnonzero(np.isin(chunk.token_hashes, hashes)).tolist()
    return ((int(chunk.token_hashes[index]), chunk.tokens[index]) for index in indices)
