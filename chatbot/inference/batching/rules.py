"""The choice of the next ids of rows that have the same decoding settings."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.processors import Prefix, processed
from chatbot.decoding.sampling import picked
from chatbot.inference.ranking import check_decoding, for_attempt, reply_automaton

# The number of logits that fit into a core's cache: rows are computed in parts of that size.
PART = 1 << 16

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Unfinished replies, before the next id. The first dimension is the row."""

    ids: Ids  # [rows, max_length], padded
    positions: Ids  # the number of ids
    last: Ids  # the last id, or the begin symbol
    states: Ids  # of the automaton
    uniform: Floats  # [rows, max_length], for sampling

    def of(self, rows: Any) -> "Rows":
        """Return some of the rows. rows: any index of an array."""
        ids, positions, last, states, uniform = self
        return Rows(ids[rows], positions[rows], last[rows], states[rows], uniform[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Rules:
    """Chooses the next ids of rows by decoding settings of one reply."""

    decoding: DecodingSettings
    automaton: BoundedAutomaton

    @property
    def generic_tokens(self) -> int:
        """The number of ids for which the distribution without the question is needed."""
        return self.decoding.anti_lm_tokens if self.decoding.anti_lm else 0

    def choose(self, logits: Floats, rows: Rows, generic: Floats | None) -> tuple[Ids, Ids]:
        """Return the next ids, and the states of the automaton after them: [rows] both.

        logits: [rows, vocabulary]. generic: those without the question, for --anti-lm, in that shape; 0 for rows that
        do not need them. None: no row does.
        """
        size = max(1, PART // logits.shape[1])
        ids = np.empty(len(logits), np.int64)
        for start in range(0, len(logits), size):
            part = slice(start, start + size)
            ids[part] = self._chosen(logits[part], rows.of(part), None if generic is None else generic[part])
        return ids, self.automaton.states_after(rows.states, ids)

    def _chosen(self, logits: Floats, rows: Rows, generic: Floats | None) -> Ids:
        log_probs = self.automaton.allowed_logits(logits, rows.states, rows.positions)
        if self.decoding.repetition_penalty != 1:  # nothing else needs them to be normalised
            log_probs = NumpyFunctions.log_softmax(log_probs)
        log_probs = processed(self.decoding, log_probs, Prefix(rows.positions[:, None], rows.ids), generic)
        uniform = np.take_along_axis(rows.uniform, rows.positions[:, None], axis=1) if self.decoding.samples else None
        chosen: Ids = picked(self.decoding, log_probs, uniform)
        return chosen


class RuleBook:
    """Makes the rules of decoding settings, and keeps the last ones. settings: of the model's attempt."""

    def __init__(self, vocabulary: Vocabulary, settings: Settings) -> None:
        self._vocabulary, self._settings = vocabulary, settings
        self._made = functools.lru_cache(maxsize=64)(self._make)
        self._of_all_rows = functools.lru_cache(maxsize=64)(_of_all_rows)
        self._automaton_of = functools.lru_cache(maxsize=4)(self._make_automaton)

    def rules_of(self, decoding: DecodingSettings) -> Rules:
        """Return the rules. Raises UserError for settings that the model does not admit."""
        return self._made(self._of_all_rows(decoding))

    def _make(self, decoding: DecodingSettings) -> Rules:
        if decoding.hypotheses > 1:
            raise ValueError("the settings of a question find one reply; several are the search of the engine")
        decoding = for_attempt(decoding, self._settings)
        check_decoding(decoding, self._vocabulary, self._settings.model)
        return Rules(decoding, self._automaton_of(decoding.ban))

    def _make_automaton(self, ban: tuple[str, ...]) -> BoundedAutomaton:
        length = self._settings.model.max_length
        return reply_automaton(DecodingSettings(ban=ban), self._vocabulary, length)


def _of_all_rows(decoding: DecodingSettings) -> DecodingSettings:
    """Leave out what a row has of its own, so that more rows are computed together."""
    return dataclasses.replace(decoding, seed=DecodingSettings.seed, stop=())
