"""The pairs that a run trains on: all of the files that are given, less what it validates on."""

from chatbot.config.corpus import EncodingSettings, TextSettings
from chatbot.corpus.encoding.encode import Corpus, encode
from chatbot.corpus.encoding.selection import Selection
from chatbot.corpus.encoding.words import Words, words_of
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.text.utterance import without_pair_rules


def training_words(settings: TextSettings) -> Words:
    """The words of the files to train on. Raises UserError when a file cannot be used."""
    return words_of(find_sources(settings.data, settings.source_file, settings.target_file), settings)


def held_out_words(settings: TextSettings, validation: str | None) -> Words | None:
    """The words of the validation file, every pair of it. Raises UserError when it cannot be used."""
    if validation is None:
        return None
    return words_of(find_sources([validation]), without_pair_rules(settings))


def training_rules(settings: TextSettings, validation: str | None) -> Selection:
    """Which pairs stay: what is validated on must not be trained on."""
    held_out = held_out_words(settings, validation)
    return Selection(
        duplicates="duplicates" in settings.clean,
        max_reply_frequency=settings.max_reply_frequency,
        held_out=frozenset(held_out.pair_hashes()) if held_out else frozenset(),
    )


def training_set(settings: TextSettings, encoding: EncodingSettings) -> Corpus:
    """The encoded pairs to train on, from the cache where they are there. Raises UserError when none is left."""
    return encode(training_words(settings), training_rules(settings, encoding.validation), encoding.vocabulary_size)
