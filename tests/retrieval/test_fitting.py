"""How replies are judged, fitted to an attempt: against slow twins, and what it finds in made-up pairs."""

import random
from pathlib import Path

import numpy as np
import pytest

from chatbot.retrieval.fitting import ANSWERED_FRACTION, MIN_QUESTIONS, OTHERS, PRIOR, SCALE, fit_judge, fit_weights
from chatbot.retrieval.index import JUDGE, MEANING, Retrieval
from chatbot.retrieval.indexing import index_by_meaning
from chatbot.retrieval.judge import BY_CHARACTERS, BY_MEANING, FEATURES, WITHOUT_MODEL, Judge
from chatbot.retrieval.vectors import MeaningWriter
from tests.oracle import likelihood
from tests.retrieval.test_index import PAIRS, written
from tests.retrieval.test_vectors import use_groups
from tests.tiny_models import Table

GROUPS = np.random.default_rng(1).standard_normal([40, 5, len(FEATURES)])
GROUPS[..., 0] = 0  # does not vary
GROUPS[..., 2] *= 0.01


def objective(weights: dict[str, float]) -> float:
    """The log-probability of the first replies, and of the weights by the prior, written out."""
    total = 0.0
    for group in GROUPS:
        scores = [sum(weights[name] * x for name, x in zip(FEATURES, row, strict=True)) / SCALE for row in group]
        total += scores[0] - np.log(np.exp(scores).sum())
    for place, name in enumerate(FEATURES):
        moved = (weights[name] - BY_MEANING[name]) * GROUPS[..., place].std() / SCALE
        total -= PRIOR / 2 * moved**2
    return total


def test_fitted_weights_are_the_most_probable() -> None:
    weights = fit_weights(GROUPS, BY_MEANING)
    best = objective(weights)
    assert weights["similarity"] == BY_MEANING["similarity"]
    assert best > objective(BY_MEANING)
    for place, name in enumerate(FEATURES[1:], start=1):
        for step in (-0.05, 0.05):
            step = step * SCALE / GROUPS[..., place].std()
            assert objective({**weights, name: weights[name] + step}) < best
            nearer = {**weights, name: weights[name] + step / 50}
            assert best - objective(nearer) < 1e-4 * PRIOR


def made_up(seed: int, number: int) -> list[tuple[str, str]]:
    """Pairs whose replies have a character of their question."""
    drawn = random.Random(seed)
    texts = ["".join(drawn.sample("甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未", 3)) for _ in range(number)]
    return [(text, text[0] + drawn.choice("好是不了吗呢")) for text in texts]


def index_of(folder: Path, pairs: list[tuple[str, str]], validated: bool = True) -> Retrieval:
    """An index of pairs by characters and by meaning, of an attempt with or without validation."""
    return Retrieval(folder, written(folder, pairs, validated=validated))


def test_the_judge_of_an_attempt_is_fitted_with_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its features are those of slow twins. By characters alone, or with few pairs, the weights are the constants."""
    use_groups(monkeypatch)
    folder = tmp_path / "index"
    retrieval = index_of(folder, made_up(1, 60))
    vocabulary = retrieval._vocabulary
    table = Table(vocabulary=vocabulary)
    held_out = [(vocabulary.ids([*question]), vocabulary.ids([*reply])) for question, reply in made_up(2, 60)]
    fit_judge(folder, vocabulary, table, held_out)
    plain = Retrieval(folder, vocabulary)
    assert plain.weights is None
    assert Judge(table, vocabulary, plain).weights.tolist() == [*BY_CHARACTERS.values()]
    index_by_meaning(folder, vocabulary, "e5")
    fit_judge(folder, vocabulary, table, held_out[: OTHERS // 2])
    assert not (folder / JUDGE).exists()
    fit_judge(folder, vocabulary, table, held_out)
    weights = Retrieval(folder, vocabulary).weights
    assert weights is not None
    assert weights["shared"] > BY_MEANING["shared"]
    assert [weights[name] for name in ("similarity", "meaning")] == [20, 20]
    fit_judge(folder, vocabulary, table, held_out[: OTHERS // 2])
    assert Retrieval(folder, vocabulary).weights is None
    judge = Judge(table, vocabulary, Retrieval(folder, vocabulary), BY_MEANING)
    (found,) = judge.features([held_out[0][0]], [held_out[1][1]])
    question, reply = held_out[0][0], held_out[1][1]
    assert found[FEATURES.index("log_probability")] == pytest.approx(
        likelihood(table.next_id, question, reply) / (len(reply) + 1), rel=1e-4
    )
    index_by_meaning(folder, vocabulary, "none")
    assert not (folder / MEANING).exists()


def test_without_validation_the_least_score_keeps_most_right_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each phrasing of several is asked as if it were not there."""
    phrasings = [
        (question + mark, f"答{number}") for number, (question, _) in enumerate(made_up(3, 15)) for mark in "啊呀"
    ]
    folder = tmp_path / "index"
    retrieval = index_of(folder, [*phrasings, *PAIRS[:3]], validated=False)
    fit_judge(folder, retrieval._vocabulary, Table(vocabulary=retrieval._vocabulary), [])
    fitted_to = Retrieval(folder, retrieval._vocabulary)
    assert fitted_to.min_score is not None
    scores = []
    for number, (question, reply) in enumerate(phrasings):
        (found,) = retrieval.nearest([question], OTHERS, {number})
        best = max(
            found, key=lambda one: WITHOUT_MODEL["similarity"] * one.similarity + WITHOUT_MODEL["shared"] * one.shared
        )
        if best.pair.reply == reply:
            scores.append(WITHOUT_MODEL["similarity"] * best.similarity + WITHOUT_MODEL["shared"] * best.shared)
    assert len(scores) >= MIN_QUESTIONS
    assert fitted_to.min_score == pytest.approx(np.quantile(scores, 1 - ANSWERED_FRACTION))
    use_groups(monkeypatch)
    index_by_meaning(folder, retrieval._vocabulary, "e5")
    fit_judge(folder, retrieval._vocabulary, Table(vocabulary=retrieval._vocabulary), [])
    assert Retrieval(folder, retrieval._vocabulary).min_score != fitted_to.min_score
    assert Retrieval(folder, retrieval._vocabulary, reads_meaning=False).min_score == fitted_to.min_score
    few = index_of(tmp_path / "few", PAIRS[:3], validated=False)
    fit_judge(tmp_path / "few", few._vocabulary, Table(vocabulary=few._vocabulary), [])
    assert Retrieval(tmp_path / "few", few._vocabulary).min_score is None
    MeaningWriter(tmp_path / "few" / MEANING, "e5", few.texts(), few.key).write()
    assert Retrieval(tmp_path / "few", few._vocabulary).meaning is not None
