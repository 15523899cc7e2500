"""A baseline without a neural model: the reply to the most similar question of the training pairs."""

import dataclasses
from collections.abc import Sequence

from chatbot.attempts.trained import Trained
from chatbot.config.corpus import FileSettings
from chatbot.config.evaluation import HeldOutSettings
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus, encode, training_set
from chatbot.corpus.files import corpus_files, read_as
from chatbot.corpus.reading.sources import Source
from chatbot.corpus.selection import Selection
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.errors import UserError
from chatbot.evaluation.held_out import reading_settings
from chatbot.evaluation.measures import Sample, samples_of
from chatbot.retrieval.characters import character_index

# Of more pairs, this many are drawn by a seed, which bounds the memory.
MOST_PAIRS = 200_000


class Baseline:
    """Answers with the reply to the most similar question, by BM25 over characters and pairs of characters."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        """samples: questions and replies, at least one."""
        self._replies = [sample.answer for sample in samples]
        self._index = character_index([sample.question for sample in samples])

    def reply(self, question: str) -> str:
        """Return the reply to the most similar question; of equally similar ones, to the first."""
        numbers, _ = self._index.nearest(question, 1)
        return self._replies[numbers[0] if len(numbers) else 0]


def baseline_of(trained: Trained, files: Sequence[Source] | None, settings: HeldOutSettings) -> Baseline:
    """Return the baseline on the pairs of files, or for None on the training pairs of the attempt. Raises UserError."""
    if files is None:
        corpus = corpus_of(trained.settings, trained.vocabulary, settings.cache)
    else:
        as_read = read_as(reading_settings(trained, settings), FileSettings())
        corpus = encode(corpus_files(files, as_read), Selection(), trained.vocabulary)
    return Baseline(samples_of(corpus, MOST_PAIRS))


def corpus_of(settings: Settings, vocabulary: Vocabulary, cache: str) -> Corpus:
    """Return the training pairs of an attempt, without its validation pairs.

    cache: the folder for encoded pairs. Raises UserError when the files of the attempt cannot be read.
    """
    try:
        return training_set(dataclasses.replace(settings.corpus, cache=cache), settings.encoding, vocabulary)
    except UserError as error:
        raise UserError(
            f"--baseline: the training pairs of the attempt cannot be read ({error}); "
            "give pairs with --baseline-data FILE"
        ) from None
