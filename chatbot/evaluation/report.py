"""Formats the results of an evaluation as a table for the terminal and as an HTML report with every reply."""

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatbot.attempts.trained import Trained
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.reply_text import WordAttention, attention_by_word
from chatbot.display import align_columns, pluralize
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Sample, ranked_first
from chatbot.inference.replier import BATCH
from chatbot.inference.tensorflow_model import TensorFlowModel

# The columns of the table: heading, measure, scale factor, number of decimals, and Chinese heading.
COLUMNS = (
    ("distinct-2 of characters", "distinct_characters_2", 1, 3, "字的 distinct-2"),
    ("top reply", "top_reply_share", 100, 1, "最常见的一条"),
    ("top ten", "top10_reply_share", 100, 1, "最常见的十条"),
    ("repeated", "repeated_reply_share", 100, 1, "重复的回复"),
    ("relevance", "relevance_at_1", 1, 3, "相关性"),
    ("BLEU", "bleu", 1, 2, "BLEU"),
    ("chrF", "chrf", 1, 2, "chrF"),
    ("mean tokens", "mean_reply_tokens", 1, 1, "平均词元数"),
    ("nats by n-grams", "fluency_nats_per_character", 1, 2, "n 元模型的 nats"),
)
# Maps the name of each row to a key of the JSON object.
ROWS = {"references": "references", "random of this file": "random", "baseline": "baseline"}
CHINESE = {heading: chinese for heading, *_, chinese in COLUMNS} | {
    "": "",  # top left corner of the table
    "model": "模型",
    "references": "参考回复",
    "random of this file": "随机参考回复",
    "baseline": "基线",
}
TEMPLATE = Path(__file__).with_name("report.html")
# Maximum number of replies with an attention heat map, to limit the size of the report.
MAX_ATTENTION = 200


def rows_of(measures: Mapping[str, Any]) -> dict[str, Mapping[str, float | None]]:
    """Return the table rows, by name, for a result of `evaluate`."""
    return {"model": measures, **{row: measures[name] for row, name in ROWS.items() if name in measures}}


def summary(measures: Mapping[str, Any], held_out: bool, precision: float | None) -> list[str]:
    """Return the lines to print in a terminal.

    Args:
        measures: The result of `evaluate`.
        held_out: Whether the pairs are free of training pairs.
        precision: The target precision; None without --precision.
    """
    questions = pluralize(measures["pairs"], "held-out question" if held_out else "question")
    return [
        f"Replies to {questions}; BLEU by sacrebleu's tokenisation {measures['bleu_tokenize']}:",
        *table(rows_of(measures)),
        choice_line(measures),
        *([] if precision is None else [precision_line(measures, precision)]),
    ]


def table(rows: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Format measures as the lines of an aligned table, with one row per source of replies; see `cells`."""
    texts = cells(rows)
    return align_columns(texts, [True, *[False] * (len(texts[0]) - 1)])


def cells(rows: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    """Return the cells of the table, starting with the headings. Columns without any value are omitted."""
    columns = [column for column in COLUMNS if any(values.get(column[1]) is not None for values in rows.values())]
    lines = [["", *(heading for heading, *_ in columns)]]
    for name, values in rows.items():
        lines.append([name, *(_format(values.get(measure), *format) for _, measure, *format, _ in columns)])
    return lines


def _format(value: float | None, factor: int, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value * factor:.{digits}f}" + ("%" if factor == 100 else "")


class Bilingual(NamedTuple):
    """A text of the report in English and Chinese. The browser displays one of the languages."""

    english: str
    chinese: str

    def html(self) -> str:
        """Return both texts, HTML-escaped, in span elements with a lang attribute."""
        return f'<span lang="en">{escape(self.english)}</span><span lang="zh">{escape(self.chinese)}</span>'


class Entry(NamedTuple):
    """A row of the report: a question and its replies."""

    question: str
    reference: str
    reply: str
    log_probability: float  # log-probability of the reply, in nats
    relevance: float | None  # from `ranked_first`
    attention: WordAttention | None
    baseline: str | None  # the reply of the baseline
    before: tuple[str, ...] = ()  # previous turns of the conversation that the model reads, oldest first


def entries_of(
    trained: Trained,
    samples: Sequence[Sample],
    replies: Sequence[str],
    tokens: Callable[[str], list[str]],
    baseline: Sequence[str] | None,
) -> list[Entry]:
    """Return a report entry for each question, with the model's reply and, if given, the baseline's reply."""
    vocabulary = trained.vocabulary
    max_length = trained.settings.model.max_length
    questions = [sample.ids[:max_length] for sample in samples]
    ids = [vocabulary.reply_ids(tokens(reply)) for reply in replies]
    scorer = Scorer(trained.model)
    no_characters = np.zeros(len(ids), np.int64)
    pairs = EncodedPairs.question_to_answer(Ragged.from_rows(questions), Ragged.from_rows(ids), no_characters)
    relevance = ranked_first([sample.question for sample in samples], replies)
    attention: list[WordAttention] = []
    if trained.model.decoder.attention is not None:
        model = TensorFlowModel(trained.model)
        for start in range(0, min(MAX_ATTENTION, len(ids)), BATCH):
            part = slice(start, min(start + BATCH, MAX_ATTENTION))
            weights = model.attention(questions[part], ids[part])
            rows = zip(questions[part], ids[part], weights, strict=True)
            attention += [attention_by_word(vocabulary, *row) for row in rows]
    return [
        Entry(
            sample.question,
            sample.answer,
            replies[i],
            log_probability=-scorer([pairs.select([i])]).nats,
            relevance=None if relevance is None else float(relevance[i]),
            attention=attention[i] if i < len(attention) else None,
            baseline=None if baseline is None else baseline[i],
            before=turns_before(questions[i], vocabulary),
        )
        for i, sample in enumerate(samples)
    ]


def turns_before(source: Sequence[int], vocabulary: Vocabulary) -> tuple[str, ...]:
    """Decode the previous turns of the conversation that precede the question in `source`, oldest first."""
    marks = range(vocabulary.first_mark, vocabulary.first_byte)
    starts = [position for position, i in enumerate(source) if i in marks]
    return tuple(vocabulary.text(source[start:end]) for start, end in itertools.pairwise(starts))


def report_page(
    title: Bilingual,
    search: str,
    measures: Mapping[str, Any],
    entries: Sequence[Entry],
    warning: Bilingual | None = None,
) -> str:
    """Return the HTML report.

    Args:
        title: The title of the page.
        search: The decoding flags, as on the command line.
        measures: The result of `evaluate`.
        entries: The questions with their replies.
        warning: A warning to show above the results.
    """
    headings, *measured = cells(rows_of(measures))
    has_baseline = any(entry.baseline is not None for entry in entries)
    texts = {
        "title": title.english,
        "pairs": pluralize(measures["pairs"], "pair"),
        "number": f"{measures['pairs']:,}",
        "perplexity": f"{measures['perplexity']:,.2f}",
        "nats_per_token": f"{measures['nats_per_token']:.3f}",
        "nats_per_character": f"{measures['nats_per_character']:.3f}",
        "tokenization": measures["bleu_tokenize"],
        "choice": choice_line(measures),
        "choice_random": _format(measures["choice_random_at_1"], 1, 3),
        "choice_nearest": _format(measures["choice_nearest_at_1"], 1, 3),
        "lines": str(len(headings)),
        "most_attention": str(MAX_ATTENTION),
    }
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        {name: escape(text) for name, text in texts.items()},
        heading=title.html(),
        warning="" if warning is None else f"<p><strong>{warning.html()}</strong></p>",
        search=f"<code>{escape(search)}</code>" if search else Bilingual("greedy search", "贪心搜索").html(),
        headings="".join(f"<th>{Bilingual(name, CHINESE[name]).html()}" for name in headings),
        measures="\n".join(
            f"<tr><th>{Bilingual(name, CHINESE[name]).html()}{_cells(values, 'td')}" for name, *values in measured
        ),
        baseline=f"<th>{Bilingual('baseline', '基线回复').html()}" if has_baseline else "",
        curve=_curve(measures.get("precision_curve", ())),
        rows="\n".join(_entry(number, entry, has_baseline) for number, entry in enumerate(entries, 1)),
    )


def _curve(points: Sequence[tuple[float, float, float]]) -> str:
    """Draw the "precision_curve" of `precision_measures` as SVG; "" without --precision."""
    if not points:
        return ""
    line = " ".join(f"{300 * answered:.1f},{100 - 100 * right:.1f}" for answered, right, _ in points)
    words = Bilingual(
        "Horizontal: answered questions, 0 to 100%. Vertical: right answers among them.",
        "横轴：得到回答的问题比例（0 到 100%）；纵轴：回答正确的比例。",
    )
    frame = '<rect width="300" height="100" fill="none" stroke="#ddd"/>'
    drawn = f'{frame}<polyline points="{line}" fill="none" stroke="#36c" stroke-width="2"/>'
    return f'<svg viewBox="-2 -2 304 104" width="456" height="156" role="img">{drawn}</svg><p>{words.html()}</p>'


def choice_line(measures: Mapping[str, Any]) -> str:
    """Return a sentence that states how often the model selects the true reply among ten."""
    random, nearest = (_format(measures[f"choice_{others}_at_1"], 1, 3) for others in ("random", "nearest"))
    return f"True reply chosen among ten: {random} with random others, {nearest} with replies to the nearest questions."


def precision_line(measures: Mapping[str, Any], precision: float) -> str:
    """Return a sentence that states the minimum score found by `precision_measures`."""
    if measures["least_score"] is None:
        return f"No score reaches {precision:.0%} right answers: an answer is right if it equals the one in --data."
    answered = measures["answered_share"]
    min_score = measures["least_score"]
    return (
        f"--min-score {min_score:.4g}: {answered:.0%} of the questions are answered, {precision:.0%} of the answers "
        "are right."
    )


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
    """Return an HTML table of attention weights, with reply words as rows and question words as columns.

    Darker cells have larger weights.
    """
    lines = ["<tr>" + _cells(["", *attention.question], "th")]
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        shades = (min(9, round(10 * weight)) for weight in weights)
        lines.append(f"<tr><th>{escape(word)}" + "".join(f"<td class=w{s}>" if s else "<td>" for s in shades))
    return f"<table class=heat>{''.join(lines)}</table>"
