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

from chatbot.config.corpus import PIECES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pair_ids import SOURCE, TARGET, Hashes, Mask, Ragged
from chatbot.corpus.pieces import pieces_of_lines
from chatbot.corpus.reading.conversation import NEW, RESUMED, Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import word_filter
from chatbot.corpus.tokenizer import text_of, tokenizer

# Large enough that distinct tokens are a small part of all tokens, small enough to be tokenised within a second. A
# chunk may have up to twice as many, so as to end with a conversation.
PAIRS_PER_CHUNK = 16384


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokenised pairs. Rows 2i and 2i + 1 are the question and the answer of pair i.

    The links keep the turns of a conversation: see `corpus/reading/conversation.py` for the turns before a question.
    They never lead to another chunk: the first pair of a chunk is NEW.
    """

    token_text: npt.NDArray[np.uint8]  # the distinct tokens, in UTF-8, with a line break between them
    ids: npt.NDArray[np.unsignedinteger[Any]]  # [all tokens of all rows] indices of distinct tokens
    lengths: npt.NDArray[np.uint32]  # [2 * pairs]
    text_hashes: Hashes  # [2 * pairs]
    links: npt.NDArray[np.uint8]  # [pairs] NEW, OVERLAP, NEXT or RESUMED

    def __len__(self) -> int:
        return len(self.links)

    @property
    def pair_hashes(self) -> Hashes:
        """The hash of each question and its answer, [pairs]."""
        return mixed(self.text_hashes[::2], self.text_hashes[1::2])

    @functools.cached_property
    def tokens(self) -> list[str]:
        """The distinct tokens."""
        text = self.token_text.tobytes().decode()
        return text.split("\n") if text else []

    def rows(self, kept: Mask) -> Ragged:
        """Return the alternating questions and answers of the kept pairs: [2 * kept pairs] rows of indices."""
        return Ragged.from_lengths(self.ids, self.lengths).select(np.flatnonzero(np.repeat(kept, 2)))

    def texts(self, indices: npt.NDArray[np.integer]) -> Iterator[tuple[str, str]]:
        """Yield the cleaned question and answer of the pairs with these indices."""
        rows = Ragged.from_lengths(self.ids, self.lengths)
        for index in indices.tolist():
            question, answer = ([self.tokens[i] for i in rows.row(2 * index + side)] for side in (SOURCE, TARGET))
            yield text_of(question), text_of(answer)

    def save(self, path: Path) -> None:
        """Write the chunk; equal chunks give equal bytes."""
        with path.open("wb") as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def load_chunk(path: Path) -> Chunk:
    """Read what `Chunk.save` wrote."""
    with np.load(path) as arrays:
        return Chunk(**arrays)


def load_hashes(path: Path) -> tuple[Hashes, npt.NDArray[np.uint8]]:
    """Return the hashes of the texts of a chunk and its links, without reading its tokens."""
    with np.load(path) as arrays:
        return arrays["text_hashes"], arrays["links"]


def tokenise_chunk(pairs: Sequence[Pair], first: int, report: Report, settings: CorpusSettings) -> Chunk:
    """Clean the pairs, drop those that the rules about one pair reject, and tokenise the others, as `clean_pairs`."""
    cleaned = list(clean_pairs(pairs, first, report, settings))
    texts = [text for pair in cleaned for text in pair[:2]]
    tokens, ids, lengths = _numbered(texts, settings)
    return Chunk(
        np.frombuffer("\n".join(tokens).encode(), np.uint8),
        ids.astype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32),
        lengths.astype(np.uint32),
        hashes_of(texts),
        np.fromiter((pair[2] for pair in cleaned), np.uint8, len(cleaned)),
    )


def clean_pairs(pairs: Iterable[Pair], first: int, report: Report, settings: CorpusSettings) -> Iterator[Pair]:
    """Yield the cleaned pairs that the rules about one pair keep. The report counts changed and dropped pairs.

    The conversation of a dropped pair goes on with RESUMED. The first pair begins a new one. first: the number of the
    first pair in its file, from 1; the report names pairs by these numbers.
    """
    changed: Counter[str] = Counter()
    clean = cleaner(settings.clean, changed)
    is_blocked = word_filter(settings)
    gap: int | None = NEW  # the link of a pair after dropped ones; None: no pair was dropped
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


def hashes_of(texts: Iterable[str]) -> Hashes:
    """Return the hash of each text, [texts]."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, texts)), np.uint64)


def mixed(first: Hashes, second: Hashes) -> Hashes:
    """Return a hash of two hashes in this order, by the multiplications of SplitMix64 (Steele et al., 2014)."""
    mixed: Hashes = first * np.uint64(0x9E3779B97F4A7C15) + second
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _numbered(
    texts: Sequence[str], settings: CorpusSettings
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the distinct tokens in order of appearance, the index of every token, and the lengths of the texts.

    One call tokenises all texts, joined by line breaks, which is faster than one call for each text. A line break is
    always a separate token.
    """
    if settings.tokenizer == PIECES:
        tokens = pieces_of_lines(str(settings.dictionary), texts)
    else:
        tokens = tokenizer(settings.tokenizer, settings.dictionary)("\n".join(texts))
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    line_break = numbers["\n"]
    ids = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
    is_break = ids == line_break
    ends = np.append(np.flatnonzero(is_break), len(ids))[: len(texts)]
    return list(numbers)[1:], ids[~is_break] - 1, np.diff(ends, prepend=-1) - 1
