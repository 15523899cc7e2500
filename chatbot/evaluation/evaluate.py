"""Evaluation of a trained model on held-out pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chatbot.attempts.trained import Trained
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import AUTO_TOKENIZE
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.tokenizer import tokens_of
from chatbot.decoding.reply_text import Reply
from chatbot.evaluation.baseline import Baseline
from chatbot.evaluation.choice import choice_shares
from chatbot.evaluation.fluency import Fluency
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Measurer, Sample, Values, samples_of
from chatbot.evaluation.precision import precision_measures
from chatbot.evaluation.report import Words, entries_of, report_page
from chatbot.flags import flags_for
from chatbot.inference.replier import BATCH, Replier
from chatbot.inference.responder import TensorFlowModel, replier_of
from chatbot.quiet import no_bars


def evaluate(
    trained: Trained,
    corpus: Corpus,
    decoding: DecodingSettings,
    baseline: Baseline | None = None,
    report: str | None = None,
    name: str = "model",
    tokenize: str = AUTO_TOKENIZE,
    fluency: Fluency | None = None,
    warning: Words | None = None,
    precision: float | None = None,
    outside: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the likelihood of the reference replies, the choice among ten, and the measures of the model's replies.

    "references", "random" and "baseline" have the same measures of the references, of references of other questions,
    and of the baseline's replies.

    corpus: in the vocabulary of the model, with its turns of history. report: the path of an HTML file to write. name:
    the model's name, shown there. tokenize: --tokenize. fluency: of --fluency-corpus; None: it is not measured.
    warning: about the pairs, for the report. precision, outside: of the flags. Raises OSError when the report cannot be
    written.
    """
    scorer = Scorer(trained.model)
    likelihood = scorer(corpus.shards)
    samples = samples_of(corpus)
    both_directions = trained.settings.learning.both_directions == "on"
    tokens = tokens_of(trained.settings.corpus)
    measurer = Measurer(samples, trained.vocabulary, tokens, scorer if both_directions else None, tokenize)

    def measured(replies: list[str]) -> Values:
        return {**measurer(replies), "fluency_nats_per_character": None if fluency is None else fluency(replies)}

    model = TensorFlowModel(trained.model)
    replier = replier_of(trained, decoding, model)
    best = best_replies(replier, samples)
    replies = [one.text for one in best]
    rows = {"references": measurer.references, "random": measurer.random_replies()}
    if baseline:
        rows["baseline"] = [baseline.reply(sample.question) for sample in samples]
    measures = {
        "pairs": len(samples),
        "tokens": likelihood.tokens,
        "characters": likelihood.characters,
        "perplexity": likelihood.perplexity,
        "nats_per_token": likelihood.nats_per_token,
        "nats_per_character": likelihood.nats_per_character,
        **choice_shares(trained, model, samples, tokens),
        "bleu_tokenize": measurer.tokenization,
        **measured(replies),
        **{name: measured(of_row) for name, of_row in rows.items()},
    }
    if precision is not None:
        ids = [trained.vocabulary.ids(tokens(question)) for question in outside]
        others = best_replies(replier, [Sample(row, "", "") for row in ids if row])
        measures |= precision_measures(best, [sample.answer for sample in samples], others, precision)
    if report:
        data = ", ".join(read.file for read in corpus.reports)
        title = Words(
            f"{name}, step {trained.step:,}: replies to {data}", f"{name}，第 {trained.step:,} 步：对 {data} 的回复"
        )
        entries = entries_of(trained, samples, replies, tokens, rows.get("baseline"))
        page = report_page(title, flags_for(decoding), measures, entries, warning)
        Path(report).write_text(page, encoding="utf-8", errors="replace")
    return measures


def reply(replier: Replier, samples: list[Sample]) -> list[str]:
    """Return the text of the best reply to each question."""
    return [one.text for one in best_replies(replier, samples)]


def best_replies(replier: Replier, samples: list[Sample]) -> list[Reply]:
    """Return the best reply to each question. Questions of similar length share a batch, which keeps padding low."""
    order = sorted(range(len(samples)), key=lambda number: len(samples[number].ids))
    replies: dict[int, Reply] = {}
    batches = range(0, len(order), BATCH)
    for start in tqdm(batches, desc="Replying", unit=" batches", leave=False, delay=2, disable=no_bars()):
        numbers = order[start : start + BATCH]
        replies.update(zip(numbers, replier.best([samples[number].ids for number in numbers]), strict=True))
    return [replies[number] for number in range(len(samples))]
