"""Pairs tokenised by this project's tokenizer, as input of every compared system, up to a maximum length."""

import dataclasses
from collections import Counter
from pathlib import Path

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.reading.open.sources import find_sources
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import SPECIALS, UNK


@dataclasses.dataclass(frozen=True)
class TokenisedPairs:
    """Pairs of token lists, and the most frequent tokens, most frequent first."""

    pairs: list[tuple[list[str], list[str]]]
    vocabulary: list[str]

    def write(self, folder: Path, name: str) -> None:
        """Write parallel files, name.src and name.tgt, with tokens separated by spaces."""
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
