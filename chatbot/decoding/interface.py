"""What replies need of a model, of an attempt or an export. It needs no TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, PAD
from chatbot.decoding.automaton import BoundedAutomaton

# The maximum number of tokens of targets in a batch of pairs that are scored, which bounds the memory of their logits.
POSITIONS = 1024
# The question of the anti-language model: the begin symbol alone. It is in no other question, and in no reply, so that
# a model that copies gains nothing by it.
EMPTY_QUESTION = [BOS]
# The message of a UserError.
NOT_FINITE = "no reply has a probability that is a number: the weights are not finite; train it again"

Rows = Sequence[Sequence[int]]  # ids of each
Floats = npt.NDArray[np.float32]
# Whether somebody waits for a search. It is asked every few ids; once it is False, the ids that follow have no meaning.
IsWanted = Callable[[], bool]
# (the questions of each batch, the seeds of their samples, whether it is wanted) -> for each batch padded ids
# [questions, hypotheses, max_length], and the scores of all hypotheses.
Searcher = Callable[
    [Sequence[Rows], Sequence[Sequence[int]], IsWanted], Sequence[tuple[npt.NDArray[np.integer], Floats]]
]


class Model(Protocol):
    """A model that replies, of an attempt or an export. Any thread may call it.

    Its state is of a number of rows, which only the model reads. A row has one hypothesis.
    """

    def encode(self, questions: Rows) -> Any:
        """Return the state before the first token. questions: of each row, at least one id."""

    def step(self, state: Any, last: npt.NDArray[np.int64]) -> tuple[Floats, Any]:
        """Return the logits of the next ids, [rows, vocabulary], and the state after the last ones. last: [rows]."""

    def take(self, states: Sequence[Any], rows: npt.NDArray[np.int64]) -> Any:
        """Return the state of some rows, in this order; a row may be taken several times.

        states: one or two. rows: numbers of those of the first state and of the second behind them.
        """

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """Return the search of decoding settings, but for their seed."""

    def attention(self, question: Sequence[int], reply: Sequence[int]) -> Floats:
        """Return the weights of a question's ids at each id of a reply and at its end, [reply + 1, question].

        The model must have attention.
        """

    def log_probabilities(self, sources: Rows, targets: Rows, begin: int) -> Floats:
        """Return log P(target | source) of each pair in nats, the end symbol included and n-grams left out: [pairs].

        sources, targets: of a batch of at least one pair, without begin and end symbols, at least one id each. begin:
        BOS for replies to questions, ASK for questions to replies.
        """


def log_probabilities(model: Model, sources: Rows, targets: Rows, begin: int, is_wanted: IsWanted) -> Floats:
    """Return `Model.log_probabilities` of any number of pairs, computed in batches; any once they are not wanted.

    Pairs with the same source should follow one another: a batch encodes each of its sources once.
    """
    values = np.zeros(len(sources), np.float32)
    first = 0
    begins = np.cumsum([0, *(len(target) + 1 for target in targets)])  # the tokens before each target, and all
    while first < len(sources) and is_wanted():
        end = int(np.searchsorted(begins, begins[first] + POSITIONS, side="right")) - 1
        part = slice(first, max(first + 1, end))
        values[part] = model.log_probabilities(sources[part], targets[part], begin)
        first = part.stop
    return values


def distinct(rows: Rows) -> tuple[list[Sequence[int]], npt.NDArray[np.int64]]:
    """Return the distinct rows in order of their first occurrence, and the number of each row among them, [rows]."""
    numbers: dict[tuple[int, ...], int] = {}
    of_rows = [numbers.setdefault(tuple(row), len(numbers)) for row in rows]
    return [*numbers], np.array(of_rows, np.int64)


def prefix_numbers(rows: Sequence[int], targets: Rows) -> list[list[int]]:
    """Return for each place of each target, and for its end, a number that places after the same ids of one row share.

    rows: the number of each target's row. No number is 0.
    """
    numbers: dict[tuple[int, int], int] = {}
    of_targets = []
    for row, target in zip(rows, targets, strict=True):
        of_places = [numbers.setdefault((-1 - row, 0), 1 + len(numbers))]
        for token in target:
            of_places.append(numbers.setdefault((of_places[-1], token), 1 + len(numbers)))
        of_targets.append(of_places)
    return of_targets


def padded(rows: Rows, width: int = 0) -> npt.NDArray[np.int32]:
    """Return rows of ids as an array, with PAD on the right. width: the least number of columns."""
    ids = np.full((len(rows), max(width, *map(len, rows))), PAD, np.int32)
    for of_row, row in zip(ids, rows, strict=True):
        of_row[: len(row)] = row
    return ids
