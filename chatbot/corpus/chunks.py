"""Chunks of a few thousand tokenised pairs. Worker processes encode a corpus chunk by chunk.

Each chunk numbers its own distinct tokens, because the vocabulary is built only after all chunks are tokenised.
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

from chatbot.config.corpus import PIECES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pair_ids import SOURCE, TARGET, Hashes, Mask, Ragged
from chatbot.corpus.pieces import pieces_of_lines
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.turns import NEW, RESUMED, Pair
from chatbot.corpus.selection import word_filter
from chatbot.corpus.tokenizer import text_of, tokenizer

# Number of pairs in a chunk. Tokenising a chunk takes less than a second. A chunk can contain up to twice this number,
# because conversations are not split.
PAIRS_PER_CHUNK = 16384


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokenised pairs. Rows 2i and 2i + 1 are the question and the answer of pair i.

    Each pair has a link, which is NEW for the first pair of a conversation. Other links state how the pair continues
    the conversation (see `corpus/reading/turns.py`).
    """

    token_text: npt.NDArray[np.uint8]  # distinct tokens in UTF-8, separated by newlines
    ids: npt.NDArray[np.unsignedinteger[Any]]  # [total tokens] indices into the distinct tokens
    lengths: npt.NDArray[np.uint32]  # [2 * pairs] tokens in each row
    text_hashes: Hashes  # [2 * pairs] hash of each row's text
    links: npt.NDArray[np.uint8]  # [pairs] NEW, OVERLAP, NEXT or RESUMED

    def __len__(self) -> int:
        return len(self.links)

    @property
    def pair_hashes(self) -> Hashes:
        """[pairs] hash of each pair of a question and an answer."""
        return mix_hashes(self.text_hashes[::2], self.text_hashes[1::2])

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The distinct tokens, by index."""
        text = self.token_text.tobytes().decode()
        return text.split("\n") if text else []

    def rows(self, selected: Mask) -> Ragged:
        """Return the token indices of the selected pairs. Rows alternate between questions and answers."""
        return Ragged.from_lengths(self.ids, self.lengths).select(np.flatnonzero(np.repeat(selected, 2)))

    def texts(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[str, str]]:
        """Yield the cleaned question and answer of each pair at these indices."""
        rows = Ragged.from_lengths(self.ids, self.lengths)
        for index in indices.tolist():
            question, answer = ([self.tokens[i] for i in rows.row(2 * index + side)] for side in (SOURCE, TARGET))
            yield text_of(question), text_of(answer)

    def save(self, path: Path) -> None:
        """Write the chunk to a file. Equal chunks produce identical files."""
        with path.open("wb") as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def load_chunk(path: Path) -> Chunk:
    """Load a chunk that was written by `Chunk.save`."""
    with np.load(path) as arrays:
        return Chunk(**arrays)


def load_hashes(path: Path) -> tuple[Hashes, npt.NDArray[np.uint8]]:
    """Return the text hashes and the links of a chunk, without loading its tokens."""
    with np.load(path) as arrays:
        return arrays["text_hashes"], arrays["links"]


def tokenise_chunk(pairs: Sequence[Pair], first: int, report: Report, settings: CorpusSettings) -> Chunk:
    """Clean pairs, drop invalid pairs, and tokenise the remaining pairs."""
    cleaned = list(clean_pairs(pairs, first, report, settings))
    texts = [text for pair in cleaned for text in pair[:2]]
    tokens, ids, lengths = _number_tokens(texts, settings)
    return Chunk(
        np.frombuffer("\n".join(tokens).encode(), np.uint8),
        ids.astype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32),
        lengths.astype(np.uint32),
        hash_texts(texts),
        np.fromiter((pair[2] for pair in cleaned), np.uint8, len(cleaned)),
    )


def clean_pairs(pairs: Iterable[Pair], first: int, report: Report, settings: CorpusSettings) -> Iterator[Pair]:
    """Clean pairs, and drop pairs that are empty or contain blocked words.

    If pairs in the middle of a conversation are dropped, the next pair gets the link RESUMED. The first pair always
    begins a new conversation.

    Args:
        pairs: Pairs of a file.
        first: Number of the first pair in its file, counted from 1. The report refers to pairs by their numbers.
        report: Report in which changed utterances and dropped pairs are counted.
        settings: Cleaning rules and block list.
    """
    changed: Counter[str] = Counter()
    clean = cleaner(settings.clean, changed)
    is_blocked = word_filter(settings)
    gap: int | None = NEW  # link of the next pair after dropped pairs, or None
    for number, (question, answer, link) in enumerate(pairs, start=first):
        question = clean(question)
        answer = clean(answer)
        is_empty = not question or not answer
        if is_empty or (is_blocked is not None and (is_blocked(question) or is_blocked(answer))):
            reason = "pairs with an empty side" if is_empty else "pairs with a blocked word"
            report.drop(reason, f"{report.file}, pair {number:,}")
            gap = NEW if NEW in (gap, link) else RESUMED
            continue
        yield question, answer, link if gap is None or link == NEW else gap
        gap = None
    report.changed = dict(changed)


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Return the hash of each text, [texts]."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, texts)), np.uint64)


def mix_hashes(first: Hashes, second: Hashes) -> Hashes:
    """Combine two hashes into one that depends on their order, as in SplitMix64 (Steele et al., 2014)."""
    mixed: Hashes = first * np.uint64(0x9E3779B97F4A7C15) + second
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _number_tokens(
    texts: Sequence[str], settings: CorpusSettings
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Tokenise texts, and number their distinct tokens in order of appearance.

    All texts are joined by newlines and tokenised in one call, which is faster than one call per text.

    Returns:
        The distinct tokens, the index of each token of the texts, and the number of tokens in each text.
    """
    if settings.tokenizer == PIECES:
        tokens = pieces_of_lines(str(settings.dictionary), texts)
    else:
        tokens = tokenizer(settings.tokenizer, settings.dictionary)("\n".join(texts))
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    newline = numbers["\n"]
    ids = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
    is_newline = ids == newline
    ends = np.append(np.flatnonzero(is_newline), len(ids))[: len(texts)]
    return list(numbers)[1:], ids[~is_newline] - 1, np.diff(ends, prepend=-1) - 1
