"""Encoded pairs on disk. Each shard consists of two files with raw arrays, which are memory-mapped.

    00000.tokens     [total] uint16 or uint32: for each pair, the ids of the source, then of the answer
    00000.lengths    [pairs, 3] uint32: tokens of the source, tokens of the answer, characters of the answer

The source is the question, preceded by its previous turns if the corpus has history. The hash of a pair determines its
shard, so every shard is a random sample of the corpus, and training can read one shard after another.
"""

import dataclasses
import functools
import itertools
import sys
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
from chatbot.corpus.vocabulary import MARKS, SPECIALS, UNK, PieceVocabulary, Vocabulary
from chatbot.errors import UserError

# Average number of pairs in a shard, which takes about ten megabytes.
PAIRS_PER_SHARD = 1 << 17
# Number of bytes to buffer in memory before writing to the shards.
BUFFER = 32_000_000
CHARACTERS = 2  # column of `lengths` with the number of characters
# Number of example questions on the chat page, and their maximum length in tokens.
SUGGESTED_QUESTIONS = 3
SUGGESTED_TOKENS = 8
PAIR_BYTES = 3 * np.dtype(np.uint32).itemsize  # bytes per row of lengths


class ShardArrays(NamedTuple):
    """The two arrays of a shard, or of the part of a shard that comes from one chunk."""

    tokens: npt.NDArray[Any]  # [total] uint16 or uint32
    lengths: npt.NDArray[np.uint32]  # [pairs, 3]


def count_shards(pairs: int) -> int:
    """Return the number of shards in which to store this number of pairs."""
    return max(1, -(-pairs // PAIRS_PER_SHARD))


def dtype_for(vocabulary: Vocabulary) -> np.dtype[Any]:
    """Return the smallest dtype that can represent all ids."""
    return np.dtype(np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32)


def split_by_shard(pairs: ShardArrays, pair_hashes: Hashes, shards: int) -> Iterator[tuple[int, ShardArrays]]:
    """Divide pairs among shards. Yields the index and the pairs of each shard, except shards without pairs."""
    shard_of_pair = pair_hashes % np.uint64(shards)
    rows = Ragged.from_lengths(pairs.tokens, pairs.lengths[:, :CHARACTERS].sum(axis=1, dtype=np.int64))
    for shard in np.unique(shard_of_pair).tolist():
        indices = np.flatnonzero(shard_of_pair == shard)
        yield shard, ShardArrays(rows.select(indices).joined(), pairs.lengths[indices])


def write_shards(folder: Path, shards: int, parts: Iterable[tuple[int, ShardArrays]]) -> None:
    """Append each part to its shard, with limited memory use. Shards without pairs get empty files."""
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
    """The shards in a folder. `shards[index]` memory-maps the files of a shard."""

    folder: Path
    number: int  # number of shards
    dtype: str
    all_lengths: Lengths  # lengths of all pairs in the files
    max_length: int = sys.maxsize  # longer pairs are skipped
    both_directions: bool = False  # also return reversed pairs, from answer to question without history
    first_mark: int | None = None  # id of the first mark in MARKS; None if sources have no history
    source_length: int = sys.maxsize  # maximum tokens in a source with history; older turns are dropped

    def __len__(self) -> int:
        return self.number

    @functools.cached_property
    def lengths(self) -> Lengths:
        """Number of pairs for each combination of lengths. With history, all shards must be read."""
        if self.first_mark is not None:
            return lengths_of(self)
        lengths = self.all_lengths.within(self.max_length)
        return lengths + lengths.reversed().within(self.max_length) if self.both_directions else lengths

    def pairs_in_file(self, index: int) -> int:
        """Return the number of pairs in a shard, including pairs that are too long, without reading the shard."""
        return (self.folder / f"{index:05}.lengths").stat().st_size // PAIR_BYTES

    def __getitem__(self, index: int) -> EncodedPairs:  # type: ignore[override]  # no slices
        if index >= self.number:
            raise IndexError(index)
        pairs = self._open(index)
        if self.first_mark is not None:
            sources = turns_that_fit(pairs.sources, self.first_mark, self.source_length)
            pairs = dataclasses.replace(pairs, sources=sources)
        pairs = pairs.within(self.max_length)
        if self.both_directions:
            backwards = pairs.reversed()
            if self.first_mark is not None:
                questions = questions_alone(pairs.sources, self.first_mark)
                backwards = dataclasses.replace(backwards, targets=questions)
            pairs += backwards.within(self.max_length)
        return pairs

    def spread(self, number: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield source and target ids of at most `number` pairs, spread evenly over the corpus."""
        filled = [n for n in range(self.number) if self.pairs_in_file(n)]
        shares = (
            divmod(i * len(filled), number) for i in range(number)
        )  # [number] index of a shard, and relative position in the shard (from 0 to number - 1)
        for n, parts in itertools.groupby(shares, key=lambda share: share[0]):
            pairs = self[filled[n]]
            for row in dict.fromkeys(part * len(pairs) // number for _, part in parts) if len(pairs) else ():
                yield pairs.sources.row(row).tolist(), pairs.targets.row(row).tolist()

    def _open(self, index: int) -> EncodedPairs:
        note_use(self.folder)
        tokens, lengths = (self.folder / f"{index:05}.{name}" for name in ShardArrays._fields)
        sizes = _map(lengths, np.dtype(np.uint32)).reshape(-1, 3).astype(np.int64)
        rows = Ragged.from_lengths(_map(tokens, np.dtype(self.dtype)), sizes[:, :CHARACTERS].ravel())
        return EncodedPairs.question_to_answer(
            rows.select(np.arange(0, len(rows), 2)), rows.select(np.arange(1, len(rows), 2)), sizes[:, CHARACTERS]
        )


def frequent_questions(shards: Shards, vocabulary: Vocabulary) -> list[str]:
    """Return the most frequent short questions in the first shard with pairs. Questions with history are ignored."""
    pairs = next(shards[n] for n in range(len(shards)) if shards.pairs_in_file(n))
    rows = np.flatnonzero(pairs.sources.lengths <= SUGGESTED_TOKENS)
    counts = Counter(tuple(pairs.sources.row(int(row)).tolist()) for row in rows)
    words = range(len(SPECIALS), vocabulary.first_mark)
    texts = (vocabulary.text(ids) for ids, _ in counts.most_common() if all(i in words for i in ids))
    return list(itertools.islice((text for text in texts if len(text) > 1), SUGGESTED_QUESTIONS))


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory-map a file as an array. Raises UserError if the file is missing."""
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except FileNotFoundError:
        raise UserError(f"{path}: removed while it was in use; run the same command again") from None


def encode_chunk(chunk: Chunk, selected: Mask, vocabulary: Vocabulary, turns: int = 0) -> ShardArrays:
    """Encode the selected pairs of a chunk. If `turns` is positive, the vocabulary must contain marks of speakers."""
    ids = Ragged.from_rows([vocabulary.ids([token]) for token in chunk.tokens])
    visible = _visible_characters(chunk.tokens, vocabulary)
    rows = chunk.rows(selected)
    if turns:
        assert vocabulary.has_marks, "the vocabulary has no marks"
        ids += Ragged.from_rows([[mark] for mark in range(vocabulary.first_mark, vocabulary.first_byte)])
        visible = np.append(visible, [0] * len(MARKS))
        rows = rows_with_history(chunk, selected, turns)
    if isinstance(vocabulary, PieceVocabulary):  # drop the EOS of replies, because training adds EOS
        rows = dataclasses.replace(rows, lengths=rows.lengths - np.arange(len(rows)) % 2)
    tokens = rows.joined()
    sides = _sum_rows(ids.lengths[tokens], rows.lengths).reshape(-1, 2)  # [pairs, 2]
    answers = _sum_rows(visible[tokens], rows.lengths)[1::2, None]  # [pairs, 1] characters
    lengths = np.concatenate([sides, answers], axis=1).astype(np.uint32)
    return ShardArrays(ids.select(tokens).joined().astype(dtype_for(vocabulary)), lengths)


def _visible_characters(tokens: Sequence[str], vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Return the number of non-space characters in each token, [tokens].

    If the bytes of a character are spread over several tokens, the character counts in the first of them.
    """
    if isinstance(vocabulary, PieceVocabulary):
        texts = vocabulary.texts
        tokens_and_ids = zip(tokens, vocabulary.ids(tokens), strict=True)
        spelled = (texts[i] if i != UNK else token.encode() for token, i in tokens_and_ids)
        return np.array([sum(byte & 0xC0 != 0x80 and byte != 0x20 for byte in text) for text in spelled], np.int64)
    return np.array([len(token) - token.count(SPACE) for token in tokens], np.int64)


def _sum_rows(values: npt.NDArray[np.generic], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of each row, [rows]. `values` contains all rows one after another. Rows must not be empty."""
    if not len(lengths):
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.int64)
