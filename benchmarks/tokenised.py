"""Tokenises pairs with this project's tokenizer, so that all compared systems have the same input."""

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
    """Pairs of token lists, and their vocabulary in descending order of frequency."""

    pairs: list[tuple[list[str], list[str]]]
    vocabulary: list[str]

    @property
    def size(self) -> int:
        """The size of the vocabulary, including special tokens."""
        return len(self.vocabulary) + len(SPECIALS)

    def write(self, folder: Path, name: str) -> None:
        """Write name.src and name.tgt with space-separated tokens, and name.vocabulary with one token per line."""
        (folder / f"{name}.vocabulary").write_text("".join(f"{token}\n" for token in self.vocabulary), encoding="utf-8")
        for side, suffix in enumerate(("src", "tgt")):
            lines = "".join(" ".join(pair[side]) + "\n" for pair in self.pairs)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")

    def encoded(self) -> EncodedPairs:
        """Return the pairs as token ids, with UNK for tokens outside the vocabulary."""
        ids = {token: number for number, token in enumerate(self.vocabulary, len(SPECIALS))}
        sources, targets = (
            Ragged.from_rows([[ids.get(token, UNK) for token in pair[side]] for pair in self.pairs]) for side in (0, 1)
        )
        return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def read_tokenised(file: str, max_length: int, vocabulary_size: int) -> TokenisedPairs:
    """Read and tokenise the pairs of a file. Raises UserError if the file cannot be read.

    Args:
        file: The file of question-answer pairs.
        max_length: The maximum number of tokens per side, including EOS for replies. Longer pairs are skipped.
        vocabulary_size: The maximum size of the vocabulary, which questions and replies share.
    """
    (source,) = find_sources([file])
    tokenise = tokens_of(CorpusSettings())
    pairs = [(tokenise(question), tokenise(answer)) for question, answer, *_ in read(source, Report())]
    pairs = [(q, a) for q, a in pairs if 0 < len(q) <= max_length and 0 < len(a) < max_length]
    counts = Counter(token for pair in pairs for side in pair for token in side)
    return TokenisedPairs(pairs, [token for token, _ in counts.most_common(vocabulary_size - len(SPECIALS))])


def character_corpora(training: Path, held_out: Path, cache: Path) -> tuple[Corpus, Corpus]:
    """Read a training file and a held-out file in the same way as train.py with --tokenizer char.

    Tokens are characters. A rare character is replaced by its bytes, so no token is unknown.
    """
    settings = CorpusSettings(data=(str(training),), tokenizer="char", cache=str(cache))
    encoding = EncodingSettings(validation=str(held_out))
    corpus = training_set(settings, encoding)
    validation = validation_set(settings, encoding, corpus.vocabulary)
    assert validation is not None
    return corpus, validation


def spelled(shards: Iterable[EncodedPairs], vocabulary: Vocabulary) -> TokenisedPairs:
    """Convert encoded pairs back to tokens. Each byte of a rare character is a token."""
    pairs = [
        ([vocabulary.tokens[i] for i in shard.sources.row(row)], [vocabulary.tokens[i] for i in shard.targets.row(row)])
        for shard in shards
        for row in range(len(shard))
    ]
    return TokenisedPairs(pairs, vocabulary.tokens[len(SPECIALS) :])
