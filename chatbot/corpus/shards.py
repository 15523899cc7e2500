"""Encoded pairs on disk: shards of raw arrays, mapped into memory one at a time.

    00000.tokens     [total] uint16 or uint32: for each pair the ids of the source, then of the answer
    00000.lengths    [pairs, 3] uint32: tokens of the source, tokens of the answer, characters of the answer

The source is the question, with history after the turns before it.

The shard of a pair depends on the hash of its text. This shuffles the corpus as it is written, so that an epoch can
read it shard by shard. Within a shard, pairs are in the order of the files.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.cache import note_use
from chatbot.corpus.chunks import Chunk
from chatbot.corpus.history import questions_alone, rows_with_history, turns_that_fit
from chatbot.corpus.pair_ids import EncodedPairs, Hashes, Lengths, Mask, Ragged, lengths_of
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import MARKS, SPECIALS, UNK, PieceVocabulary, Vocabulary, code_points
from chatbot.errors import UserError

# The mean number of pairs in a shard, which takes about ten megabytes.
PAIRS_PER_SHARD = 1 << 17
# Bytes that are collected in memory before they are written to their shards.
BUFFER = 32_000_000
CHARACTERS = 2  # the column of lengths after those of the source and of the answer
# Questions that the chat offers to somebody who does not know what to ask, and the tokens of the longest.
OFFERED = 3
OFFERED_TOKENS = 8
PAIR_BYTES = 3 * np.dtype(np.uint32).itemsize  # of a row of lengths


class ShardArrays(NamedTuple):
    """Encoded pairs in the layout of a shard: a whole shard, or the part of a shard from one chunk."""

    tokens: npt.NDArray[Any]  # [total] uint16 or uint32
    lengths: npt.NDArray[np.uint32]  # [pairs, 3]


def shards_needed(pairs: int) -> int:
    """Return the number of shards for this many pairs."""
    return max(1, -(-pairs // PAIRS_PER_SHARD))


def dtype_for(vocabulary: Vocabulary) -> np.dtype[Any]:
    """Return the smallest type that holds every id."""
    return np.dtype(np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32)


def by_shard(pairs: ShardArrays, pair_hashes: Hashes, shards: int) -> Iterator[tuple[int, ShardArrays]]:
    """Yield (shard, its pairs in order) for each shard that has some of the pairs."""
    shard_of_pair = pair_hashes % np.uint64(shards)
    rows = Ragged.from_lengths(pairs.tokens, pairs.lengths[:, :CHARACTERS].sum(axis=1, dtype=np.int64))
    for shard in np.unique(shard_of_pair).tolist():
        indices = np.flatnonzero(shard_of_pair == shard)
        yield shard, ShardArrays(rows.select(indices).joined(), pairs.lengths[indices])


def write_shards(folder: Path, shards: int, parts: Iterable[tuple[int, ShardArrays]]) -> None:
    """Append each part to its shard, in the order given, in bounded memory. A shard without pairs gets empty files."""
    buffers: dict[str, list[bytes]] = {f"{n:05}.{name}": [] for n in range(shards) for name in ShardArrays._fields}
    size = 0
    for shard, arrays in parts:
        for name, array in arrays._asdict().items():
            buffers.setdefault(f"{shard:05}.{name}", []).append(array.tobytes())
            size += array.nbytes
        if size > BUFFER:
            _append(folder, buffers)
            buffers = {}
            size = 0
    _append(folder, buffers)


def _append(folder: Path, buffers: dict[str, list[bytes]]) -> None:
    for name, parts in buffers.items():
        with (folder / name).open("ab") as file:
            file.writelines(parts)


@dataclasses.dataclass(frozen=True)
class Shards(Sequence[EncodedPairs]):
    """The shards of a folder, each mapped into memory when it is indexed."""

    folder: Path
    number: int  # number of shards
    dtype: str
    all_lengths: Lengths  # of all pairs in the files
    max_length: int | None = None  # longer pairs are skipped
    both_directions: bool = False  # add each pair from answer to question, which is without history
    first_mark: int | None = None  # the id of the first of MARKS; None: the sources have no history
    source_length: int | None = None  # with history: older turns that do not fit in as many tokens are left out

    def __len__(self) -> int:
        return self.number

    @functools.cached_property
    def lengths(self) -> Lengths:
        """The lengths of the pairs, equal to `lengths_of` all shards. With history, all shards are read for them."""
        if self.first_mark is not None:
            return lengths_of(self)
        lengths = self.all_lengths
        if self.max_length is not None:
            lengths = lengths.within(self.max_length)
        if self.both_directions:
            backwards = lengths.reversed()
            lengths += backwards if self.max_length is None else backwards.within(self.max_length)
        return lengths

    def pairs_in_file(self, index: int) -> int:
        """Return the number of pairs of any length in a shard, from the size of its file."""
        return (self.folder / f"{index:05}.lengths").stat().st_size // PAIR_BYTES

    def __getitem__(self, index: int) -> EncodedPairs:  # type: ignore[override]  # no slices
        if index >= self.number:
            raise IndexError(index)
        pairs = self._mapped(index)
        if self.first_mark is not None and self.source_length is not None:
            sources = turns_that_fit(pairs.sources, self.first_mark, self.source_length)
            pairs = dataclasses.replace(pairs, sources=sources)
        if self.max_length is not None:
            pairs = pairs.within(self.max_length)
        if self.both_directions:
            backwards = pairs.reversed()
            if self.first_mark is not None:
                questions = questions_alone(pairs.sources, self.first_mark)
                backwards = dataclasses.replace(backwards, targets=questions)
            pairs += backwards if self.max_length is None else backwards.within(self.max_length)
        return pairs

    def spread(self, number: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids of at most this many pairs, spread over all shards. Opens at most as many shards."""
        filled = [n for n in range(self.number) if self.pairs_in_file(n)]
        places = (divmod(i * len(filled), number) for i in range(number))  # a shard, and one of `number` parts of it
        for n, parts in itertools.groupby(places, key=lambda place: place[0]):
            pairs = self[filled[n]]
            for row in dict.fromkeys(part * len(pairs) // number for _, part in parts) if len(pairs) else ():
                yield pairs.sources.row(row).tolist(), pairs.targets.row(row).tolist()

    def _mapped(self, index: int) -> EncodedPairs:
        note_use(self.folder)
        tokens, lengths = (self.folder / f"{index:05}.{name}" for name in ShardArrays._fields)
        sizes = _map(lengths, np.dtype(np.uint32)).reshape(-1, 3).astype(np.int64)
        rows = Ragged.from_lengths(_map(tokens, np.dtype(self.dtype)), sizes[:, :CHARACTERS].ravel())
        return EncodedPairs.question_to_answer(
            rows.select(np.arange(0, len(rows), 2)), rows.select(np.arange(1, len(rows), 2)), sizes[:, CHARACTERS]
        )


def frequent_questions(shards: Shards, vocabulary: Vocabulary) -> list[str]:
    """Return short questions, those with the most pairs in a shard first. Questions after other turns do not count."""
    pairs = next(shards[n] for n in range(len(shards)) if shards.pairs_in_file(n))
    rows = np.flatnonzero(pairs.sources.lengths <= OFFERED_TOKENS)
    counts = Counter(tuple(pairs.sources.row(int(row)).tolist()) for row in rows)
    words = range(len(SPECIALS), vocabulary.first_mark)
    texts = (vocabulary.text(ids) for ids, _ in counts.most_common() if all(i in words for i in ids))
    return list(itertools.islice((text for text in texts if len(text) > 1), OFFERED))


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a file into memory as an array. Raises UserError if it is missing."""
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except FileNotFoundError:
        raise UserError(f"{path}: removed while it was in use; run the same command again") from None


def encode_chunk(chunk: Chunk, kept: Mask, vocabulary: Vocabulary, turns: int = 0) -> ShardArrays:
    """Return the pairs of a chunk that are kept, as ids. turns: of history, which needs a vocabulary with marks."""
    ids = _ids_of_tokens(chunk.tokens, vocabulary)
    visible = _visible_characters(chunk.tokens, vocabulary)
    rows = chunk.rows(kept)
    if turns:
        assert vocabulary.has_marks, "a vocabulary without marks"
        ids += Ragged.from_rows([[mark] for mark in range(vocabulary.first_mark, vocabulary.first_byte)])
        visible = np.append(visible, [0] * len(MARKS))
        rows = rows_with_history(chunk, kept, turns)
    if isinstance(vocabulary, PieceVocabulary):  # training adds the end of a reply
        rows = dataclasses.replace(rows, lengths=rows.lengths - np.arange(len(rows)) % 2)
    tokens = rows.joined()
    sides = _sums(ids.lengths[tokens], rows.lengths).reshape(-1, 2)  # [pairs, 2]
    answers = _sums(visible[tokens], rows.lengths)[1::2, None]  # [pairs, 1] characters
    lengths = np.concatenate([sides, answers], axis=1).astype(np.uint32)
    return ShardArrays(ids.select(tokens).joined().astype(dtype_for(vocabulary)), lengths)


def _visible_characters(tokens: Sequence[str], vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Return the number of characters of each token that are no space, [tokens]; of pieces, those that begin in it."""
    if isinstance(vocabulary, PieceVocabulary):
        texts = vocabulary.bytes_of_tokens()
        of_tokens = zip(tokens, vocabulary.ids(tokens), strict=True)
        spelled = (texts[i] if i != UNK else token.encode() for token, i in of_tokens)
        return np.array([sum(byte & 0xC0 != 0x80 and byte != 0x20 for byte in text) for text in spelled], np.int64)
    points, characters = code_points(tokens)
    return _sums(points != ord(SPACE), characters)


def _ids_of_tokens(tokens: Sequence[str], vocabulary: Vocabulary) -> Ragged:
    """Return what `Vocabulary.ids` returns for each token, [tokens] rows; a call for each token would take longer."""
    if isinstance(vocabulary, PieceVocabulary):
        return Ragged.from_rows([[i] for i in vocabulary.ids(tokens)])
    points, lengths = code_points(tokens)
    distinct, indices = np.unique(points, return_inverse=True)
    characters = Ragged.from_rows([vocabulary.ids(chr(point)) for point in distinct.tolist()]).select(indices)
    spelled = Ragged.from_lengths(characters.joined(), _sums(characters.lengths, lengths))
    id_of = vocabulary.id_of.get
    words = np.array([id_of(token, UNK) for token in tokens], np.int32)
    either = spelled + Ragged.from_lengths(words, np.ones(len(words), np.int64))
    return either.select(np.where(words == UNK, 0, len(tokens)) + np.arange(len(tokens)))


def _sums(values: npt.NDArray[np.generic], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of each row, [rows]. values: the rows, joined. lengths: [rows], all above 0."""
    if not len(lengths):
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.int64)
