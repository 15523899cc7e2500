"""The pairs of an evaluation, as a model reads them, whether it was trained on them, and those it is compared with."""

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.trained import Trained, load_trained
from chatbot.config.corpus import CorpusSettings, EncodingSettings, FileSettings
from chatbot.config.evaluation import HeldOutSettings
from chatbot.corpus.dataset import Corpus, encode, training_set
from chatbot.corpus.files import corpus_files, read_as
from chatbot.corpus.reading import sources as files
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import tokens_of, without_pair_rules
from chatbot.corpus.vocabulary import question_of
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.evaluation.measures import Fluency, Sample, samples_of
from chatbot.evaluation.report import Words
from chatbot.retrieval.characters import character_index

# The share of training pairs among those to evaluate from which on there is a warning. Greetings may be in both.
LEAST_KNOWN = 0.05
# Of more pairs, the baseline has this many, drawn by a seed, which bounds the memory.
MOST_PAIRS = 200_000


def load_and_read(
    directory: Path, held_out: Sequence[files.Source], settings: HeldOutSettings
) -> tuple[Trained, Corpus, Words | None]:
    """Return a model, its held-out pairs and the warning about them, and print what was left out. Raises UserError."""
    trained = load_trained(directory)
    corpus = held_out_corpus(trained, held_out, settings)
    for report in corpus.reports:
        for line in report.lines():
            print(f"Left out of {report.file}: {line}", file=sys.stderr)
        for line in report.notes():
            print(f"Note on {report.file}: {line}", file=sys.stderr)
    if warning := warning_of(trained, corpus, held_out):
        print(warning.english, file=sys.stderr)
    return trained, corpus, warning


def reading_settings(trained: Trained, settings: HeldOutSettings) -> CorpusSettings:
    """Return how an evaluation reads pairs for a model: cleaned as for training, and no pair is dropped."""
    corpus = read_as(without_pair_rules(trained.settings.corpus), settings)
    return dataclasses.replace(corpus, cache=settings.cache)


def fluency_of(trained: Trained, corpus: Sequence[files.Source], settings: HeldOutSettings) -> Fluency:
    """Return the measure of fluency by the files of a corpus, read as training pairs are. Raises UserError."""
    as_pairs = read_as(reading_settings(trained, settings), FileSettings())
    of_characters = dataclasses.replace(as_pairs, tokenizer="char", dictionary=None)
    usual = encode(corpus_files(corpus, of_characters), Selection(), EncodingSettings.vocabulary_size)
    return Fluency(usual, tokens_of(of_characters))


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


def baseline_of(trained: Trained, corpus: Sequence[files.Source] | None, settings: HeldOutSettings) -> Baseline:
    """Return the baseline on the pairs of files, or for None on the training pairs of the attempt. Raises UserError."""
    if corpus is not None:
        as_pairs = read_as(reading_settings(trained, settings), FileSettings())
        encoded = encode(corpus_files(corpus, as_pairs), Selection(), trained.vocabulary)
        return Baseline(samples_of(encoded, MOST_PAIRS))
    own = dataclasses.replace(trained.settings.corpus, cache=settings.cache)
    try:
        encoded = training_set(own, trained.settings.encoding, trained.vocabulary)
    except UserError as error:
        raise UserError(
            f"--baseline: the training pairs of the attempt cannot be read ({error}); "
            "give pairs with --baseline-data FILE"
        ) from None
    return Baseline(samples_of(encoded, MOST_PAIRS))


def held_out_corpus(trained: Trained, held_out: Sequence[files.Source], settings: HeldOutSettings) -> Corpus:
    """Return the held-out pairs in the vocabulary of a model. Raises UserError when there are none."""
    history = trained.settings.encoding.history
    max_length = trained.settings.model.max_length
    of_files = corpus_files(held_out, reading_settings(trained, settings))
    return encode(of_files, Selection(), trained.vocabulary, history, max_length)


def warning_of(trained: Trained, corpus: Corpus, held_out: Sequence[files.Source]) -> Words | None:
    """Return the warning that pairs to evaluate are training pairs, or None where they are not, or it is not known.

    The attempt's index of its training pairs tells it, and without one the names of the files. held_out, corpus: of
    --data.
    """
    if trained.retrieval is None:
        seen = set()
        with contextlib.suppress(UserError):  # the files may be gone
            own = trained.settings.corpus
            seen = {_place(x) for x in files.find_parts(own.data, own.source_file, own.target_file).training}
        for source in held_out:
            if _place(source) in seen:
                return _warning(f"{source.name}: this attempt was trained on it", f"{source.name} 参与过该模型的训练")
        return None
    pairs = [
        (question_of(shard.sources.row(i).tolist(), trained.vocabulary), shard.targets.row(i).tolist())
        for shard in corpus.shards
        for i in range(len(shard))
    ]
    known = trained.retrieval.count(pairs)
    if known < LEAST_KNOWN * len(pairs):
        return None
    share = f"{known / len(pairs):.0%}"
    return _warning(
        f"{known:,} of {counted(len(pairs), 'pair')} of --data ({share}) are training pairs of this attempt",
        f"--data 的 {len(pairs):,} 个问答对中有 {known:,} 个（{share}）参与过该模型的训练",
    )


def _warning(english: str, chinese: str) -> Words:
    return Words(
        f"Warning: {english}; a model may know them by heart; give pairs that it has not seen.",
        f"警告：{chinese}，模型可能记住了其中的回复；请改用它没有学过的问答对。",
    )


def _place(source: files.Source) -> tuple[Any, ...]:
    return tuple(path.resolve() for path in source.paths), source.members, source.part
