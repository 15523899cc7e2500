"""The overlap of replies with the reference replies, by sacrebleu (Post, 2018)."""

import dataclasses
import re
from collections.abc import Sequence

import sacrebleu
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from chatbot.config.evaluation import ANY, CHAR, ZH, is_installed

# The least share of a script in the letters of a text of that language. A Chinese character stands for about a word,
# and five letters for another one; Japanese has Chinese characters, too.
LEAST_SHARE = 0.1
CHINESE, KANA, HANGUL = (
    re.compile(rf"[{characters}]")
    for characters in (
        "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
        "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d",
        "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    )
)


def tokenization_of(references: Sequence[str]) -> str:
    """Return the tokenisation of BLEU that suits the references, as sacrebleu names it."""
    letters = "".join(filter(str.isalpha, "".join(references)))
    chinese, kana, hangul = (len(script.findall(letters)) for script in (CHINESE, KANA, HANGUL))
    least = max(1, LEAST_SHARE * len(letters))
    if kana >= least:
        return "ja-mecab" if is_installed("ja-mecab") else CHAR
    if hangul >= least:
        return "ko-mecab" if is_installed("ko-mecab") else CHAR
    return ZH if chinese >= least else ANY


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Replies beside their references. Both measures are of the whole set, not means over replies.

    tokenization: of BLEU, as sacrebleu names it.
    """

    replies: tuple[str, ...]
    references: tuple[str, ...]
    tokenization: str

    def __add__(self, other: "Overlap") -> "Overlap":
        """Return both sets, which have the same tokenisation."""
        assert self.tokenization == other.tokenization
        return Overlap(self.replies + other.replies, self.references + other.references, self.tokenization)

    @property
    def bleu(self) -> float:
        """Corpus BLEU, 0 to 100; 0 without replies."""
        if not self.replies:
            return 0.0
        # By default, a warning is printed for replies that end in " ."
        bleu = sacrebleu.BLEU(tokenize=self.tokenization, force=True)
        score = float(bleu.corpus_score(self.replies, [self.references]).score)
        for kind in (type(bleu.tokenizer), TokenizerRegexp):
            if hasattr(kind.__call__, "cache_clear"):
                kind.__call__.cache_clear()  # of up to 65,536 lines each: 40 MB in a run with many validations
        return score

    @property
    def chrf(self) -> float:
        """The F-score of character n-grams up to 6, chrF2 (Popovic, 2015), 0 to 100; 0 without replies."""
        if not self.replies:
            return 0.0
        return float(sacrebleu.corpus_chrf(self.replies, [self.references]).score)
