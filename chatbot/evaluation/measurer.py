"""Measures sets of replies to the same questions."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from chatbot.config.evaluation import AUTO_TOKENIZE
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.history import question_of
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import ASK, EOS, Vocabulary
from chatbot.evaluation.likelihood import Likelihood, Scorer
from chatbot.evaluation.measures import Measures, measure
from chatbot.evaluation.overlap import tokenization_of
from chatbot.evaluation.repetition import Repetition
from chatbot.evaluation.samples import Sample

SEED = 1


class Measurer:
    """Measures replies to the questions of some pairs, whose answers are the references.

    tokens: from a text to its tokens, as in training. scorer: of a model that has learned both directions, for the
    likelihood of the questions given the replies; else None. tokenize: --tokenize, for BLEU.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        vocabulary: Vocabulary,
        tokens: Callable[[str], list[str]],
        scorer: Scorer | None,
        tokenize: str = AUTO_TOKENIZE,
    ) -> None:
        self.references = [sample.answer for sample in samples]
        self.tokenization = tokenization_of(self.references) if tokenize == AUTO_TOKENIZE else tokenize
        self._questions = [sample.question for sample in samples]
        self._question_ids = Ragged.from_rows([question_of(sample.ids, vocabulary) for sample in samples])
        self._characters = np.array([len(question.replace(" ", "")) for question in self._questions], np.int64)
        self._vocabulary, self._tokens, self._scorer = vocabulary, tokens, scorer

    def __call__(self, replies: Sequence[str]) -> Measures:
        """Measure one reply to each question."""
        likelihood = self._question_likelihood(replies)
        return measure(self._questions, replies, self.references, self._tokens, likelihood, self.tokenization)

    def repetition_of_references(self) -> Repetition:
        """Return the repetition of the references."""
        return Repetition(Counter(self.references))

    def random_replies(self) -> list[str]:
        """Return for each question the reference of another question, drawn by a seed; of a single one, its own.

        All their measures that do not depend on the questions equal those of the references.
        """
        order = np.random.default_rng(SEED).permutation(len(self.references))
        replies = [""] * len(self.references)
        for i, other in zip(order, np.roll(order, 1), strict=True):
            replies[i] = self.references[other]
        return replies

    def _question_likelihood(self, replies: Sequence[str]) -> Likelihood | None:
        """Return the likelihood of the questions given the replies, for a model that learned the reverse direction.

        An empty reply is the end symbol alone.
        """
        if self._scorer is None:
            return None
        sources = Ragged.from_rows([self._vocabulary.ids(self._tokens(reply)) or [EOS] for reply in replies])
        begins = np.full(len(replies), ASK, np.int32)
        return self._scorer([EncodedPairs(sources, self._question_ids, begins, self._characters)])
