"""From the tokens of a chunk to the ids of a vocabulary, by array operations."""

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.chunks import Chunk, Mask, hashes_of
from chatbot.corpus.encoding.history import rows_with_history
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.shards import ShardArrays, dtype_for
from chatbot.corpus.encoding.vocabulary import SPECIALS, UNK, Vocabulary
from chatbot.corpus.text.tokenizer import SPACE

UNICODE = 0x110000  # code points


class IdTable:
    """The ids of a vocabulary by the hashes of its tokens, by the code points of its characters, and by bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        dtype = dtype_for(vocabulary)
        words = vocabulary.tokens[len(SPECIALS) : vocabulary.first_mark]
        hashes = hashes_of(words)
        order = np.argsort(hashes)
        self._hashes, self._ids = hashes[order], (order + len(SPECIALS)).astype(dtype)
        self._character_ids = np.full(UNICODE, UNK, dtype)
        for index, token in enumerate(words, len(SPECIALS)):
            if len(token) == 1:
                self._character_ids[ord(token)] = index
        marks = np.arange(vocabulary.first_mark, vocabulary.first_byte).astype(dtype)
        self.marks = Ragged.from_lengths(marks, np.ones(len(marks), np.int64))  # one id each
        self._byte_ids = np.arange(vocabulary.first_byte, len(vocabulary)).astype(dtype)  # [256], or none

    def rows(self, chunk: Chunk) -> Ragged:
        """Return the ids of each distinct token of a chunk, [tokens] rows.

        A token in the vocabulary has one id, any other token the ids of its characters, and an unknown character those
        of its UTF-8 bytes.
        """
        spelled = self._spelled(chunk)
        index = np.searchsorted(self._hashes, chunk.token_hashes).clip(max=len(self._hashes) - 1)
        known = self._hashes[index] == chunk.token_hashes
        flat = np.concatenate([spelled.flat, self._ids])
        starts = np.where(known, len(spelled.flat) + index, spelled.starts)
        return Ragged(flat, starts, np.where(known, 1, spelled.lengths))

    def _spelled(self, chunk: Chunk) -> Ragged:
        """Return the ids of the characters of each distinct token, [tokens] rows."""
        characters = chunk.token_characters()
        ids = self._character_ids[characters.flat]  # [characters]
        if not len(self._byte_ids):
            return Ragged(ids, characters.starts, characters.lengths)
        text = chunk.token_bytes()
        begins = (text.flat & 0xC0) != 0x80  # [bytes] the first byte of each character
        ids = ids[np.cumsum(begins) - 1]  # [bytes] of the character that the byte belongs to
        in_bytes = ids == UNK
        kept = begins | in_bytes
        flat = np.where(in_bytes, self._byte_ids[text.flat], ids)[kept]
        return Ragged.from_lengths(flat, sums(kept, text.lengths))


def encode_chunk(chunk: Chunk, kept: Mask, table: IdTable, turns: int = 0) -> ShardArrays:
    """Return the pairs of a chunk that are kept, as ids. Tokens outside the vocabulary are spelled.

    turns: of history, which needs a vocabulary with marks.
    """
    ids = table.rows(chunk)
    characters = chunk.token_characters()
    visible = sums(characters.flat != ord(SPACE), characters.lengths)
    rows = chunk.rows(kept)
    if turns:
        assert len(table.marks), "a vocabulary without marks"
        ids += table.marks
        visible = np.append(visible, np.zeros(len(table.marks), np.int64))
        rows = rows_with_history(chunk, kept, turns)
    tokens = rows.joined()
    sides = sums(ids.lengths[tokens], rows.lengths).reshape(-1, 2)  # [pairs, 2]
    answers = sums(visible[tokens], rows.lengths)[1::2, None]  # [pairs, 1] characters
    lengths = np.concatenate([sides, answers], axis=1).astype(np.uint32)
    return ShardArrays(ids.select(tokens).joined(), lengths)


def sums(values: npt.NDArray[np.generic], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of each row, [rows] int64. values: the rows, joined. lengths: [rows], all above 0."""
    if not len(lengths):
        return np.zeros(0, np.int64)
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.int64)
