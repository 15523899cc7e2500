"""Encoded pairs on disk: shards of raw arrays, mapped into memory one at a time, that any machine can read.

    00000.tokens     [total] uint16 or uint32: of each pair the question's ids, then the answer's
    00000.lengths    [pairs, 3] uint32: tokens of the question, tokens of the answer, characters of the answer

Which shard a pair is in depends on a hash of its text: the corpus is shuffled as it is written, so that an epoch can
go through it shard by shard. Inside a shard pairs stand in the order of the files.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Chunk, Hashes
from chatbot.corpus.encoding.encoded import Encoded, Ragged, encoded
from chatbot.corpus.encoding.selection import Mask
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.corpus.text.tokenizer import SPACE
from chatbot.errors import UserError

# Pairs of a shard, on the average: some ten megabytes.
PAIRS = 1 << 17
# Bytes that wait in memory before they are written to their shards.
WAITING = 32_000_000
SOURCE, TARGET, CHARACTERS = range(3)


class Block(NamedTuple):
    """Encoded pairs, a few thousand or a whole shard."""

    tokens: npt.NDArray[Any]  # [total] uint16 or uint32
    lengths: npt.NDArray[np.uint32]  # [pairs, 3]

    def bytes_of(self) -> dict[str, bytes]:
        """What each file of a shard gets."""
        return {"tokens": self.tokens.tobytes(), "lengths": self.lengths.tobytes()}


def shards_needed(pairs: int) -> int:
    """How many shards hold so many pairs."""
    return max(1, -(-pairs // PAIRS))


def shard_of(pair_hashes: Hashes, count: int) -> npt.NDArray[np.int64]:
    """[pairs] the number of the shard of each pair."""
    return (pair_hashes % np.uint64(count)).astype(np.int64)


def dtype_for(vocabulary: Vocabulary) -> np.dtype[Any]:
    """The smallest type that holds every id."""
    return np.dtype(np.uint16 if len(vocabulary) <= 1 << 16 else np.uint32)


def encode_chunk(chunk: Chunk, kept: Mask, vocabulary: Vocabulary) -> Block:
    """The pairs of a chunk that are kept, in the vocabulary's ids; words outside it are spelled in characters."""
    spelled = vocabulary.spelled(chunk.tokens)
    ids = np.array(list(itertools.chain.from_iterable(spelled)), dtype_for(vocabulary))
    sizes = np.fromiter(map(len, spelled), np.int64, len(spelled))
    table = Ragged(ids, np.cumsum(sizes) - sizes, sizes)  # row t is how token t is written
    visible = np.array([len(token.replace(SPACE, "")) for token in chunk.tokens], np.int64)

    rows = chunk.rows().select(np.nonzero(np.repeat(kept, 2))[0])
    tokens = rows.joined()
    begins = np.cumsum(rows.lengths) - rows.lengths  # no row is empty, as reduceat needs
    sizes_of_rows = np.add.reduceat(sizes[tokens], begins).reshape(-1, 2) if len(rows) else np.zeros((0, 2))
    characters = np.add.reduceat(visible[tokens], begins).reshape(-1, 2) if len(rows) else np.zeros((0, 2))
    lengths = np.concatenate([sizes_of_rows, characters[:, 1:]], axis=1).astype(np.uint32)  # [pairs, 3]
    return Block(table.select(tokens).joined(), lengths)


def split(block: Block, shard: npt.NDArray[np.int64]) -> Iterable[tuple[int, Block]]:
    """The pairs of a block by the shard they belong to, in their order."""
    sizes = block.lengths[:, :CHARACTERS].sum(axis=1, dtype=np.int64)
    pairs = Ragged(block.tokens, np.cumsum(sizes) - sizes, sizes)
    for number in np.unique(shard):
        rows = np.nonzero(shard == number)[0]
        yield int(number), Block(pairs.select(rows).joined(), block.lengths[rows])


def write_shards(folder: Path, count: int, blocks: Iterable[tuple[int, Block]]) -> None:
    """Append each block to its shard, in the order given, in bounded memory. A shard without pairs has empty files."""
    waiting: dict[str, list[bytes]] = {f"{n:05}.{ending}": [] for n in range(count) for ending in Block._fields}
    size = 0
    for number, block in blocks:
        for ending, content in block.bytes_of().items():
            waiting.setdefault(f"{number:05}.{ending}", []).append(content)
            size += len(content)
        if size > WAITING:
            _append(folder, waiting)
            waiting, size = {}, 0
    _append(folder, waiting)


def _append(folder: Path, waiting: dict[str, list[bytes]]) -> None:
    for name, parts in waiting.items():
        with (folder / name).open("ab") as file:
            file.writelines(parts)


@dataclasses.dataclass(frozen=True)
class Shards(Sequence[Encoded]):
    """The shards of a folder, each mapped when it is asked for."""

    folder: Path
    number: int  # of shards
    dtype: str
    max_length: int | None = None  # longer pairs are passed over
    both_directions: bool = False  # each pair from answer to question, too

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | Sequence[Encoded]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.number))]
        if not 0 <= index < self.number:
            raise IndexError(index)
        pairs = self._mapped(index)
        if self.max_length is not None:
            pairs = pairs.within(self.max_length)
        if self.both_directions:
            backwards = pairs.reversed()
            pairs += backwards if self.max_length is None else backwards.within(self.max_length)
        return pairs

    def _mapped(self, index: int) -> Encoded:
        tokens, lengths = (self.folder / f"{index:05}.{ending}" for ending in Block._fields)
        sizes = _map(lengths, np.dtype(np.uint32)).reshape(-1, 3).astype(np.int64)
        both = sizes[:, :CHARACTERS].ravel()
        starts = (np.cumsum(both) - both).reshape(-1, 2)
        flat = _map(tokens, np.dtype(self.dtype))
        return encoded(
            Ragged(flat, starts[:, SOURCE], sizes[:, SOURCE]),
            Ragged(flat, starts[:, TARGET], sizes[:, TARGET]),
            sizes[:, CHARACTERS],
        )


def _map(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A file as an array. Raises UserError when it is gone."""
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, dtype)  # which cannot be mapped
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except FileNotFoundError:
        raise UserError(f"{path}: removed while it was used; the same command makes it anew and goes on") from None
