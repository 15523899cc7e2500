"""A report of an evaluation: one HTML file without references to others, with every question and its replies."""

import string
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.display import counted
from chatbot.errors import UserError
from chatbot.evaluation.entries import MOST_ATTENTION, Entry
from chatbot.evaluation.table import cells, rows_of
from chatbot.inference.word_attention import WordAttention

TEMPLATE = Path(__file__).with_name("report.html")
NUMBERS = ("number", "log-probability", "relevance")  # columns that are sorted as numbers


def write_report(path: str, title: str, search: str, measures: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Write the report. search: the flags of decoding. measures: the result of `evaluate`.

    Raises UserError when the file cannot be written.
    """
    try:
        Path(path).write_text(report(title, search, measures, entries), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--report {path}: cannot be written ({error.strerror}); check the path") from None


def report(title: str, search: str, measures: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """Return the report as HTML. All texts are escaped. The arguments are those of `write_report`."""
    columns = ["number", "question", "reference", "reply", "log-probability", "relevance"]
    if any(entry.baseline is not None for entry in entries):
        columns.append("baseline")
    headings, *measured = cells(rows_of(measures))
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        likelihood=escape(_likelihood(measures)),
        search=escape(search or "greedy search"),
        note=f"A click on one of the first {MOST_ATTENTION} replies shows which words of the question each of its "
        "words looked at; a click on a heading sorts.",
        measures="\n".join([_row(headings, "th"), *(_row(row[:1], "th") + _cells(row[1:], "td") for row in measured)]),
        headings="".join(f'<th class="n">{name}' if name in NUMBERS else f"<th>{name}" for name in columns),
        rows="\n".join(_entry(number, entry, "baseline" in columns) for number, entry in enumerate(entries, 1)),
    )


def _likelihood(measures: Mapping[str, Any]) -> str:
    """Return the likelihood of the references in words, and how BLEU is computed."""
    return (
        f"{counted(measures['pairs'], 'pair')}. Likelihood of the references: "
        f"perplexity {measures['perplexity']:,.2f}, "
        f"{measures['nats_per_token']:.3f} nats per token, {measures['nats_per_character']:.3f} nats per character. "
        f"BLEU: sacrebleu's tokenisation {measures['bleu_tokenize']}."
    )


def _row(texts: Sequence[str], tag: str) -> str:
    return "<tr>" + _cells(texts, tag)


def _cells(texts: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(text)}" for text in texts)


def _entry(number: int, entry: Entry, baseline: bool) -> str:
    reply = escape(entry.reply)
    if entry.attention is not None:
        reply = f"<details><summary>{reply}</summary>{heat_map(entry.attention)}</details>"
    before = "".join(f"<div class=before>{escape(turn)}</div>" for turn in entry.before)
    relevance = "" if entry.relevance is None else f"{entry.relevance:.3g}"
    parts = [f"<tr><td>{number}<td>{before}{escape(entry.question)}<td>{escape(entry.reference)}<td>{reply}"]
    parts.append(f'<td class="n">{entry.log_probability:.2f}<td class="n">{relevance}')
    if baseline:
        parts.append(f"<td>{escape(entry.baseline or '')}")
    return "".join(parts)


def heat_map(attention: WordAttention) -> str:
    """Return a table: a row for each word of the reply, a column for each of the question, darker for more weight."""
    lines = [_row(["", *attention.question], "th")]
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        shades = (min(9, round(10 * weight)) for weight in weights)
        lines.append(f"<tr><th>{escape(word)}" + "".join(f"<td class=w{s}>" if s else "<td>" for s in shades))
    return f"<table class=heat>{''.join(lines)}</table>"
