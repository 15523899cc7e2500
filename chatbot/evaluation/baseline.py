"""A baseline without a neural model: the reply to the most similar question of the training pairs."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from chatbot.config.corpus import CorpusSettings
from chatbot.config.training import Settings
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.dataset import training_selection
from chatbot.corpus.files import CorpusFiles, corpus_files, tokenise, training_files
from chatbot.corpus.reading.open.sources import Source
from chatbot.corpus.selection import Selection, select
from chatbot.corpus.workers import worker_pool
from chatbot.errors import UserError
from chatbot.evaluation.measures import CharacterIndex

# Of more pairs, this many are drawn by a seed: the index takes about a kilobyte a pair.
MOST_PAIRS = 200_000
SEED = 1

TextPair = tuple[str, str]


class Baseline:
    """Answers with the reply to the most similar question, by BM25 over characters and pairs of characters."""

    def __init__(self, pairs: Sequence[TextPair]) -> None:
        """pairs: questions and replies, at least one."""
        self._replies = [reply for _, reply in pairs]
        self._index = CharacterIndex([question for question, _ in pairs])

    def reply(self, question: str) -> str:
        """Return the reply to the most similar question; of equally similar ones, to the first."""
        return self._replies[int(self._index.scores(question).argmax())]

    def replies(self, questions: Sequence[str]) -> list[str]:
        """Return the reply to each question."""
        return [self.reply(question) for question in questions]


def training_pairs(settings: Settings, cache: str) -> list[TextPair]:
    """Return the training pairs of an attempt, without its validation pairs.

    cache: the folder for tokenised files. Raises UserError when the files of the attempt cannot be read.
    """
    corpus = dataclasses.replace(settings.corpus, cache=cache)
    try:
        selection = training_selection(corpus, settings.encoding)
        return _texts(training_files(corpus), selection)
    except UserError as error:
        raise UserError(
            f"--baseline: the training pairs of the attempt cannot be read ({error}); "
            "give pairs with --baseline-data FILE"
        ) from None


def pairs_of(sources: Sequence[Source], corpus: CorpusSettings) -> list[TextPair]:
    """Return all pairs of some files. Raises UserError when they have none, or cannot be read."""
    pairs = _texts(corpus_files(sources, corpus), Selection())
    if not pairs:
        names = ", ".join(source.name for source in sources)
        raise UserError(f"--baseline-data {names}: no question-answer pairs; give a file with at least one")
    return pairs


def _texts(files: CorpusFiles, selection: Selection) -> list[TextPair]:
    with worker_pool() as pool:
        tokenised = tokenise(files, pool)
    kept, _ = select(tokenised.hashes(), selection)
    if kept.sum() > MOST_PAIRS:
        rows = np.random.default_rng(SEED).choice(np.flatnonzero(kept), MOST_PAIRS, replace=False)
        kept = np.isin(np.arange(len(kept)), rows)
    masks = zip(tokenised.chunks, tokenised.by_chunk(kept), strict=True)
    return [*itertools.chain.from_iterable(load_chunk(c.path).texts(np.flatnonzero(mask)) for c, mask in masks)]
