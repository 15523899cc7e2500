"""Validation during a run: the likelihood of held-out pairs, and replies to sample questions."""

from typing import NamedTuple

from chatbot.config.training import Settings
from chatbot.corpus.encoding.corpus import Corpus
from chatbot.evaluation.likelihood import Scorer
from chatbot.inference.replier import Replier
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.data import Data


class Validation(NamedTuple):
    """The result of a validation."""

    nats_per_token: float
    nats_per_character: float
    replies: list[str]  # to the sample questions


class Validator:
    """Measures a model that is being trained. Its graphs are traced once, at the first use."""

    def __init__(self, model: Seq2Seq, data: Data, settings: Settings) -> None:
        self._samples = [sample.ids for sample in data.samples]
        self._score = Scorer(model)
        self._replier = Replier(model, data.vocabulary, settings.model)

    def validate(self, corpus: Corpus) -> Validation:
        """Score all pairs of the corpus, and reply to the sample questions."""
        likelihood = self._score(corpus.shards)
        return Validation(likelihood.nats_per_token, likelihood.nats_per_character, self.replies())

    def replies(self) -> list[str]:
        """Return the best reply to each sample question."""
        return self._replier.replies(self._samples)
