"""Replies of people, of attempts and of other systems to the same held-out questions."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from chatbot.config.corpus import CorpusSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import BEAM, NEAREST, PEOPLE, QUESTIONS, EvaluationSettings
from chatbot.config.stored import with_default_search
from chatbot.corpus.dataset import Corpus, encode
from chatbot.corpus.files import corpus_files
from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.open import sources as files
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import without_pair_rules
from chatbot.errors import UserError
from chatbot.evaluation.baseline import Baseline
from chatbot.evaluation.evaluate import reply
from chatbot.evaluation.measures import SEED, Sample, samples_of
from chatbot.evaluation.report import turns_before
from chatbot.evaluation.sheet import Source, check_source
from chatbot.inference.responder import replier_of
from chatbot.model.saved import Trained, load_trained

BEAM_SEARCH = DecodingSettings(beam_size=5, retrieve="none")


def reading_settings(trained: Trained, settings: EvaluationSettings) -> CorpusSettings:
    """Return how an evaluation reads pairs for a model: cleaned as for training, and no pair is dropped."""
    return dataclasses.replace(
        without_pair_rules(trained.settings.corpus),
        columns=settings.columns,
        encoding=settings.encoding,
        format=settings.format,
        cache=settings.cache,
    )


def held_out_corpus(trained: Trained, held_out: Sequence[files.Source], settings: EvaluationSettings) -> Corpus:
    """Return the held-out pairs in the vocabulary of a model. Raises UserError when there are none."""
    history, max_length = trained.settings.encoding.history, trained.settings.model.max_length
    of_files = corpus_files(held_out, reading_settings(trained, settings))
    return encode(of_files, Selection(), trained.vocabulary, history, max_length)


def replies_to_rate(
    settings: EvaluationSettings,
    sources: Mapping[str, Source],
    held_out: Sequence[files.Source],
    trained: Trained,
    corpus: Corpus,
    decoding: DecodingSettings,
    nearest: Baseline | None,
) -> tuple[list[str], dict[str, list[str]]]:
    """Return messages drawn by a seed, with the turns before them, and the replies of each source to them.

    sources: by the names of --compare. held_out, corpus: of --data. trained, decoding: of the source `model`. nearest:
    for the source of this name. Raises UserError for a source that does not have a reply to each question.
    """
    for name, source in sources.items():
        check_source(name, source, corpus.pairs)
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

    def replies_of(name: str, source: Source) -> list[str]:
        if isinstance(source, tuple):
            return [source[row] for row in rows]
        if isinstance(source, Path):
            return replies_of_attempt(name, source)
        if name == PEOPLE:
            return [sample.answer for sample in drawn]
        if name == NEAREST:
            assert nearest is not None
            return [nearest.reply(sample.question) for sample in drawn]
        return reply(replier_of(trained, BEAM_SEARCH if name == BEAM else decoding), drawn)

    def message_of(sample: Sample) -> str:
        return " / ".join([*turns_before(sample.ids, trained.vocabulary), sample.question])

    replies = {name: replies_of(name, source) for name, source in sources.items()}
    return [*map(message_of, drawn)], replies
