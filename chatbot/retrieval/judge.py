"""Scores how well retrieved replies fit a question. TensorFlow is not required."""

from collections.abc import Mapping

import numpy as np

from chatbot.corpus.vocabulary import BOS, Vocabulary, question_of
from chatbot.decoding.interface import IdRows, IsWanted, Model, score_pairs
from chatbot.errors import UserError
from chatbot.retrieval.characters import Doubles
from chatbot.retrieval.index import JUDGE, Retrieval

# The features of a retrieved reply:
# - Pair features measure how similar the pair's question is to the user's question, by characters and by embeddings.
# - Reply features measure how similar the reply is to the user's question, by characters, by embeddings and by the
#   learned map from replies to questions.
# - Model features are log-probabilities per token of the reply: given the user's question, and according to unigram
#   frequencies.
PAIR_FEATURES = ("similarity", "meaning")
REPLY_FEATURES = ("shared", "shared_meaning", "fit")
MODEL_FEATURES = ("log_probability", "common")
FEATURES = (*PAIR_FEATURES, *REPLY_FEATURES, *MODEL_FEATURES)
# The default feature weights without and with embeddings, chosen by human ratings (docs/experiments.md).
BY_CHARACTERS = dict(zip(FEATURES, (10.0, 0.0, 8.0, 0.0, 0.0, 1.0, -0.6), strict=True))
BY_MEANING = dict(zip(FEATURES, (20.0, 20.0, 16.0, 20.0, 10.0, 1.0, -0.6), strict=True))
# The feature weights of attempts without validation. The model features are ignored, because the quality of the model
# is unknown.
WITHOUT_MODEL = dict(zip(FEATURES, (1.0, 20.0, 2.0, 20.0, 0.0, 0.0, 0.0), strict=True))
# The minimum score of a plausible reply if the weights are BY_CHARACTERS.
PLAUSIBLE_SCORE = 1.0


class Judge:
    """A thread-safe judge that scores replies to questions by a weighted sum of features.

    Args:
        model: The model.
        vocabulary: The vocabulary of the model.
        retrieval: The index of the training pairs.
        weights: The feature weights by name. None uses the weights fitted to the attempt or, if there are none, the
            default weights.
    """

    def __init__(
        self, model: Model, vocabulary: Vocabulary, retrieval: Retrieval, weights: Mapping[str, float] | None = None
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._retrieval = retrieval
        by_name = weights or retrieval.weights or default_weights(retrieval)
        if not {*FEATURES} <= by_name.keys():
            raise UserError(f"{JUDGE} of the attempt's index: damaged, or of a different version; delete the file")
        self.weights = np.array([by_name[name] for name in FEATURES])
        self.asks_model = any(by_name[name] for name in MODEL_FEATURES)
        self.chooses_common = by_name == BY_CHARACTERS

    def model_features(self, questions: IdRows, replies: IdRows, is_wanted: IsWanted) -> Doubles:
        """Return the model features of each reply to its question, with shape [replies, 2].

        The result is meaningless if `is_wanted` has returned False.
        """
        sizes = np.array([len(ids) + 1 for ids in replies])
        features = np.zeros([len(replies), len(MODEL_FEATURES)])
        if self.asks_model:
            features[:, 0] = score_pairs(self._model, questions, replies, BOS, is_wanted) / sizes
            features[:, 1] = [self._retrieval.log_probability(ids) for ids in replies] / sizes
        return features

    def texts(self, rows: IdRows) -> list[str]:
        """Decode rows of ids to texts. Only the last turn of a question is decoded."""
        return [self._vocabulary.text(question_of(ids, self._vocabulary)) for ids in rows]

    def features(self, questions: IdRows, replies: IdRows) -> Doubles:
        """Return the features of each reply to its question, [replies, features]. Pair features are 0."""
        reply_features = self._retrieval.likeness(self.texts(questions), self.texts(replies))
        pair_features = np.zeros([len(replies), len(PAIR_FEATURES)])
        return np.concatenate(
            [pair_features, reply_features, self.model_features(questions, replies, lambda: True)], axis=1
        )


def default_weights(retrieval: Retrieval) -> dict[str, float]:
    """Return the default feature weights, which are used if no weights were fitted to the attempt."""
    if not retrieval.is_validated:
        return WITHOUT_MODEL
    return BY_CHARACTERS if retrieval.meaning is None else BY_MEANING
