"""The interface of models for inference. Trained and exported models implement it. TensorFlow is not required."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, PAD
from chatbot.decoding.array_functions import Floats, Ids
from chatbot.decoding.automaton import BoundedAutomaton

# The maximum number of target tokens in a batch of scored pairs, which limits the memory of the logits.
POSITIONS = 1024
# The question that --anti-lm uses as an empty question. A model that copies cannot copy BOS into a reply.
EMPTY_QUESTION = [BOS]
# The error message if weights are NaN or infinite.
NOT_FINITE = "no reply has a probability that is a number: the weights are not finite; train it again"

IdRows = Sequence[Sequence[int]]  # token ids of each row
# A callback that returns False once the result of a search is no longer needed. A search calls it every few tokens.
IsWanted = Callable[[], bool]
# A searcher is a search function. Its arguments are several batches of questions and seeds, and a callback. For each
# batch, it returns padded ids [questions, hypotheses, max_length] and scores [questions, hypotheses] of replies.
Searcher = Callable[
    [Sequence[IdRows], Sequence[Sequence[int]], IsWanted], Sequence[tuple[npt.NDArray[np.integer], Floats]]
]


class Model(Protocol):
    """A model that generates replies. All methods are thread-safe.

    A state contains several rows, one per hypothesis. Callers must treat the state as opaque.
    """

    def encode(self, questions: IdRows) -> Any:
        """Encode questions, and return the state before the first token of the replies. No question may be empty."""

    def step(self, state: Any, last: Ids) -> tuple[Floats, Any]:
        """Return the logits of the next token of each row.

        Args:
            state: The current state of all rows.
            last: The last token of each row, with shape [rows].

        Returns:
            The logits, with shape [rows, vocabulary], and the next state.
        """

    def take(self, states: Sequence[Any], rows: Ids) -> Any:
        """Select rows from one or two states, in the given order.

        Args:
            states: One or two states.
            rows: The indices of the selected rows, which can be repeated. The rows of the second state are numbered
                after those of the first.
        """

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """Return a search function for the given decoding settings. Their seed is ignored; each call gets its seeds."""

    def attention(self, questions: IdRows, replies: IdRows) -> list[Floats]:
        """Return the attention weights for a batch of pairs. The model must have attention.

        Args:
            questions: The token ids of at least one non-empty question.
            replies: The token ids of the reply to each question, without EOS.

        Returns:
            The weights of each pair, with shape [reply + 1, question]. The last row belongs to EOS.
        """

    def log_probabilities(self, sources: IdRows, targets: IdRows, begin: int) -> Floats:
        """Return log P(target | source) of each pair in nats, with shape [pairs].

        The log-probability includes EOS. N-grams are not used.

        Args:
            sources: The token ids of at least one non-empty source.
            targets: The token ids of each target, without BOS and EOS.
            begin: BOS if the targets are replies, ASK if the targets are questions.
        """


def score_pairs(model: Model, sources: IdRows, targets: IdRows, begin: int, is_wanted: IsWanted) -> Floats:
    """Compute `Model.log_probabilities` in batches for any number of pairs.

    Pairs with the same source should be adjacent, because each source is encoded once per batch.

    Args:
        model: The model.
        sources: The token ids of each source.
        targets: The token ids of each target.
        begin: BOS if the targets are replies, ASK if the targets are questions.
        is_wanted: A callback that is called before each batch. If it returns False, the remaining results are 0.
    """
    values = np.zeros(len(sources), np.float32)
    first = 0
    offsets = np.cumsum([0, *(len(target) + 1 for target in targets)])  # total target tokens before each pair
    while first < len(sources) and is_wanted():
        end = int(np.searchsorted(offsets, offsets[first] + POSITIONS, side="right")) - 1
        batch = slice(first, max(first + 1, end))
        values[batch] = model.log_probabilities(sources[batch], targets[batch], begin)
        first = batch.stop
    return values


def distinct_rows(rows: IdRows) -> tuple[list[Sequence[int]], Ids]:
    """Return the distinct rows in order of first occurrence, and the index of each original row among them, [rows]."""
    numbers: dict[tuple[int, ...], int] = {}
    indices = [numbers.setdefault(tuple(row), len(numbers)) for row in rows]
    return [*numbers], np.array(indices, np.int64)


def number_prefixes(rows: Sequence[int], targets: IdRows) -> list[list[int]]:
    """Number all prefixes of each target, from the empty prefix to the whole target.

    Two prefixes get the same number if and only if their tokens and their rows are equal. Numbers start at 1.

    Args:
        rows: The row of each target.
        targets: The token ids of each target.
    """
    numbers: dict[tuple[int, int], int] = {}
    result = []
    for row, target in zip(rows, targets, strict=True):
        prefixes = [numbers.setdefault((-1 - row, 0), 1 + len(numbers))]
        for token in target:
            prefixes.append(numbers.setdefault((prefixes[-1], token), 1 + len(numbers)))
        result.append(prefixes)
    return result


def pad_rows(rows: IdRows, width: int = 0) -> npt.NDArray[np.int32]:
    """Convert rows of ids to an array with at least `width` columns, padded on the right with PAD."""
    ids = np.full((len(rows), max(width, *map(len, rows))), PAD, np.int32)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    return ids
