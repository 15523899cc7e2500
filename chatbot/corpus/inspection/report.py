"""The inspection report, as text for a terminal and as JSON for a program."""

import json

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import NONE, CorpusSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.encoding.shards import SOURCE, TARGET
from chatbot.corpus.inspection.measurements import FITTING, File, Measurements
from chatbot.corpus.reading.chat_messages import NO_TEXT, NOTICES
from chatbot.corpus.reading.dialogues.douban import FALSE_RESPONSES
from chatbot.corpus.reading.dialogues.subtitles import NO_SPEECH
from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.read import NO_DATA
from chatbot.flags import command_line, program

BARS, BAR_WIDTH = 12, 40
# Thresholds of the warnings, as shares of all pairs, replies or tokens.
MANY_DROPPED, TOP_REPLIES_SHARE, MANY_AFTER_SPACE, MANY_NEAR_DUPLICATES = 0.1, 0.2, 0.3, 0.1
FEW_PAIRS, FREQUENT_REPLY = 1000, 10
# Reasons to drop pairs that the user chose by a flag, and to drop what is no pair of the corpus anyway.
CHOSEN = ("pairs beyond ", "pairs with fewer ", "pairs with more ", "pairs with a blocked ")
NO_PAIRS = (NO_DATA, NOTICES, NO_TEXT, FALSE_RESPONSES, NO_SPEECH)
MAX_LENGTH = ModelSettings().max_length


def report_lines(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the whole report, for a terminal."""
    lines = []
    for file in measured.files:
        report = file.report
        kind = f"{', '.join(report.formats)}; {', '.join(report.encodings)}"
        lines.append(f"{report.file}: {kind}; {counted(report.pairs, 'pair')}, {file.kept:,} kept")
        lines += [f"  {columns}" for columns in report.columns]
        lines += [f"  left out: {line}" for line in report.lines()]
        lines += [f"  note: {line}" for line in report.notes()]
        lines += [f"  --clean {rule} changed {counted(count, 'utterance')}" for rule, count in report.changed.items()]
    lines += ["", "The first pairs:"]
    lines += [f"  {question} -> {answer}" for question, answer in measured.samples]
    for name, side in (("Questions", SOURCE), ("Replies", TARGET)):
        lines += ["", f"{name}, in tokens:", *histogram(measured.lengths[:, side])]
    lines += [
        "",
        f"Vocabulary: {counted(measured.tokens, 'different token')}, {measured.characters:,} of them characters.",
    ]
    lines += ["Tokens outside the vocabulary are spelled in characters, and characters outside it in bytes."]
    lines += [
        f"  {size:>6,} entries cover {cover.tokens:6.1%} of all tokens and {cover.characters:7.2%} of all characters"
        for size, cover in measured.coverage.items()
    ]
    lines += ["", f"The {len(measured.top_replies)} most frequent replies are {measured.top_share:.1%} of all:"]
    lines += [f"  {count:>8,}  {text}" for text, count in measured.top_replies]
    lines += [
        "",
        f"Near duplicates (other punctuation, case or repeated characters): "
        f"{counted(measured.near_duplicates, 'pair')}.",
    ]
    longer = int((measured.lengths.max(axis=1) > MAX_LENGTH).sum())
    lines += [
        "",
        f"Longer than train.py's default --max-length {MAX_LENGTH}: {counted(longer, 'pair')}, which it drops.",
    ]
    flags = f"--max-length {measured.max_length} --vocabulary-size {measured.vocabulary_size}"
    lines += ["", f"Suggested: {program('train.py')} {command_line(settings)} {flags}"]
    lines += [f"Warning: {warning}" for warning in warnings(measured, settings)] or ["No warnings."]
    return lines


def warnings(measured: Measurements, settings: CorpusSettings) -> list[str]:
    """Return the warnings, each with a remedy where there is one."""
    lines = []
    for file in measured.files:
        dropped = {r: entry.count for r, entry in file.report.dropped.items() if not r.startswith((*CHOSEN, *NO_PAIRS))}
        total = sum(dropped.values())
        if not file.kept:
            lines.append(f"{file.report.file}: no pair is kept; the reasons are listed above")
        elif total > MANY_DROPPED * (file.kept + total):
            reason = max(dropped, key=lambda reason: dropped[reason])
            lines.append(f"{file.report.file}: {total / (file.kept + total):.0%} left out, mostly {reason}")
    if measured.pairs < FEW_PAIRS:
        lines.append(f"only {counted(measured.pairs, 'pair')}: a model will memorise them and learn little else")
    limit = max(FREQUENT_REPLY, measured.pairs // 1000)
    repeated = measured.top_share > TOP_REPLIES_SHARE and measured.top_replies[0][1] > limit
    if settings.max_reply_frequency is None and repeated:
        lines.append(
            f"{measured.top_share:.0%} of all replies are the same {len(measured.top_replies)}, and a model trained on "
            f"them will repeat them: --max-reply-frequency {limit}"
        )
    if measured.after_space > MANY_AFTER_SPACE:
        lines.append(
            f"{measured.after_space:.0%} of the Chinese tokens follow a space, as in a corpus with spaces between "
            f"words, unlike what people type: {_with_rules(settings, 'spaces')}"
        )
    if measured.near_duplicates > MANY_NEAR_DUPLICATES * measured.pairs:
        share = f"{measured.near_duplicates / measured.pairs:.0%} of the pairs are near duplicates"
        more = {"nfkc", "punctuation"} - set(settings.clean)
        lines.append(f"{share}; some become equal with {_with_rules(settings, *sorted(more))}" if more else share)
    return lines


def _with_rules(settings: CorpusSettings, *more: str) -> str:
    """Return the --clean flag with the present rules and `more`."""
    return " ".join(["--clean", *(rule for rule in settings.clean if rule != NONE), *more])


def json_line(file: File) -> str:
    """Return one JSON object: file, format, encoding, pairs, kept, dropped by reason, unused by kind."""
    report = file.report
    return json.dumps(
        {
            "file": report.file,
            "format": ", ".join(report.formats),
            "encoding": ", ".join(report.encodings),
            "pairs": report.pairs,
            "kept": file.kept,
            "dropped": {reason: entry.count for reason, entry in report.dropped.items()},
            "unused": {kind: entry.count for kind, entry in report.unused.items()},
        },
        ensure_ascii=False,
    )


def histogram(lengths: npt.NDArray[np.int64]) -> list[str]:
    """Return a bar for each interval of lengths, up to the length that nearly all pairs fit, and one for the rest."""
    end = int(np.quantile(lengths, FITTING, method="inverted_cdf"))
    width = max(1, -(-end // BARS))
    counts = np.bincount(np.minimum((lengths - 1) // width, BARS))
    rows = []
    for interval, count in enumerate(counts.tolist()):
        low, high = interval * width + 1, (interval + 1) * width
        label = f"{low}+" if interval == BARS else f"{low}" if width == 1 else f"{low}-{high}"
        bar = "█" * round(BAR_WIDTH * count / int(counts.max()))
        rows.append(f"  {label:>9}  {bar:<{BAR_WIDTH}} {count / len(lengths):6.1%}")
    return rows
