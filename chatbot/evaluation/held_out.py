"""Reads held-out pairs for a model, warns about training pairs among them, and builds the retrieval baseline."""

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
from chatbot.corpus.files import corpus_files, with_file_settings
from chatbot.corpus.reading import sources as files
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import tokens_of, without_pair_rules
from chatbot.corpus.vocabulary import question_of
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.evaluation.measures import Fluency, Sample, samples_of
from chatbot.evaluation.report import Bilingual
from chatbot.retrieval.characters import character_index

# If this fraction of the held-out pairs are training pairs, a warning is printed. A smaller overlap is normal, because
# greetings occur in most data.
MIN_KNOWN = 0.05
# Maximum number of pairs in the baseline, to limit its memory. From more pairs, this number is drawn with a fixed seed.
MAX_PAIRS = 200_000


def load_and_read(
    directory: Path, held_out: Sequence[files.Source], settings: HeldOutSettings
) -> tuple[Trained, Corpus, Bilingual | None]:
    """Load a model and read its held-out pairs.

    Messages about skipped pairs and a warning about training pairs are printed to standard error.

    Returns:
        The model, the pairs, and the warning, if there is one.

    Raises:
        UserError: If the model or the files cannot be read.
    """
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
    """Return the settings for reading held-out pairs. Texts are cleaned as in training, but no pairs are dropped."""
    corpus = with_file_settings(without_pair_rules(trained.settings.corpus), settings)
    return dataclasses.replace(corpus, cache=settings.cache)


def fluency_of(trained: Trained, corpus: Sequence[files.Source], settings: HeldOutSettings) -> Fluency:
    """Build the fluency measure, which needs the files of another corpus. Raises UserError if one cannot be read."""
    as_pairs = with_file_settings(reading_settings(trained, settings), FileSettings())
    by_characters = dataclasses.replace(as_pairs, tokenizer="char", dictionary=None)
    encoded = encode(corpus_files(corpus, by_characters), Selection(), EncodingSettings.vocabulary_size)
    return Fluency(encoded, tokens_of(by_characters))


class Baseline:
    """A retrieval baseline, which returns the reply to the most similar question.

    The similarity is BM25 over single characters and pairs of characters.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        """Index the questions of the samples, which must not be empty."""
        self._replies = [sample.answer for sample in samples]
        self._index = character_index([sample.question for sample in samples])

    def reply(self, question: str) -> str:
        """Return the reply to the most similar question, or to the first of several equally similar ones."""
        numbers, _ = self._index.nearest(question, 1)
        return self._replies[numbers[0] if len(numbers) else 0]


def baseline_of(trained: Trained, corpus: Sequence[files.Source] | None, settings: HeldOutSettings) -> Baseline:
    """Build the baseline from the pairs in these files, or from the attempt's training pairs if `corpus` is None.

    Raises UserError if the pairs cannot be read.
    """
    if corpus is not None:
        as_pairs = with_file_settings(reading_settings(trained, settings), FileSettings())
        encoded = encode(corpus_files(corpus, as_pairs), Selection(), trained.vocabulary)
    else:
        corpus_settings = dataclasses.replace(trained.settings.corpus, cache=settings.cache)
        try:
            encoded = training_set(corpus_settings, trained.settings.encoding, trained.vocabulary)
        except UserError as error:
            raise UserError(
                f"--baseline: the training pairs of the attempt cannot be read ({error}); "
                "give pairs with --baseline-data FILE"
            ) from None
    return Baseline(samples_of(encoded, MAX_PAIRS))


def held_out_corpus(trained: Trained, held_out: Sequence[files.Source], settings: HeldOutSettings) -> Corpus:
    """Read held-out pairs and encode them with the vocabulary of a model. Raises UserError if there are no pairs."""
    history = trained.settings.encoding.history
    max_length = trained.settings.model.max_length
    files_read = corpus_files(held_out, reading_settings(trained, settings))
    return encode(files_read, Selection(), trained.vocabulary, history, max_length)


def warning_of(trained: Trained, corpus: Corpus, held_out: Sequence[files.Source]) -> Bilingual | None:
    """Return a warning if the held-out pairs contain many training pairs; None if they do not, or if this is unknown.

    The pairs are compared with the attempt's index of training pairs. Without an index, only file paths are compared.
    """
    if trained.retrieval is None:
        seen = set()
        with contextlib.suppress(UserError):  # the files may no longer exist
            used = trained.settings.corpus
            parts = files.find_parts(used.data, used.source_file, used.target_file)
            seen = {_source_key(source) for source in parts.training}
        for source in held_out:
            if _source_key(source) in seen:
                return _warning(f"{source.name}: this attempt was trained on it", f"{source.name} 参与过该模型的训练")
        return None
    pairs = [
        (question_of(shard.sources.row(i).tolist(), trained.vocabulary), shard.targets.row(i).tolist())
        for shard in corpus.shards
        for i in range(len(shard))
    ]
    known = trained.retrieval.count(pairs)
    if known < MIN_KNOWN * len(pairs):
        return None
    share = f"{known / len(pairs):.0%}"
    return _warning(
        f"{known:,} of {pluralize(len(pairs), 'pair')} of --data ({share}) are training pairs of this attempt",
        f"--data 的 {len(pairs):,} 个问答对中有 {known:,} 个（{share}）参与过该模型的训练",
    )


def _warning(english: str, chinese: str) -> Bilingual:
    return Bilingual(
        f"Warning: {english}; the model may have memorised them; use pairs that it has not seen.",
        f"警告：{chinese}，模型可能记住了其中的回复；请改用它没有学过的问答对。",
    )


def _source_key(source: files.Source) -> tuple[Any, ...]:
    return tuple(path.resolve() for path in source.paths), source.members, source.part
