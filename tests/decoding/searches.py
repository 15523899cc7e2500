"""Searches over a vocabulary of letters, where a table gives the logits of each letter after another.

Each runs twice: in a graph of TensorFlow, and on arrays of NumPy as an export does.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS, PAD
from chatbot.decoding.array_functions import functions_of
from chatbot.decoding.automaton import Automaton, BoundedAutomaton
from chatbot.decoding.graph_search import search_all
from chatbot.decoding.search import new_search, search_arrays

Array = npt.NDArray[Any]
LETTERS = "_^$?abc"  # padding, begin, end, unknown, then the alphabet
assert [LETTERS[i] for i in (PAD, BOS, EOS)] == ["_", "^", "$"]
LOW = -1e9
ATTENTION = np.random.default_rng(5).dirichlet([0.3] * 3, len(LETTERS)).astype(np.float32)  # by the last letter


def automaton(following: Sequence[Mapping[str, int]]) -> Automaton:
    """The automaton with these states: the state after each letter that may follow."""
    allowed = np.zeros((len(following), len(LETTERS)), np.bool_)
    next_states = np.zeros(allowed.shape, np.int32)
    for state, letters in enumerate(following):
        for letter, next_state in letters.items():
            allowed[state, LETTERS.index(letter)] = True
            next_states[state, LETTERS.index(letter)] = next_state
    return Automaton(allowed, next_states)


ANY_WORD = automaton([dict.fromkeys("abc$", 0)])
# As a character in bytes: each b is followed by two or three letters.
SPELLING = automaton([{"a": 0, "b": 1, "$": 0}, {"c": 2, "a": 3}, {"a": 0, "c": 0}, {"a": 2}])
SPELLED = "(a|bc[ac]|baa[ac])+"


def table(probabilities: dict[str, dict[str, float]]) -> Array:
    """[letters, letters] logits of the next letter after each letter."""
    logits = np.full((len(LETTERS), len(LETTERS)), LOW, np.float32)
    for last, following in probabilities.items():
        for letter, probability in following.items():
            logits[LETTERS.index(last), LETTERS.index(letter)] = np.log(probability)
    return logits


def random_table(seed: int) -> Array:
    """[letters, letters] random logits, also of special letters."""
    return np.random.default_rng(seed).normal(0, 2, (len(LETTERS), len(LETTERS))).astype(np.float32)


@dataclasses.dataclass
class Tables:
    """A model of tables. Its state is the number that the ids of a hypothesis spell, on which the logits depend a bit.

    logits: by the last letter. generic: those without the question. before: what the state of each row begins with.
    """

    logits: Array
    generic: Array | None = None
    before: Array | None = None  # [rows] int64; None: the logits depend on the last letter alone

    def logits_of(self, last: Array, state: Array) -> Array:
        """[hypotheses, letters], for arrays and tensors. state: with the last letter."""
        if self.before is None:
            return tf.gather(self.logits, last) if isinstance(last, tf.Tensor) else self.logits[last]
        before_last = state // 10 % 10
        if isinstance(last, tf.Tensor):
            of_state = tf.cast(before_last, tf.float32)[:, None] * np.arange(len(LETTERS), dtype=np.float32)
            return tf.gather(self.logits, last) + 0.1 * of_state
        return (self.logits[last] + 0.1 * before_last[:, None] * np.arange(len(LETTERS))).astype(np.float32)

    def starts(self, rows: int) -> Array:
        """The state of each row before the begin symbol."""
        return np.zeros(rows, np.int64) if self.before is None else self.before


def step_of(tables: Tables, functions: Any) -> Any:
    """The step of the model. Its question has three places, to which `ATTENTION` is paid."""

    def step(state: dict[str, Any], last: Any) -> tuple[Any, dict[str, Any]]:
        if "generic" in state:
            return functions.rows(tables.generic, last), state
        cells = state["cells"] * 10 + last
        state = {**state, "cells": cells}
        if "attention_sums" in state:
            state["attention_sums"] = state["attention_sums"] + functions.rows(ATTENTION, last)
        return tables.logits_of(last, cells), state

    return step


def search_of(tables: Tables, decoding: DecodingSettings, words: BoundedAutomaton, begins: Any, uniform: Any) -> Any:
    """The search of rows that begin with these cells, arrays or tensors."""
    functions = functions_of(begins)

    def state(cells: Any, is_generic: bool) -> dict[str, Any]:
        mask = functions.float32(functions.column(cells, 1)) * np.ones(3, np.float32)
        return {"cells": cells, "mask": mask, **({"generic": mask} if is_generic else {})}

    return new_search(
        decoding,
        words,
        step_of(tables, functions),
        state(begins, False),
        state(begins[:1], True) if decoding.anti_lm else None,
        uniform,
    )


def found_by_arrays(
    tables: Tables, decoding: DecodingSettings, words: BoundedAutomaton, rows: int, uniform: Array | None
) -> tuple[Array, Array]:
    """The ids [rows, hypotheses, max_length] and scores [rows, hypotheses] on arrays of NumPy."""
    with np.errstate(all="ignore"):
        search, start = search_of(tables, decoding, words, tables.starts(rows), uniform)
        return search_arrays(search, start, lambda: True)


GRAPHS: dict[tuple[Any, ...], Any] = {}


def found_by_graph(
    tables: Tables,
    decoding: DecodingSettings,
    words: Automaton,
    length: int,
    rows: int,
    uniform: Array | None,
    check_interval: int = 1,
) -> tuple[Array, Array]:
    """The same in a graph of TensorFlow, which is traced once for all tables and random numbers."""

    def searched(
        logits: Any, generic: Any, before: Any, begins: tf.Tensor, uniform: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        bounded = BoundedAutomaton(words, length)
        search, start = search_of(Tables(logits, generic, before), decoding, bounded, begins, uniform)
        return search_all(search, start, check_interval)

    arrays = tables.logits, tables.generic, tables.before, tables.starts(rows), uniform
    following = words.allowed.tobytes(), words.next_states.tobytes()
    key = repr(decoding), *following, length, check_interval, *(x is None for x in arrays)
    if key not in GRAPHS:
        specs = (None if x is None else tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in arrays)
        GRAPHS[key] = tf.function(searched, autograph=False).get_concrete_function(*specs)
    ids, scores = GRAPHS[key](*(None if x is None else tf.constant(x) for x in arrays))
    return ids.numpy(), scores.numpy()


def found(
    logits: Array | Tables,
    decoding: DecodingSettings,
    length: int,
    rows: int = 1,
    words: Automaton = ANY_WORD,
    uniform: Array | None = None,
) -> tuple[list[list[str]], Array]:
    """The texts and scores of the hypotheses of each row, which are the same in a graph and on arrays."""
    tables = logits if isinstance(logits, Tables) else Tables(logits)
    ids, scores = found_by_graph(tables, decoding, words, length, rows, uniform)
    other_ids, other_scores = found_by_arrays(tables, decoding, BoundedAutomaton(words, length), rows, uniform)
    np.testing.assert_allclose(other_scores, scores, rtol=1e-4, atol=1e-5)
    assert ids.shape == (rows, decoding.beams, length)
    texts, others = ([[spelled(hypothesis) for hypothesis in row] for row in x] for x in (ids, other_ids))
    for row, other, of_row in zip(texts, others, scores, strict=True):
        number = np.isfinite(of_row).sum()
        assert {*row[:number]} == {*other[:number]}  # equal scores may be in any order
    return texts, scores


def spelled(ids: Array) -> str:
    """The letters of one hypothesis."""
    return "".join(LETTERS[i] for i in ids)


def word_score(logits: Array, word: str, words: Sequence[str]) -> float:
    """The log-probability of one of these words, one letter at a time, in float64."""
    total, last = 0.0, "^"
    for position, letter in enumerate(word):
        allowed = {other[position] for other in words if other[:position] == word[:position] and other[position:]}
        row = {x: float(logits[LETTERS.index(last), LETTERS.index(x)]) for x in allowed}
        total += row[letter] - np.log(sum(np.exp(x) for x in row.values()))
        last = letter
    return total


def all_words(length: int, pattern: str = "[abc]+") -> list[str]:
    """All words that a search of this length can generate, if the automaton is this regular expression."""
    words = ["".join(word) for n in range(1, length + 1) for word in itertools.product("abc", repeat=n)]
    return [word + "$" * (len(word) < length) for word in words if re.fullmatch(pattern, word)]
