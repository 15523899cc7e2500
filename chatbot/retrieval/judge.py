"""The judge of replies that are looked up: which of them fits a question best. It needs no TensorFlow."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import ASK, BOS, Vocabulary, question_of
from chatbot.decoding.interface import IsWanted, Model, Rows, log_probabilities
from chatbot.errors import UserError
from chatbot.retrieval.index import JUDGE, Retrieval

Floats = npt.NDArray[np.float64]

# What is known of a reply to a question. Of the pair that it was looked up in: the similarity of its question by
# characters, and by meaning. Of the reply itself: its likeness to the question by characters, by meaning, and to the
# replies that follow such questions. By the model, for each token: its log-probability after the question, that by the
# shares of tokens in all replies, and that of the question after the reply.
OF_PAIR = ("similarity", "meaning")
OF_REPLY = ("shared", "shared_meaning", "fit")
OF_MODEL = ("log_probability", "common", "question")
FEATURES = (*OF_PAIR, *OF_REPLY, *OF_MODEL)
# The weights of the features, from readers' ratings of replies (docs/experiments.md): of an attempt without embeddings,
# and of one with them, before they are fitted to it.
BY_CHARACTERS = dict(zip(FEATURES, (10.0, 0.0, 8.0, 0.0, 0.0, 1.0, -0.6, 0.0), strict=True))
BY_MEANING = dict(zip(FEATURES, (20.0, 20.0, 16.0, 20.0, 10.0, 1.0, -0.6, 0.0), strict=True))
# Of an attempt without validation: nobody has measured what its model learned, so that it does not judge.
WITHOUT_MODEL = dict(zip(FEATURES, (1.0, 20.0, 2.0, 20.0, 0.0, 0.0, 0.0, 0.0), strict=True))
# With BY_CHARACTERS, something speaks for a reply that has this score.
LEAST_SCORE = 1.0
# A score is as many times a logarithm of odds, so that fitted weights are as large as those before.
SCALE = 5.0
# How strongly the weights before fitting hold: as so many questions whose features have the standard deviation 1.
PRIOR = 30.0


class Judge:
    """Scores replies to questions by a weighted sum of features. Any thread may use it.

    weights: by name; None: those of the attempt, or those before any are fitted.
    """

    def __init__(
        self, model: Model, vocabulary: Vocabulary, retrieval: Retrieval, weights: Mapping[str, float] | None = None
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._retrieval = retrieval
        by_name = weights or retrieval.weights or start_weights(retrieval)
        if not {*FEATURES} <= by_name.keys():
            raise UserError(f"{JUDGE} of the attempt's index: damaged, or of another version; remove that file")
        self.weights = np.array([by_name[name] for name in FEATURES])
        self.asks_model = any(by_name[name] for name in OF_MODEL)
        self.chooses_common = by_name == BY_CHARACTERS
        self._reads_questions = by_name["question"] != 0

    def of_model(self, questions: Rows, replies: Rows, is_wanted: IsWanted) -> Floats:
        """Return the features of the model for replies to questions, [replies, 3]; any once they are not wanted."""
        sizes = np.array([len(ids) + 1 for ids in replies])
        features = np.zeros([len(replies), len(OF_MODEL)])
        if self.asks_model:
            features[:, 0] = log_probabilities(self._model, questions, replies, BOS, is_wanted) / sizes
            features[:, 1] = [self._retrieval.log_probability(ids) for ids in replies] / sizes
            if self._reads_questions:
                alone = [question_of(ids, self._vocabulary) for ids in questions]
                sizes = np.array([len(ids) + 1 for ids in alone])
                features[:, 2] = log_probabilities(self._model, replies, alone, ASK, is_wanted) / sizes
        return features

    def texts(self, rows: Rows) -> list[str]:
        """Return the texts of replies, or of questions without the turns before them. rows: their ids."""
        return [self._vocabulary.text(question_of(ids, self._vocabulary)) for ids in rows]

    def features(self, questions: Rows, replies: Rows) -> Floats:
        """Return the features of replies, each to its own question, which are in no pair: [replies, features]."""
        of_reply = self._retrieval.likeness(self.texts(questions), self.texts(replies))
        of_pair = np.zeros([len(replies), len(OF_PAIR)])
        return np.concatenate([of_pair, of_reply, self.of_model(questions, replies, lambda: True)], axis=1)


def start_weights(retrieval: Retrieval) -> dict[str, float]:
    """Return the weights of the features before any are fitted."""
    if not retrieval.is_validated:
        return WITHOUT_MODEL
    return BY_CHARACTERS if retrieval.meaning is None else BY_MEANING


def fitted(groups: Floats, weights: Mapping[str, float]) -> dict[str, float]:
    """Return weights with which the first reply of each group has the best score, as far as the others admit it.

    It is the most probable conditional logit with a normal prior at the given weights. groups: the features of replies
    to one question, [groups, replies, features]. Features that do not vary keep their weights.
    """
    scales = groups.std(axis=(0, 1))
    varies = scales > 0
    values = groups[..., varies] / scales[varies] / SCALE
    prior = np.array([weights[name] for name in FEATURES])[varies] * scales[varies]
    found = prior
    for _ in range(50):  # Newton's method: the function is convex
        scores = values @ found
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        means = np.einsum("gr,grf->gf", shares, values)
        gradient = (values[:, 0] - means).sum(axis=0) - PRIOR / SCALE**2 * (found - prior)
        curvature = np.einsum("gr,grf,grh->fh", shares, values, values) - means.T @ means
        step = np.linalg.solve(curvature + PRIOR / SCALE**2 * np.eye(len(found)), gradient)
        found = found + step
        if np.abs(step).max() < 1e-6:
            break
    names = [name for name, is_one in zip(FEATURES, varies, strict=True) if is_one]
    return {**weights, **dict(zip(names, (found / scales[varies]).round(4).tolist(), strict=True))}
