"""Measures of replies by the formulas of published figures on DailyDialog, and these figures."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.dailydialog_corpus import KNOWN_WORDS, OFFICIAL, PUBLISHED_SPLIT, UNKNOWN, DailyDialog
from chatbot.evaluation.measures import distinct, ranked_first

# Weights of the precisions of n-grams in BLEU-1 to BLEU-4. dialog-eval has .33, not 1/3.
WEIGHTS = ((1.0,), (0.5,) * 2, (0.33,) * 3, (0.25,) * 4)
COLUMNS = (  # measure, heading, decimal places
    ("mean_words", "words", 1),
    ("distinct_1", "distinct-1", 4),
    ("distinct_2", "distinct-2", 3),
    *((f"bleu_{n}", f"BLEU-{n}", 3) for n in range(1, 5)),
    ("relevance_at_1", "relevance", 3),
    ("nats_per_word", "nats per word", 2),
)
# The published split: Csáky et al., Improving Neural Conversational Models with Entropy-Based Data Filtering, ACL 2019,
# their table of unfiltered DailyDialog, and the least validation loss of their figure 5. The official split: Bao et
# al., PLATO, ACL 2020, their table of DailyDialog.
_MEASURES = ("mean_words", "distinct_1", "distinct_2", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "nats_per_word")
_VALUES: dict[str, dict[str, tuple[float | None, ...]]] = {
    PUBLISHED_SPLIT: {
        "Transformer, least validation loss": (8.6, 0.0290, 0.149, 0.142, 0.135, 0.130, 0.119, 3.08),
        "Transformer, 150 epochs": (11.5, 0.0465, 0.297, 0.333, 0.333, 0.328, 0.315),
        "random replies of train": (13.5, 0.0577, 0.379, 0.090, 0.121, 0.130, 0.125),
        "people": (14.1, 0.0488, 0.362, 1.0, 1.0, 1.0, 1.0),
    },
    OFFICIAL: {
        "Seq2Seq, all turns before": (None, 0.030, 0.128, 0.336, 0.268),
        "pretrained Transformer, all turns before": (None, 0.046, 0.246, 0.405, 0.322),
        "PLATO, all turns before": (None, 0.053, 0.291, 0.397, 0.311),
    },
}
PUBLISHED = {
    split: {f"published: {row}": dict(zip(_MEASURES, values, strict=False)) for row, values in rows.items()}
    for split, rows in _VALUES.items()
}
NOTES = {
    PUBLISHED_SPLIT: f"""\
One turn is the question, the next one the reply. Published rows: the same dialogues (80, 10 and 10 of each hundred) and
cleaned words, BLEU and distinct as dialog-eval computes them. BLEU is the mean of the replies' own, by NLTK 3.4.5 with
smoothing 4. The model and distinct have {UNKNOWN} for each word outside the {KNOWN_WORDS:,} most common ones of
training. The published nats per word are of validation.""",
    OFFICIAL: """\
Published rows: the same parts, lower-cased, BLEU and distinct as PLATO computes them. Their models read all turns
before the reply; this one reads one, or --history more. BLEU is the mean of the replies' own, by NLTK 3.4.5 with
smoothing 7, by which a perfect reply has more than 1.""",
}
NOTE = """\
distinct falls with the number of pairs. Nats per word are the summed nats of the true replies and their end symbols,
over words and ends."""


def measure(pairs: Sequence[tuple[str, str]], replies: Sequence[str], corpus: DailyDialog) -> dict[str, float | None]:
    """Return the measures of a reply to each question."""
    words, number = [reply.split() for reply in replies], max(1, len(pairs))
    model_words = [corpus.model_words(of_reply) for of_reply in words]
    shares = ranked_first([question for question, _ in pairs], replies)
    averaged = corpus.split == OFFICIAL
    scores = [bleu(of_reply, answer.split(), averaged) for of_reply, (_, answer) in zip(words, pairs, strict=True)]
    return {
        "pairs": len(pairs),
        "mean_words": sum(map(len, words)) / number,
        "distinct_1": distinct(model_words, 1),
        "distinct_2": distinct(model_words, 2),
        **{f"bleu_{n}": sum(score[n - 1] for score in scores) / number for n in range(1, 5)},
        "relevance_at_1": None if shares is None else float(shares.mean()),
    }


def bleu(reply: Sequence[str], reference: Sequence[str], averaged: bool) -> list[float]:
    """Return BLEU-1 to BLEU-4 of a reply, smoothed by a method of Chen and Cherry (2014) as NLTK 3.4.5 has it.

    Method 4: a precision of 0 becomes 1 / (n - 1 + 5 / ln(length)). averaged: method 7, in which each precision then
    becomes the mean of itself, the one before as it became, and the one after; before the first is 1 more than it. All
    are 0 for less than two words, whose logarithm is 0, and for no common word.
    """
    precisions = list[float]()
    for n in range(1, 6):
        ours, theirs = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (reply, reference))
        common = (ours & theirs).total()
        if len(reply) < 2 or (n == 1 and not common):
            return [0.0] * 4
        smoothed = (
            1 / (n - 1 + 5 / math.log(len(reply))) if n < 5 else 0.0
        )  # the fifth is only the one after the fourth
        precisions.append(common / ours.total() if common else smoothed)
    if averaged:
        before = precisions[0] + 1
        for n in range(4):
            before = precisions[n] = (before + precisions[n] + precisions[n + 1]) / 3
    brevity = min(1.0, math.exp(1 - len(reference) / len(reply)))
    logarithms = [[w * math.log(p) for w, p in zip(weights, precisions, strict=False)] for weights in WEIGHTS]
    return [brevity * math.exp(sum(of_order)) for of_order in logarithms]


def markdown(rows: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return the lines of a Markdown table of the measures of each row."""
    lines = ["| | " + " | ".join(heading for _, heading, _ in COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name, row in rows.items():
        cells = [(row.get(measure), digits) for measure, _, digits in COLUMNS]
        lines.append(f"| {name} | " + " | ".join("" if x is None else f"{x:.{d}f}" for x, d in cells) + " |")
    return lines
