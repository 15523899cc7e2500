"""What a run trains and validates on, read and checked before any device is touched."""

import dataclasses
from typing import Any

import numpy as np

from chatbot.config import Settings
from chatbot.corpus.encoded import Encoded, encode
from chatbot.corpus.pairs import WordPair, count_words, read_pairs, without
from chatbot.corpus.report import Report
from chatbot.corpus.tokenizer import text_of
from chatbot.corpus.vocabulary import Vocabulary, build_vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.training.attempt import check_data, check_settings, is_begun

SAMPLES = 3
# Where --both-directions auto stops: with more pairs, the decoder sees enough replies to learn the language.
FEW_PAIRS = 50_000


@dataclasses.dataclass(frozen=True)
class Data:
    """Encoded pairs and the vocabulary they are encoded with."""

    vocabulary: Vocabulary
    training: Encoded
    validation: Encoded | None
    description: dict[str, Any]  # what data.json says of them
    samples: list[tuple[str, str]]  # a few pairs as text, of the validation pairs where there are some


def prepare(settings: Settings) -> Data:
    """Read the pairs, print what was found, and check that an attempt that was begun can go on. Writes nothing.

    Raises UserError when the data cannot be used, or differ from those the attempt was begun with.
    """
    resumed = is_begun(settings)
    if resumed:
        check_settings(settings)
    report = Report()
    held_out = _held_out(settings.validation) if settings.validation else []
    pairs = read_pairs(settings.data, report)
    if held_out:
        pairs = without(pairs, held_out, report)
    if resumed:
        vocabulary = load_vocabulary(settings.directory / "vocabulary.txt")
    else:
        vocabulary = build_vocabulary(count_words(pairs), settings.vocabulary_size)
    training = _short_enough(encode(pairs, vocabulary), settings.max_length, report)
    _describe(settings, pairs, training, vocabulary, report)
    # Without validation a run is to know its pairs by heart, and a second task would only be in the way.
    few = bool(held_out) and len(training) < FEW_PAIRS
    both = settings.both_directions == "on" or (settings.both_directions == "auto" and few)
    description = {
        "pairs": len(training),
        "fingerprint": training.fingerprint(),
        "vocabulary": vocabulary.fingerprint(),
        "both_directions": both,
    }
    if resumed:
        description["both_directions"] = check_data(settings, description)
    if description["both_directions"]:
        print("Each pair is learned in both directions (--both-directions).")
        reverse = training.reversed()
        training += reverse.select(np.nonzero(reverse.targets.lengths < settings.max_length)[0])
    samples = [(text_of(q), text_of(a)) for q, a in _spread(held_out or pairs, SAMPLES)]
    validation = encode(held_out, vocabulary) if held_out else None
    return Data(vocabulary, training, validation, description, samples)


def _held_out(file: str) -> list[WordPair]:
    report = Report()
    pairs = read_pairs([file], report)
    print(f"Validating on {len(pairs):,} pairs of {file}.")
    for line in report.lines():
        print(f"  left out: {line}")
    return pairs


def _short_enough(pairs: Encoded, max_length: int, report: Report) -> Encoded:
    """The pairs of which neither side, the end symbol counted in the reply, is longer than max_length."""
    fits = (pairs.sources.lengths <= max_length) & (pairs.targets.lengths < max_length)
    if not fits.any():
        needed = int(np.minimum.reduce(np.maximum(pairs.sources.lengths, pairs.targets.lengths + 1)))
        raise UserError(
            f"--max-length {max_length}: every pair is longer, the shortest has {needed} tokens; give at least that"
        )
    if not fits.all():
        report.drop(f"pairs longer than --max-length {max_length}", count=int((~fits).sum()))
    return pairs.select(np.nonzero(fits)[0])


def _describe(settings: Settings, pairs: list[WordPair], kept: Encoded, vocabulary: Vocabulary, report: Report) -> None:
    name = ", ".join(settings.data) or "the Chinese ChatterBot corpus"
    print(f"Training on {len(kept):,} pairs of {name}; {len(vocabulary):,} tokens in the vocabulary.")
    for line in report.lines():
        print(f"  left out: {line}")
    if len(vocabulary) > settings.vocabulary_size:
        print(f"  the vocabulary is larger than --vocabulary-size {settings.vocabulary_size}: every character is kept")
    for question, answer in _spread(pairs, SAMPLES):
        print(f"  {' '.join(question)} -> {' '.join(answer)}")


def _spread(pairs: list[WordPair], count: int) -> list[WordPair]:
    """A few pairs from the whole length of the data."""
    return [pairs[i * len(pairs) // count] for i in range(min(count, len(pairs)))]
