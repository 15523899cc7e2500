"""Sources with conversation history: `--history N` adds the last N utterances (turns) before each question.

A source contains the turns from oldest to newest, and the question last. A special token called a mark precedes each
turn. It identifies one of two alternating speakers (see `vocabulary.MARKS`), and the question has the first mark.
"""

import numpy as np
import numpy.typing as npt

from chatbot.corpus.chunks import Chunk, mix_hashes
from chatbot.corpus.pair_ids import Hashes, Mask, Offsets, Ragged
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP
from chatbot.corpus.selection import PairHashes
from chatbot.corpus.vocabulary import MARKS

Links = npt.NDArray[np.uint8]


def turns_that_fit(sources: Ragged, first_mark: int, max_length: int) -> Ragged:
    """Remove the oldest turns of each source until it fits in `max_length` tokens. The question is always kept.

    Args:
        sources: Sources with history.
        first_mark: Id of the first mark in MARKS.
        max_length: Maximum number of tokens in a source.
    """
    marks: Offsets = np.flatnonzero((sources.flat >= first_mark) & (sources.flat < first_mark + len(MARKS)))
    ends = sources.starts + sources.lengths
    # [sources] index of the mark at which each shortened source starts
    fitting = np.searchsorted(marks, np.maximum(sources.starts, ends - max_length))
    starts = marks[np.minimum(fitting, np.searchsorted(marks, ends) - 1)]
    return Ragged(sources.flat, starts, ends - starts)


def questions_alone(sources: Ragged, first_mark: int) -> Ragged:
    """Return only the question of each source, without previous turns and marks."""
    marked = turns_that_fit(sources, first_mark, 0)
    return Ragged(sources.flat, marked.starts + 1, marked.lengths - 1)


def count_with_history(sources: Ragged, first_mark: int) -> int:
    """Return the number of sources that contain a turn before the question."""
    return int(np.count_nonzero(turns_that_fit(sources, first_mark, 0).starts > sources.starts))


def turn_rows(links: Links, turns: int) -> npt.NDArray[np.int64]:
    """Return which rows of a chunk contain the turns of each source, with shape [pairs, at most turns + 1].

    The first column contains the row of the question, the second the row of the turn before it, and so on. An entry of
    -1 means that there are no earlier turns.
    """
    questions = 2 * np.arange(len(links))
    before = np.full(2 * len(links), -1)  # row of the turn that precedes each row
    before[1::2] = questions
    overlap = np.flatnonzero(links == OVERLAP)
    following = np.flatnonzero(links == NEXT)
    before[questions[overlap]] = questions[overlap] - 2
    before[questions[following]] = questions[following] - 1
    columns = [questions]
    for _ in range(turns):
        last = columns[-1]
        column = np.where(last < 0, -1, before[last])
        if (column < 0).all():
            break
        columns.append(column)
    return np.stack(columns, axis=1)


def rows_with_history(chunk: Chunk, selected: Mask, turns: int) -> Ragged:
    """Return the token indices of the selected pairs. Rows alternate between sources and answers.

    The two marks have the first indices after the distinct tokens of the chunk.
    """
    tokens = len(chunk.tokens)
    rows = len(chunk.lengths)
    flat = np.concatenate([chunk.ids.astype(np.int64), np.arange(tokens, tokens + len(MARKS))])
    all_rows = Ragged.from_lengths(flat, np.concatenate([chunk.lengths, np.ones(len(MARKS), np.uint32)]))
    history = turn_rows(chunk.links, turns)[selected, ::-1]  # [selected, turns], with the question last
    ages = np.arange(history.shape[1])[::-1]
    marks = np.where(history < 0, -1, rows + ages % len(MARKS))
    # [selected, 2 * turns], for example mark, turn, mark, question
    marked = np.stack([marks, history], axis=2).reshape(len(history), 2 * history.shape[1])
    answers = history[:, -1:] + 1
    parts = np.concatenate([marked, answers], axis=1)  # [selected, 2 * turns + 1]
    exists = parts >= 0
    existing = all_rows.select(parts[exists])
    sizes = np.zeros(parts.shape, np.int64)
    sizes[exists] = existing.lengths
    lengths = np.stack([sizes[:, :-1].sum(axis=1), sizes[:, -1]], axis=1)  # [selected, 2]
    return Ragged.from_lengths(existing.joined(), lengths.ravel())


def pair_hashes(texts: Hashes, links: Links, turns: int) -> PairHashes:
    """Return the hashes of the pairs of a chunk.

    With history, the hash of an example includes the previous turns. All pairs of a conversation then form a group,
    which is identified by the hash of the first turn.

    Args:
        texts: Hashes of the alternating questions and answers, [2 * pairs].
        links: Links between the pairs, [pairs].
        turns: Maximum number of previous turns.
    """
    questions = texts[::2]
    answers = texts[1::2]
    pairs = mix_hashes(questions, answers)
    if not turns:
        return PairHashes(questions, answers, pairs, questions, pairs)
    examples = pairs.copy()
    for column in turn_rows(links, turns).T[1:]:
        exists = column >= 0
        examples[exists] = mix_hashes(examples[exists], texts[column[exists]])
    first = np.maximum.accumulate(np.where(links == NEW, np.arange(len(links)), 0))
    return PairHashes(questions, answers, pairs, questions[first], examples)
