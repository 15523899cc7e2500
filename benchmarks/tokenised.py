"""Pairs tokenised by this project's tokenizer, as input of every compared system."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from chatbot.config.corpus import CorpusSettings, EncodingSettings
from chatbot.corpus.dataset import Corpus, training_set, validation_set
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import SPECIALS, UNK, Vocabulary


@dataclasses.dataclass(frozen=True)
class TokenisedPairs:
    """Pairs of token lists, and the most frequent tokens, most frequent first."""

    pairs: list[tuple[list[str], list[str]]]
    vocabulary: list[str]

    @property
    def size(self) -> int:
        """The size of the vocabulary with its special tokens."""
        return len(self.vocabulary) + len(SPECIALS)

    def write(self, folder: Path, name: str) -> None:
        """Write name.src and name.tgt, tokens separated by spaces, and name.vocabulary, a token on each line."""
        (folder / f"{name}.vocabulary").write_text("".join(f"{token}\n" for token in self.vocabulary), encoding="utf-8")
        for side, suffix in enumerate(("src", "tgt")):
            lines = "".join(" ".join(pair[side]) + "\n" for pair in self.pairs)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")

    def encoded(self) -> EncodedPairs:
        """Return the pairs as token ids; a token outside the vocabulary is UNK."""
        ids = {token: number for number, token in enumerate(self.vocabulary, len(SPECIALS))}
        sources, targets = (
            Ragged.from_rows([[ids.get(token, UNK) for token in pair[side]] for pair in self.pairs]) for side in (0, 1)
        )
        return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def read_tokenised(file: str, max_length: int, vocabulary_size: int) -> TokenisedPairs:
    """Read the pairs that fit into max_length (the end symbol counted in the answer); one vocabulary for both sides.

    Raises UserError for a file that cannot be read.
    """
    (source,) = find_sources([file])
    tokenise = tokens_of(CorpusSettings())
    pairs = [(tokenise(question), tokenise(answer)) for question, answer, *_ in read(source, Report())]
    pairs = [(q, a) for q, a in pairs if 0 < len(q) <= max_length and 0 < len(a) < max_length]
    counts = Counter(token for pair in pairs for side in pair for token in side)
    return TokenisedPairs(pairs, [token for token, _ in counts.most_common(vocabulary_size - len(SPECIALS))])


def character_corpora(training: Path, held_out: Path, cache: Path) -> tuple[Corpus, Corpus]:
    """Return the pairs of a file to train on and of a held-out one, as train.py reads them.

    Tokens are characters, rare ones in bytes, so that none is unknown.
    """
    settings = CorpusSettings(data=(str(training),), tokenizer="char", cache=str(cache))
    encoding = EncodingSettings(validation=str(held_out))
    corpus = training_set(settings, encoding)
    validation = validation_set(settings, encoding, corpus.vocabulary)
    assert validation is not None
    return corpus, validation


def spelled(shards: Iterable[EncodedPairs], vocabulary: Vocabulary) -> TokenisedPairs:
    """Return encoded pairs as tokens; a byte is a token, too."""
    pairs = [
        ([vocabulary.tokens[i] for i in shard.sources.row(row)], [vocabulary.tokens[i] for i in shard.targets.row(row)])
        for shard in shards
        for row in range(len(shard))
    ]
    return TokenisedPairs(pairs, vocabulary.tokens[len(SPECIALS) :])
