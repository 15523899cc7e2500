"""Evaluates a trained model on held-out pairs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chatbot.attempts.trained import Trained
from chatbot.config.corpus import AUTO
from chatbot.config.decoding import MIN_SCORE, DecodingSettings
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.tokenizer import tokens_of
from chatbot.decoding.reply_text import Reply
from chatbot.evaluation.choice import choice_shares
from chatbot.evaluation.held_out import Baseline
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Fluency, Measurer, Sample, Values, precision_measures, samples_of
from chatbot.evaluation.report import Bilingual, entries_of, report_page
from chatbot.flags import flags_for
from chatbot.inference.replier import BATCH, Replier
from chatbot.inference.tensorflow_model import TensorFlowModel, replier_for
from chatbot.quiet import progress_bars_disabled


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The model, the held-out pairs and the options of an evaluation.

    Attributes:
        trained: The model to evaluate.
        corpus: The held-out pairs, encoded with the vocabulary and the number of history turns of the model.
        decoding: The decoding settings for replies.
        fluency: The fluency measure; None to omit it.
        baseline: The retrieval baseline to compare with; None to omit it.
        outside: Questions that have no right answer (--outside).
        precision: The target precision (--precision).
        tokenize: The tokenisation for BLEU (--tokenize).
        report: The path of the HTML report to write.
        name: The name of the model in the report.
        warning: A warning about the held-out pairs, shown in the report.
    """

    trained: Trained
    corpus: Corpus
    decoding: DecodingSettings
    fluency: Fluency | None = None
    baseline: Baseline | None = None
    outside: Sequence[str] = ()
    precision: float | None = None
    tokenize: str = AUTO
    report: str | None = None
    name: str = "model"
    warning: Bilingual | None = None


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """Run an evaluation and write the report. Raises OSError if the report cannot be written.

    Returns:
        All measures of the model, as a JSON object. For comparison, nested objects contain the measures of other
        replies: the right ones ("references"), the right ones in random order ("random"), and those of the retrieval
        baseline ("baseline").
    """
    trained = evaluation.trained
    scorer = Scorer(trained.model)
    likelihood = scorer(evaluation.corpus.shards)
    samples = samples_of(evaluation.corpus)
    both_directions = trained.settings.learning.both_directions == "on"
    tokens = tokens_of(trained.settings.corpus)
    question_scorer = scorer if both_directions else None
    measurer = Measurer(samples, trained.vocabulary, tokens, question_scorer, evaluation.tokenize)
    fluency = evaluation.fluency

    def measure(replies: list[str]) -> Values:
        return {**measurer(replies), "fluency_nats_per_character": None if fluency is None else fluency(replies)}

    model = TensorFlowModel(trained.model)
    decoding = evaluation.decoding
    if evaluation.precision is not None and decoding.retrieved and decoding.min_score is None:
        # The scores of all answers are needed, also of those below the minimum score of the attempt.
        decoding = dataclasses.replace(decoding, min_score=MIN_SCORE)
    replier = replier_for(trained, decoding, model)
    best = best_replies(replier, samples)
    replies = [best_reply.text for best_reply in best]
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
        **measure(replies),
        **{name: measure(row) for name, row in rows.items()},
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


def _title(evaluation: Evaluation) -> Bilingual:
    data = ", ".join(read.file for read in evaluation.corpus.reports)
    name = evaluation.name
    step = f"{evaluation.trained.step:,}"
    return Bilingual(f"{name}, step {step}: replies to {data}", f"{name}，第 {step} 步：对 {data} 的回复")


def reply(replier: Replier, samples: list[Sample]) -> list[str]:
    """Return the text of the best reply to each question, in order."""
    return [best_reply.text for best_reply in best_replies(replier, samples)]


def best_replies(replier: Replier, samples: list[Sample]) -> list[Reply]:
    """Return the best reply to each question. Questions of similar length are batched together to reduce padding."""
    order = sorted(range(len(samples)), key=lambda number: len(samples[number].ids))
    replies: dict[int, Reply] = {}
    batches = range(0, len(order), BATCH)
    for start in tqdm(
        batches, desc="Replying", unit=" batches", leave=False, delay=2, disable=progress_bars_disabled()
    ):
        numbers = order[start : start + BATCH]
        replies.update(zip(numbers, replier.best([samples[number].ids for number in numbers]), strict=True))
    return [replies[number] for number in range(len(samples))]
