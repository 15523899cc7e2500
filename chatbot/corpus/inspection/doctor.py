"""The data doctor's report: what was found, as a person and as a program would rather read it."""

import json

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import NONE, TextSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.encoding.shards import SOURCE, TARGET
from chatbot.corpus.inspection.inspection import FITTING, File, Findings
from chatbot.flags import command_line

BARS, WIDTH = 12, 40
# What is worth a warning: shares of all pairs.
MUCH_DROPPED, MUCH_REPEATED, MUCH_SPACED, MUCH_ALIKE = 0.1, 0.2, 0.3, 0.1
FEW, OFTEN = 1000, 10
# Reasons that a flag was given for.
ASKED_FOR = ("pairs beyond ", "pairs with fewer ", "pairs with more ", "pairs with a blocked ")
MAX_LENGTH = ModelSettings().max_length


def report_lines(found: Findings, settings: TextSettings) -> list[str]:
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
    longer = int((found.lengths.max(axis=1) > MAX_LENGTH).sum())
    lines += ["", f"Longer than train.py's default --max-length {MAX_LENGTH}: {longer:,} pairs, left out by it."]
    flags = f"--max-length {found.max_length} --vocabulary-size {found.vocabulary_size}"
    lines += ["", f"Suggested: python train.py {command_line(settings)} {flags}"]
    lines += [f"Warning: {warning}" for warning in warnings(found, settings)] or ["No warnings."]
    return lines


def warnings(found: Findings, settings: TextSettings) -> list[str]:
    """What a user should look at before training, each with a remedy."""
    said = []
    for file in found.files:
        dropped = {r: entry.count for r, entry in file.report.dropped.items() if not r.startswith(ASKED_FOR)}
        lost = sum(dropped.values())
        if not file.kept:
            said.append(f"{file.report.file}: no pair is kept; see above what was left out")
        elif lost > MUCH_DROPPED * (file.kept + lost):
            most = max(dropped, key=lambda reason: dropped[reason])
            said.append(f"{file.report.file}: {lost / (file.kept + lost):.0%} left out, most of it {most}")
    if found.pairs < FEW:
        said.append(f"few pairs ({found.pairs:,}): a model will know them by heart and little else")
    often = max(OFTEN, found.pairs // 1000)
    if settings.max_reply_frequency is None and found.top_share > MUCH_REPEATED and found.top_replies[0][1] > often:
        said.append(
            f"{found.top_share:.0%} of all replies are the same {len(found.top_replies)}, and so will the model's be: "
            f"--max-reply-frequency {often}"
        )
    if found.spaced > MUCH_SPACED:
        said.append(
            f"{found.spaced:.0%} of the Chinese words stand after a space, as in a corpus that was cut into words, "
            f"and not as people type: {_with_rules(settings, 'spaces')}"
        )
    if found.near_duplicates > MUCH_ALIKE * found.pairs:
        alike = f"{found.near_duplicates / found.pairs:.0%} of the pairs are near duplicates, and train as such"
        more = {"nfkc", "punctuation"} - set(settings.clean)
        said.append(f"{alike}; some become equal by {_with_rules(settings, *sorted(more))}" if more else alike)
    return said


def _with_rules(settings: TextSettings, *more: str) -> str:
    """The --clean flag with these rules beside those that are on."""
    return " ".join(["--clean", *(rule for rule in settings.clean if rule != NONE), *more])


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
