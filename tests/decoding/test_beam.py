"""Beam search with processors, a coverage penalty and groups, against a loop over lists of hypotheses."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS
from tests.decoding.searches import ATTENTION, LETTERS, Tables, found, random_table, spelled


@dataclasses.dataclass
class Hypothesis:
    """A hypothesis of the plain search."""

    ids: list[int]
    log_prob: float = 0.0
    attention: Any = 0.0

    @property
    def finished(self) -> bool:
        return bool(self.ids) and self.ids[-1] == EOS

    def score(self, decoding: DecodingSettings) -> float:
        normalised = self.log_prob / ((5 + len(self.ids)) / 6) ** decoding.length_penalty
        return normalised + decoding.coverage_penalty * float(np.log(np.clip(self.attention, 1e-9, 1)).sum())


def letter_scores(logits: np.ndarray, generic: np.ndarray, hypothesis: Hypothesis) -> dict[int, float]:
    """The log-probability of each letter that may follow: repetition penalty 2, anti-language model, 2 letters."""
    last = hypothesis.ids[-1] if hypothesis.ids else BOS
    letters = [LETTERS.index(letter) for letter in ("abc$" if hypothesis.ids else "abc")]
    total = np.log(sum(np.exp(logits[last, i]) for i in letters))
    scores = {i: float(logits[last, i] - total) * (2 if i in hypothesis.ids else 1) for i in letters}
    if len(hypothesis.ids) < 2:
        for i in letters:
            scores[i] -= 0.3 * float(generic[last, i] - np.log(np.exp(generic[last]).sum()))
        scores.pop(EOS, None)
    return scores


def plain_beams(
    logits: np.ndarray, generic: np.ndarray, length: int, decoding: DecodingSettings
) -> list[tuple[str, float]]:
    """The text and score of each hypothesis, the best first."""
    beams = [[Hypothesis([])] for _ in range(decoding.diverse_groups)]
    for position in range(length):
        chosen: list[int] = []
        for group, hypotheses in enumerate(beams):
            continued: list[tuple[float, Hypothesis]] = []
            for old in hypotheses:
                if old.finished:
                    continued.append((old.score(decoding), old))
                    continue
                last = old.ids[-1] if old.ids else BOS
                for i, score in letter_scores(logits, generic, old).items():
                    new = Hypothesis([*old.ids, i], old.log_prob + score, old.attention + ATTENTION[last])
                    lost = 0.7 * chosen.count(i) / ((5 + len(new.ids)) / 6) ** decoding.length_penalty
                    continued.append((new.score(decoding) - lost, new))
            continued.sort(key=lambda item: -item[0])
            beams[group] = [new for _, new in continued[: decoding.beams // decoding.diverse_groups]]
            chosen += [new.ids[-1] for new in beams[group] if len(new.ids) > position]
    all_found = [hypothesis for group in beams for hypothesis in group]
    scored = [(spelled(np.array(h.ids)).ljust(length, "_"), h.score(decoding)) for h in all_found]
    return sorted(scored, key=lambda item: -item[1])


@pytest.mark.parametrize(
    ("groups", "penalty", "coverage"), [(1, 0.0, 0.0), (1, 1.0, 0.4), (2, 1.0, 0.4), (3, 0.5, 0.0), (6, 0.0, 0.4)]
)
def test_beams_equal_a_plain_search(groups: int, penalty: float, coverage: float) -> None:
    diversity: dict[str, Any] = {"diverse_groups": groups, "diversity": 0.7} if groups > 1 else {}
    decoding = DecodingSettings(
        beam_size=6, length_penalty=penalty, coverage_penalty=coverage, repetition_penalty=2.0, anti_lm=0.3,
        anti_lm_tokens=2, min_reply_length=2, **diversity,
    )  # fmt: skip
    plain, length, different = DecodingSettings(beam_size=6, length_penalty=penalty), 5, 0
    for seed in range(6):
        logits, generic = random_table(seed), random_table(seed + 100)
        expected = plain_beams(logits, generic, length, decoding)
        rows, scores = found(Tables(logits, generic), decoding, length, rows=2)
        for words, row_scores in zip(rows, scores, strict=True):
            assert words == [word for word, _ in expected]
            np.testing.assert_allclose(row_scores, [score for _, score in expected], rtol=1e-4, atol=1e-5)
        different += expected != plain_beams(logits, generic, length, plain)
    assert (different > 0) == (groups > 1 or coverage > 0)
