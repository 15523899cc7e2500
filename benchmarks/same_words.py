"""Identical tokens for every system: pairs from this project's tokenizer, within the length limit of all systems."""

import dataclasses
from collections import Counter
from pathlib import Path

from chatbot.config.corpus import TextSettings
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import SPECIALS, UNK
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.text.utterance import tokens_of


@dataclasses.dataclass(frozen=True)
class SameWords:
    """Tokenised pairs, and the vocabulary in order of frequency."""

    pairs: list[tuple[list[str], list[str]]]
    vocabulary: list[str]

    def write(self, folder: Path, name: str) -> None:
        """Write parallel files, name.src and name.tgt, with words separated by spaces."""
        for side, suffix in enumerate(("src", "tgt")):
            lines = "".join(" ".join(pair[side]) + "\n" for pair in self.pairs)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")

    def encoded(self) -> EncodedPairs:
        """As this project trains on them."""
        numbers = {word: number for number, word in enumerate(self.vocabulary, len(SPECIALS))}
        sources, targets = (
            Ragged.from_rows([[numbers.get(w, UNK) for w in pair[side]] for pair in self.pairs]) for side in (0, 1)
        )
        return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def words_of(file: str, max_length: int, vocabulary_size: int) -> SameWords:
    """Returns the pairs within max_length (the answer including its end symbol) and the vocabulary of both sides.

    Raises UserError for a file that cannot be read.
    """
    (source,) = find_sources([file])
    tokenise = tokens_of(TextSettings())
    pairs = [(tokenise(question), tokenise(answer)) for question, answer in read(source, Report())]
    pairs = [(q, a) for q, a in pairs if 0 < len(q) <= max_length and 0 < len(a) < max_length]
    counts = Counter(word for pair in pairs for side in pair for word in side)
    return SameWords(pairs, [word for word, _ in counts.most_common(vocabulary_size - len(SPECIALS))])
