"""The data doctor's report: what was found, as a person and as a program would rather read it."""

import json

import numpy as np
import numpy.typing as npt

from chatbot.corpus.inspection import FITTING, File, Findings
from chatbot.corpus.shards import SOURCE, TARGET

BARS, WIDTH = 12, 40
# What is worth a warning: shares of all pairs.
MUCH_DROPPED, MUCH_REPEATED, MUCH_ALIKE = 0.1, 0.2, 0.1
FEW = 1000


def report_lines(found: Findings) -> list[str]:
    """The whole report, for a terminal."""
    lines = []
    for file in found.files:
        report = file.report
        kind = f"{', '.join(report.formats)}; {', '.join(report.encodings)}"
        lines.append(f"{report.file}: {kind}; {report.pairs:,} pairs, {file.kept:,} kept")
        lines += [f"  left out: {line}" for line in report.lines()]
        lines += [f"  --clean {rule} changed {count:,} utterances" for rule, count in report.changed.items()]
    lines += ["", "The first pairs:"]
    lines += [f"  {question} -> {answer}" for question, answer in found.samples]
    for name, side in (("Questions", SOURCE), ("Replies", TARGET)):
        lines += ["", f"{name}, in tokens:", *histogram(found.lengths[:, side])]
    lines += ["", f"Vocabulary: {found.words:,} different tokens, {found.characters:,} of them characters."]
    lines += [f"  {size:>6,} entries have {share:6.1%} of all tokens whole" for size, share in found.coverage.items()]
    lines += ["", f"The {len(found.top_replies)} most frequent replies are {found.top_share:.1%} of all:"]
    lines += [f"  {count:>8,}  {text}" for text, count in found.top_replies]
    lines += ["", f"Near duplicates (other punctuation, case or repeated characters): {found.near_duplicates:,} pairs."]
    lines += ["", f"Suggested: --max-length {found.max_length} --vocabulary-size {found.vocabulary_size}"]
    lines += [f"Warning: {warning}" for warning in warnings(found)] or ["No warnings."]
    return lines


def warnings(found: Findings) -> list[str]:
    """What a user should look at before training, each with a remedy."""
    said = []
    for file in found.files:
        dropped = {reason: entry.count for reason, entry in file.report.dropped.items()}
        lost, all_of_it = sum(dropped.values()), file.kept + sum(dropped.values())
        if not file.kept:
            said.append(f"{file.report.file}: no pair is kept; see what was left out above")
        elif lost > MUCH_DROPPED * all_of_it:
            most = max(dropped, key=lambda reason: dropped[reason])
            said.append(f"{file.report.file}: {lost / all_of_it:.0%} left out, most of it {most}")
    if found.pairs < FEW:
        said.append(f"only {found.pairs:,} pairs: a model will know them by heart and little else")
    if found.top_share > MUCH_REPEATED:
        often = max(1, found.pairs // 1000)
        said.append(
            f"{found.top_share:.0%} of all replies are the same {len(found.top_replies)}, and so will the model's be: "
            f"--max-reply-frequency {often}"
        )
    if found.near_duplicates > MUCH_ALIKE * found.pairs:
        alike = found.near_duplicates / found.pairs
        said.append(f"{alike:.0%} of the pairs are near duplicates: --clean control equal duplicates nfkc punctuation")
    return said


def json_line(file: File) -> str:
    """One JSON object: file, format, encoding, pairs, kept, dropped by reason."""
    report = file.report
    return json.dumps(
        {
            "file": report.file,
            "format": ", ".join(report.formats),
            "encoding": ", ".join(report.encodings),
            "pairs": report.pairs,
            "kept": file.kept,
            "dropped": {reason: entry.count for reason, entry in report.dropped.items()},
        },
        ensure_ascii=False,
    )


def histogram(lengths: npt.NDArray[np.int64]) -> list[str]:
    """Bars of equal width up to where nearly all lengths are, and one for the rest."""
    end = int(np.quantile(lengths, FITTING, method="inverted_cdf"))
    width = max(1, -(-end // BARS))
    counts = np.bincount(np.minimum((lengths - 1) // width, BARS))
    rows = []
    for number, count in enumerate(counts.tolist()):
        low, high = number * width + 1, (number + 1) * width
        label = f"{low}+" if number == BARS else f"{low}" if width == 1 else f"{low}-{high}"
        bar = "█" * round(WIDTH * count / int(counts.max()))
        rows.append(f"  {label:>9}  {bar:<{WIDTH}} {count / len(lengths):6.1%}")
    return rows
