"""The overlap of replies with the reference replies, by sacrebleu (Post, 2018)."""

import dataclasses

import sacrebleu
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Replies beside their references. Both measures are of the whole set, not means over replies."""

    replies: tuple[str, ...]
    references: tuple[str, ...]

    def __add__(self, other: "Overlap") -> "Overlap":
        """Return both sets."""
        return Overlap(self.replies + other.replies, self.references + other.references)

    @property
    def bleu(self) -> float:
        """Corpus BLEU, 0 to 100, with sacrebleu's Chinese tokenisation: each Chinese character is a token.

        It is 0 without replies.
        """
        if not self.replies:
            return 0.0
        score = float(sacrebleu.corpus_bleu(self.replies, [self.references], tokenize="zh").score)
        for tokenise in (TokenizerZh.__call__, TokenizerRegexp.__call__):
            tokenise.cache_clear()  # of up to 65,536 lines each: 40 MB in a run with many validations
        return score

    @property
    def chrf(self) -> float:
        """The F-score of character n-grams up to 6, chrF2 (Popovic, 2015), 0 to 100; 0 without replies."""
        if not self.replies:
            return 0.0
        return float(sacrebleu.corpus_chrf(self.replies, [self.references]).score)
