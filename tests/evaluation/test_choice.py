"""The choice among ten replies: scores against a slow twin, the others, and models whose choice is known."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from chatbot.attempts.trained import Trained
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import ASK, BOS, BYTES, Vocabulary
from chatbot.decoding.interface import Model
from chatbot.evaluation import choice
from chatbot.evaluation.choice import QUESTION_WEIGHT, choice_shares, others, scores_of
from chatbot.evaluation.measures import Sample
from chatbot.flags import compose
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.new_model import build_model
from tests.oracle import likelihood
from tests.tiny_models import enlarge, next_id_of

# Twelve topics of ten pairs: the questions of a topic share two characters, those of two topics none.
TOPICS = {"天气": "雨", "吃饭": "饺", "电影": "看", "学校": "课", "足球": "踢", "旅行": "山"}
TOPICS |= {"唱歌": "曲", "睡觉": "梦", "工作": "忙", "猫狗": "爱", "衣服": "穿", "手机": "贵"}
PAIRS = [
    (f"{asked}{chr(0x9000 + 10 * topic + i)}", f"{said}{chr(0x8000 + i)}")
    for topic, (asked, said) in enumerate(TOPICS.items())
    for i in range(10)
]
VOCABULARY = Vocabulary([*dict.fromkeys("".join(q + a for q, a in PAIRS)), *BYTES])
SAMPLES = [Sample(VOCABULARY.ids(q), q, a) for q, a in PAIRS]
# The log-probability of a token by the texts of the question and the reply.
Likelihood = Callable[[str, str], float]


def trained(both_directions: str = "off", model: Seq2Seq | None = None) -> Trained:
    settings = compose(Settings, rnn_size=8, embedding_size=6, max_length=2, both_directions=both_directions)
    return Trained(settings, VOCABULARY, cast(Seq2Seq, model), 0)


class Texts:
    """A `Model` that scores texts. The question of a reply after any is empty."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood = likelihood

    def log_probabilities(self, sources: Any, targets: Any, begin: int) -> npt.NDArray[np.float32]:
        texts = ([VOCABULARY.text(ids) for ids in rows] for rows in (sources, targets))
        return np.array([(len(t) + 1) * self._likelihood(s, t) for s, t in zip(*texts, strict=True)], np.float32)


def shares(likelihood: Likelihood, samples: list[Sample] = SAMPLES) -> list[float | None]:
    model = cast(Model, Texts(likelihood))
    return [*choice_shares(trained(), model, samples, list).values()]


def test_model_that_knows_only_the_topic() -> None:
    """It is as good as one that knows nothing where all ten replies are of the topic."""
    assert shares(lambda question, reply: 0.0) == [0.0, 0.0]  # no reply is better than the others
    random, nearest = shares(lambda question, reply: float(TOPICS.get(question) == reply[0]))
    assert random == pytest.approx(0.48, abs=0.15)  # none of nine others is of the topic: (1 - 9/119) ** 9
    assert nearest == 0.0


def test_model_that_knows_the_whole_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that are usual after any question are not chosen for that."""
    answers = dict(PAIRS)
    whole = compose(Settings, max_length=3)
    usual = {answer: 50.0 * (number % 3) for number, (_, answer) in enumerate(PAIRS)}
    model = cast(Model, Texts(lambda question, reply: (answers.get(question) == reply) + usual[reply]))
    knowing = Trained(whole, VOCABULARY, cast(Seq2Seq, None), 0)
    assert choice_shares(knowing, model, SAMPLES, list) == {"choice_random_at_1": 1.0, "choice_nearest_at_1": 1.0}
    monkeypatch.setattr(choice, "MAX_PAIRS", 11)
    assert set(choice_shares(knowing, model, SAMPLES, list).values()) == {1.0}
    monkeypatch.setattr(choice, "MAX_PAIRS", 9)
    assert set(choice_shares(knowing, model, SAMPLES, list).values()) == {None}


def test_fewer_than_ten_different_replies_are_no_choice() -> None:
    for samples in ([], SAMPLES[:9] * 2, [sample._replace(answer="好") for sample in SAMPLES]):
        assert shares(lambda question, reply: 0.0, samples) == [None, None]


def test_others_are_the_first_that_differ() -> None:
    samples = [*SAMPLES[:3], SAMPLES[0]._replace(answer="别"), SAMPLES[0]._replace(question="别"), *SAMPLES[3:20]]
    assert others(samples, 0, range(22)) == [1, 2, *range(5, 12)]  # not 3, the same question, nor 4, the same reply
    assert others(samples, 1, [21, *range(22), 20]) == [21, 0, 2, 3, *range(5, 10)]  # not 4, whose reply is there
    assert others(samples, 1, range(4)) == [0, 2, 3]


def test_scores_equal_slow_twin() -> None:
    """Questions are cut to max_length, but not where they are predicted, by a model that learned both directions."""
    model = build_model(trained().settings.model, len(VOCABULARY), seed=3)
    enlarge(model)
    next_id = next_id_of(model)

    def per_token(source: list[int], target: list[int], begin: int = BOS) -> float:
        return likelihood(next_id, source, target, begin) / (len(target) + 1)

    rows = np.array([[4, *range(15, 24)], [2, *range(9)]])
    of_both, of_one = (
        scores_of(trained(both, model), TensorFlowModel(model), SAMPLES, list, rows) for both in ("on", "off")
    )
    for i, row in enumerate(rows.tolist()):
        question = SAMPLES[row[0]].ids
        for j, pair in enumerate(row):
            reply = VOCABULARY.ids(SAMPLES[pair].answer)
            expected = per_token(question[:2], reply) - per_token([BOS], reply)
            assert of_one[i, j] == pytest.approx(expected, abs=1e-4)
            expected += QUESTION_WEIGHT * per_token(reply, question, ASK)
            assert of_both[i, j] == pytest.approx(expected, abs=1e-4)
