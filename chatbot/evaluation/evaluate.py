"""Evaluation of a trained model on held-out pairs."""

import dataclasses
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
from chatbot.evaluation.choice import choice_shares
from chatbot.evaluation.held_out import Baseline
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Fluency, Measurer, Sample, Values, precision_measures, samples_of
from chatbot.evaluation.report import Words, entries_of, report_page
from chatbot.flags import flags_for
from chatbot.inference.replier import BATCH, Replier
from chatbot.inference.tensorflow_model import TensorFlowModel, replier_of
from chatbot.quiet import no_bars


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A model, its held-out pairs, and what is measured beside its replies.

    precision, outside, tokenize: of the flags.
    """

    trained: Trained
    corpus: Corpus  # in the vocabulary of the model, with its turns of history
    decoding: DecodingSettings
    fluency: Fluency | None = None  # None: it is not measured
    baseline: Baseline | None = None
    outside: Sequence[str] = ()
    precision: float | None = None
    tokenize: str = AUTO_TOKENIZE
    report: str | None = None  # the path of an HTML file to write
    name: str = "model"  # shown in the report
    warning: Words | None = None  # about the pairs, for the report


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Return the likelihood of the reference replies, the choice among ten, and the measures of the model's replies.

    "references", "random" and "baseline" have the same measures of the references, of references of other questions,
    and of the baseline's replies. Raises OSError when the report cannot be written.
    """
    trained = evaluation.trained
    scorer = Scorer(trained.model)
    likelihood = scorer(evaluation.corpus.shards)
    samples = samples_of(evaluation.corpus)
    both_directions = trained.settings.learning.both_directions == "on"
    tokens = tokens_of(trained.settings.corpus)
    of_questions = scorer if both_directions else None
    measurer = Measurer(samples, trained.vocabulary, tokens, of_questions, evaluation.tokenize)
    fluency = evaluation.fluency

    def measured(replies: list[str]) -> Values:
        return {**measurer(replies), "fluency_nats_per_character": None if fluency is None else fluency(replies)}

    model = TensorFlowModel(trained.model)
    replier = replier_of(trained, evaluation.decoding, model)
    best = best_replies(replier, samples)
    replies = [one.text for one in best]
    rows = {"references": measurer.references, "random": measurer.random_replies()}
    if evaluation.baseline:
        rows["baseline"] = [evaluation.baseline.reply(sample.question) for sample in samples]
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
    if evaluation.precision is not None:
        ids = [trained.vocabulary.ids(tokens(question)) for question in evaluation.outside]
        others = best_replies(replier, [Sample(row, "", "") for row in ids if row])
        measures |= precision_measures(best, measurer.references, others, evaluation.precision)
    if evaluation.report:
        entries = entries_of(trained, samples, replies, tokens, rows.get("baseline"))
        page = report_page(_title(evaluation), flags_for(evaluation.decoding), measures, entries, evaluation.warning)
        Path(evaluation.report).write_text(page, encoding="utf-8", errors="replace")
    return measures


def _title(evaluation: Evaluation) -> Words:
    data = ", ".join(read.file for read in evaluation.corpus.reports)
    name = evaluation.name
    step = f"{evaluation.trained.step:,}"
    return Words(f"{name}, step {step}: replies to {data}", f"{name}，第 {step} 步：对 {data} 的回复")


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
