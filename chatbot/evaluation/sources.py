"""Replies of people, of attempts and of other systems to the same held-out questions."""

import contextlib
import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.config.corpus import CorpusSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import BEAM, NEAREST, PEOPLE, QUESTIONS, EvaluationSettings
from chatbot.config.stored import with_default_search
from chatbot.corpus.dataset import Corpus, encode
from chatbot.corpus.files import corpus_files, read_as
from chatbot.corpus.history import question_of
from chatbot.corpus.reading import sources as files
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import without_pair_rules
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.evaluation.baseline import Baseline
from chatbot.evaluation.evaluate import reply
from chatbot.evaluation.measures import SEED, samples_of
from chatbot.evaluation.report import Words, turns_before
from chatbot.evaluation.sheet import Origin, check_origin
from chatbot.inference.responder import replier_of
from chatbot.model.saved import Trained, load_trained

# The share of training pairs among those to evaluate from which on there is a warning. Greetings may be in both.
LEAST_KNOWN = 0.05
BEAM_SEARCH = DecodingSettings(beam_size=5, retrieve="none")


def reading_settings(trained: Trained, settings: EvaluationSettings) -> CorpusSettings:
    """Return how an evaluation reads pairs for a model: cleaned as for training, and no pair is dropped."""
    corpus = read_as(without_pair_rules(trained.settings.corpus), settings)
    return dataclasses.replace(corpus, cache=settings.cache)


def held_out_corpus(trained: Trained, held_out: Sequence[files.Source], settings: EvaluationSettings) -> Corpus:
    """Return the held-out pairs in the vocabulary of a model. Raises UserError when there are none."""
    history, max_length = trained.settings.encoding.history, trained.settings.model.max_length
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


def replies_to_rate(
    settings: EvaluationSettings,
    origins: Mapping[str, Origin],
    held_out: Sequence[files.Source],
    trained: Trained,
    corpus: Corpus,
    decoding: DecodingSettings,
    nearest: Baseline | None,
) -> tuple[list[str], dict[str, list[str]]]:
    """Return messages drawn by a seed, with the turns before them, and the replies of each source to them.

    origins: by the names of --compare. held_out, corpus: of --data. trained, decoding: of the source `model`. nearest:
    for the source of this name. Raises UserError for a source that does not have a reply to each question.
    """
    for name, origin in origins.items():
        check_origin(name, origin, corpus.pairs)
    samples = samples_of(corpus)
    rows = random.Random(SEED).sample(range(len(samples)), min(settings.number or QUESTIONS, len(samples)))
    drawn = [samples[row] for row in rows]

    def replies_of_attempt(name: str, directory: Path) -> list[str]:
        other = load_trained(directory)
        its_samples = samples_of(held_out_corpus(other, held_out, settings))
        if len(its_samples) != len(samples):
            raise UserError(
                f"--compare {name}: its cleaning leaves {counted(len(its_samples), 'pair')} of --data, that of this "
                f"attempt {len(samples):,}; give pairs that no rule leaves empty"
            )
        its_decoding = with_default_search(settings.decoding, directory)
        return reply(replier_of(other, its_decoding), [its_samples[row] for row in rows])

    def replies_of(name: str, origin: Origin) -> list[str]:
        if isinstance(origin, tuple):
            return [origin[row] for row in rows]
        if isinstance(origin, Path):
            return replies_of_attempt(name, origin)
        if name == PEOPLE:
            return [sample.answer for sample in drawn]
        if name == NEAREST:
            assert nearest is not None
            return [nearest.reply(sample.question) for sample in drawn]
        return reply(replier_of(trained, BEAM_SEARCH if name == BEAM else decoding), drawn)

    messages = [" / ".join([*turns_before(sample.ids, trained.vocabulary), sample.question]) for sample in drawn]
    return messages, {name: replies_of(name, origin) for name, origin in origins.items()}
