"""The turns before a question, in the source of a pair: `--history N` joins the last N of them with the question.

A source with history is a list of turns, the oldest first and the question last. Each turn begins with the mark of who
spoke (`vocabulary.MARKS`). The speakers alternate: the other one has asked the question. Sources are stored with all N
turns. When they are read, the oldest turns are left out until the others fit in --max-length.
"""

import numpy as np
import numpy.typing as npt

from chatbot.corpus.chunks import Chunk, mixed
from chatbot.corpus.pair_ids import Hashes, Mask, Offsets, Ragged
from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP
from chatbot.corpus.selection import PairHashes
from chatbot.corpus.vocabulary import MARKS

Links = npt.NDArray[np.uint8]


def turns_that_fit(sources: Ragged, first_mark: int, max_length: int) -> Ragged:
    """Return the sources without the oldest turns that do not fit in max_length tokens. The question always stays.

    first_mark: the id of the first of MARKS.
    """
    marks: Offsets = np.flatnonzero((sources.flat >= first_mark) & (sources.flat < first_mark + len(MARKS)))
    ends = sources.starts + sources.lengths
    # The first mark from which at most max_length tokens remain, or the question's.
    fitting = np.searchsorted(marks, np.maximum(sources.starts, ends - max_length))
    starts = marks[np.minimum(fitting, np.searchsorted(marks, ends) - 1)]
    return Ragged(sources.flat, starts, ends - starts)


def questions_alone(sources: Ragged, first_mark: int) -> Ragged:
    """Return the questions of sources with history, without their marks."""
    marked = turns_that_fit(sources, first_mark, 0)
    return Ragged(sources.flat, marked.starts + 1, marked.lengths - 1)


def with_history(sources: Ragged, first_mark: int) -> int:
    """Return the number of sources that have a turn before the question."""
    return int(np.count_nonzero(turns_that_fit(sources, first_mark, 0).starts > sources.starts))


def turn_rows(links: Links, turns: int) -> npt.NDArray[np.int64]:
    """Return the row of a chunk that each turn of a pair's source stands in, [pairs, at most turns + 1].

    The first column is the question, the next the turn before it. -1 stands for no turn.
    """
    questions = 2 * np.arange(len(links))
    before = np.full(2 * len(links), -1)  # the row of the turn before each row
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


def rows_with_history(chunk: Chunk, kept: Mask, turns: int) -> Ragged:
    """Return the alternating sources and answers of the kept pairs: [2 * kept pairs] rows of indices of tokens.

    The marks have the indices after those of the chunk's distinct tokens.
    """
    tokens = len(chunk.tokens)
    rows = len(chunk.lengths)
    flat = np.concatenate([chunk.ids.astype(np.int64), np.arange(tokens, tokens + len(MARKS))])
    all_rows = Ragged.from_lengths(flat, np.concatenate([chunk.lengths, np.ones(len(MARKS), np.uint32)]))
    history = turn_rows(chunk.links, turns)[kept, ::-1]  # [kept, turns] the oldest first, the question last
    ages = np.arange(history.shape[1])[::-1]
    marks = np.where(history < 0, -1, rows + ages % len(MARKS))
    # [kept, 2 * turns] mark, turn, mark, question; a chunk may keep no pair
    marked = np.stack([marks, history], axis=2).reshape(len(history), 2 * history.shape[1])
    answers = history[:, -1:] + 1
    parts = np.concatenate([marked, answers], axis=1)  # [kept, 2 * turns + 1]
    exists = parts >= 0
    selected = all_rows.select(parts[exists])
    sizes = np.zeros(parts.shape, np.int64)
    sizes[exists] = selected.lengths
    lengths = np.stack([sizes[:, :-1].sum(axis=1), sizes[:, -1]], axis=1)  # [kept, 2]
    return Ragged.from_lengths(selected.joined(), lengths.ravel())


def pair_hashes(texts: Hashes, links: Links, turns: int) -> PairHashes:
    """Return the hashes of a chunk's pairs, with so many turns of history.

    With history, examples are equal if their turns are, too. All pairs of a conversation are one group, named by its
    first turn. texts: [2 * pairs] the hashes of the alternating questions and answers.
    """
    questions = texts[::2]
    answers = texts[1::2]
    pairs = mixed(questions, answers)
    if not turns:
        return PairHashes(questions, answers, pairs, questions, pairs)
    examples = pairs.copy()
    for column in turn_rows(links, turns).T[1:]:
        exists = column >= 0
        examples[exists] = mixed(examples[exists], texts[column[exists]])
    first = np.maximum.accumulate(np.where(links == NEW, np.arange(len(links)), 0))
    return PairHashes(questions, answers, pairs, questions[first], examples)
