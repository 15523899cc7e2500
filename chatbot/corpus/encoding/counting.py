"""How often each token of a whole corpus occurs, without a table of all of them in Python.

A chunk brings the hashes of its tokens; hashes and counts are sorted and summed in arrays, and only the tokens that
may enter the vocabulary are looked up as text.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Chunk, Hashes, load_chunk
from chatbot.corpus.encoding.selection import Mask
from chatbot.corpus.encoding.workers import cores, in_order

# Entries that wait to be summed: some hundred megabytes, however large the corpus is.
WAITING = 4_000_000
# Fewer are counted sooner than a second process has started.
FEW_CHUNKS = 20


@dataclasses.dataclass(frozen=True)
class Counts:
    """How often tokens and characters occur, in a chunk or in a whole corpus. No hash stands twice."""

    hashes: Hashes  # [tokens] of the tokens with more than one character
    counts: npt.NDArray[np.int64]  # [tokens]
    characters: Counter[str]  # in tokens of any length
    single: int  # occurrences of tokens with one character

    def most_frequent(self, room: int, least: int) -> Hashes:
        """The hashes of all tokens that may be among the first so many, ties at the end included."""
        if room == 0:
            return self.hashes[:0]
        enough = self.counts >= least
        if room < int(enough.sum()):
            enough = self.counts >= np.partition(self.counts, -room)[-room]
        return self.hashes[enough]


def count_chunk(chunk: Chunk, kept: Mask) -> Counts:
    """Count the tokens in the pairs of a chunk that are kept."""
    ids = chunk.rows().select(np.nonzero(np.repeat(kept, 2))[0]).joined()
    counts = np.bincount(ids, minlength=len(chunk.tokens)).astype(np.int64)
    points = np.frombuffer("\n".join(chunk.tokens).encode("utf-32-le"), np.uint32)  # of all characters and new lines
    token = np.cumsum(points == ord("\n"))  # the token that each is in
    lengths = np.bincount(token[points != ord("\n")], minlength=len(chunk.tokens))
    found, place = np.unique(points, return_inverse=True)
    occurring = np.bincount(place, counts[token] if len(points) else None).astype(np.int64)
    characters = {chr(p): n for p, n in zip(found.tolist(), occurring.tolist(), strict=True) if n and p != ord("\n")}
    longer = (lengths > 1) & (counts > 0)
    return Counts(chunk.token_hashes[longer], counts[longer], Counter(characters), int(counts[lengths == 1].sum()))


def add_up(parts: Iterable[Counts]) -> Counts:
    """The counts of all parts together."""
    hashes, counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    characters: Counter[str] = Counter()
    single, waiting = 0, [(hashes, counts)]
    for part in parts:
        waiting.append((part.hashes, part.counts))
        characters.update(part.characters)
        single += part.single
        if sum(len(some) for some, _ in waiting[1:]) > WAITING:
            waiting = [_merged(waiting)]
    return Counts(*_merged(waiting), characters, single)


def _merged(parts: Sequence[tuple[Hashes, npt.NDArray[np.int64]]]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """The sum of the counts of each hash."""
    hashes = np.concatenate([hashes for hashes, _ in parts])
    counts = np.concatenate([counts for _, counts in parts])
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    begins = np.nonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])[: len(hashes)])[0]
    return hashes[begins], np.add.reduceat(counts[order], begins) if len(begins) else counts


def count_tokens(chunks: Sequence[Path], kept: Sequence[Mask]) -> Counts:
    """Count the tokens of the pairs that are kept in these chunks."""
    return add_up(in_order(_count, zip(chunks, kept, strict=True), cores() if len(chunks) > FEW_CHUNKS else 1))


def _count(path: Path, kept: Mask) -> Counts:
    return count_chunk(load_chunk(path), kept)


def texts_of(wanted: Hashes, chunks: Sequence[Path]) -> dict[int, str]:
    """The tokens with these hashes, which are in the chunks."""
    found: dict[int, str] = {}
    for path in chunks:
        if len(found) < len(wanted):
            found |= texts_in(load_chunk(path), wanted)
    return found


def texts_in(chunk: Chunk, wanted: Hashes) -> Iterator[tuple[int, str]]:
    """(hash, token) of those of the wanted tokens that a chunk has."""
    places = np.nonzero(np.isin(chunk.token_hashes, wanted))[0].tolist()
    return ((int(chunk.token_hashes[place]), chunk.tokens[place]) for place in places)
