"""From the tokens of a chunk to the ids of a vocabulary, by array operations."""

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Chunk, Mask, hashes_of
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.shards import ShardArrays, dtype_for
from chatbot.corpus.encoding.vocabulary import UNK, Vocabulary
from chatbot.corpus.text.tokenizer import SPACE

UNICODE = 0x110000  # code points


class IdTable:
    """The ids of a vocabulary by the hashes of its tokens, and by the code points of its characters."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        dtype = dtype_for(vocabulary)
        hashes = hashes_of(vocabulary.tokens)
        order = np.argsort(hashes)
        self._hashes, self._ids = hashes[order], order.astype(dtype)
        self._character_ids = np.full(UNICODE, UNK, dtype)
        for index, token in enumerate(vocabulary.tokens):
            if len(token) == 1:
                self._character_ids[ord(token)] = index

    def rows(self, chunk: Chunk) -> Ragged:
        """Return the ids of each distinct token of a chunk, [tokens] rows.

        A token in the vocabulary has one id, any other token the ids of its characters.
        """
        characters = chunk.token_characters()
        index = np.searchsorted(self._hashes, chunk.token_hashes).clip(max=len(self._hashes) - 1)
        known = self._hashes[index] == chunk.token_hashes
        flat = np.concatenate([self._character_ids[characters.flat], self._ids])
        starts = np.where(known, len(characters.flat) + index, characters.starts)
        return Ragged(flat, starts, np.where(known, 1, characters.lengths))


def encode_chunk(chunk: Chunk, kept: Mask, table: IdTable) -> ShardArrays:
    """Return the pairs of a chunk that are kept, as ids. Tokens outside the vocabulary become their characters."""
    ids = table.rows(chunk)
    characters = chunk.token_characters()
    visible = sums(characters.flat != ord(SPACE), characters.lengths)
    rows = chunk.rows(kept)
    tokens = rows.joined()
    sides = sums(ids.lengths[tokens], rows.lengths).reshape(-1, 2)  # [pairs, 2]
    answers = sums(visible[tokens], rows.lengths)[1::2, None]  # [pairs, 1] characters
    return ShardArrays(ids.select(tokens).joined(), np.concatenate([sides, answers], axis=1).astype(np.uint32))


def sums(values: npt.NDArray[np.generic], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of each row, [rows] int64. values: the rows, joined. lengths: [rows], all above 0."""
    if not len(lengths):
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.int64)
