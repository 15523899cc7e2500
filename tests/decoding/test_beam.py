"""Beam search with processors, a bonus and groups, against a loop over lists of hypotheses."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.decoding.beam import beam_search
from chatbot.decoding.processor import Processor
from chatbot.decoding.processors.anti_lm import anti_lm
from chatbot.decoding.processors.min_length import min_length
from chatbot.decoding.processors.repetition_penalty import repetition_penalty
from tests.decoding.test_search import ANY_WORD, LETTERS, SPECIAL_IDS, random_table, spelled, step_of

END = SPECIAL_IDS.end
ATTENTION = np.random.default_rng(5).dirichlet([0.3] * 3, len(LETTERS)).astype(np.float32)  # by the last letter
COVERAGE = 0.4


def step(logits: np.ndarray, state: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The logits of a table. The state is the sum of attention over three places, [hypotheses, 3]."""
    return tf.gather(logits, ids), state + tf.gather(ATTENTION, ids)


def coverage(state: tf.Tensor) -> tf.Tensor:
    """The coverage penalty of Wu et al. (2016)."""
    return COVERAGE * tf.reduce_sum(tf.math.log(tf.clip_by_value(state, 1e-9, 1.0)), axis=-1)


@dataclasses.dataclass
class Hypothesis:
    """A hypothesis of the plain search."""

    ids: list[int]
    log_prob: float = 0.0
    attention: Any = 0.0

    @property
    def finished(self) -> bool:
        return bool(self.ids) and self.ids[-1] == END

    def score(self, penalty: float, covered: bool) -> float:
        normalised = self.log_prob / ((5 + len(self.ids)) / 6) ** penalty
        return normalised + covered * COVERAGE * float(np.log(np.clip(self.attention, 1e-9, 1)).sum())


def letter_scores(logits: np.ndarray, generic: np.ndarray, hypothesis: Hypothesis) -> dict[int, float]:
    """The log-probability of each letter that may follow: repetition penalty 2, anti-language model, 2 letters."""
    last = hypothesis.ids[-1] if hypothesis.ids else SPECIAL_IDS.begin
    letters = [LETTERS.index(letter) for letter in ("abc$" if hypothesis.ids else "abc")]
    total = np.log(sum(np.exp(logits[last, i]) for i in letters))
    scores = {i: float(logits[last, i] - total) * (2 if i in hypothesis.ids else 1) for i in letters}
    if len(hypothesis.ids) < 2:
        for i in letters:
            scores[i] -= 0.3 * float(generic[last, i] - np.log(np.exp(generic[last]).sum()))
        scores.pop(END, None)
    return scores


def plain_beams(
    logits: np.ndarray, generic: np.ndarray, length: int, size: int, groups: int, penalty: float, covered: bool
) -> list[tuple[str, float]]:
    """The text and score of each hypothesis, the best first."""
    beams = [[Hypothesis([])] for _ in range(groups)]
    for position in range(length):
        chosen: list[int] = []
        for group, hypotheses in enumerate(beams):
            continued: list[tuple[float, Hypothesis]] = []
            for old in hypotheses:
                if old.finished:
                    continued.append((old.score(penalty, covered), old))
                    continue
                last = old.ids[-1] if old.ids else SPECIAL_IDS.begin
                for i, score in letter_scores(logits, generic, old).items():
                    new = Hypothesis([*old.ids, i], old.log_prob + score, old.attention + ATTENTION[last])
                    lost = 0.7 * chosen.count(i) / ((5 + len(new.ids)) / 6) ** penalty
                    continued.append((new.score(penalty, covered) - lost, new))
            continued.sort(key=lambda item: -item[0])
            beams[group] = [new for _, new in continued[: size // groups]]
            chosen += [new.ids[-1] for new in beams[group] if len(new.ids) > position]
    found = [hypothesis for group in beams for hypothesis in group]
    scored = [(spelled(np.array(h.ids)).ljust(length, "_"), h.score(penalty, covered)) for h in found]
    return sorted(scored, key=lambda item: -item[1])


@pytest.mark.parametrize(
    ("groups", "penalty", "covered"), [(1, 0.0, False), (1, 1.0, True), (2, 1.0, True), (3, 0.5, False), (6, 0.0, True)]
)
def test_beams_equal_a_plain_search(groups: int, penalty: float, covered: bool) -> None:
    length, size = 5, 6

    @tf.function(autograph=False)
    def searched(logits: tf.Tensor, generic: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        processors: list[Processor] = [
            repetition_penalty(2.0),
            anti_lm(step_of(generic), tf.zeros([rows, 1]), 0.3, 2),
            min_length(2, END),
        ]
        return beam_search(
            lambda state, ids: step(logits, state, ids),
            tf.zeros([rows, 3]),
            rows,
            SPECIAL_IDS,
            ANY_WORD,
            length,
            size,
            penalty,
            processors,
            coverage if covered else None,
            groups,
            0.7,
        )

    different = 0
    for seed in range(6):
        logits, generic = random_table(seed), random_table(seed + 100)
        expected = plain_beams(logits, generic, length, size, groups, penalty, covered)
        ids, scores = searched(logits, generic, tf.constant(2))
        for row in range(2):
            assert [spelled(word) for word in ids[row].numpy()] == [word for word, _ in expected]
            np.testing.assert_allclose(scores[row], [score for _, score in expected], rtol=1e-4, atol=1e-5)
        different += expected != plain_beams(logits, generic, length, size, 1, penalty, False)
    assert (different > 0) == (groups > 1 or covered)
