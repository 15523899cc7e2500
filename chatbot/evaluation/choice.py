"""Measures how often a model gives the true reply a higher score than nine other replies."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from chatbot.attempts.trained import Trained
from chatbot.corpus.vocabulary import ASK, BOS, question_of
from chatbot.decoding.interface import EMPTY_QUESTION, IdRows, Model, score_pairs
from chatbot.evaluation.measures import SEED, Sample, Tokenise
from chatbot.retrieval.characters import character_index
from chatbot.retrieval.judge import Judge

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

REPLIES = 10  # number of candidates, including the true reply
MAX_PAIRS = 1000  # maximum number of pairs to evaluate
# The weight of the log-probability of the question given the reply. Of the weights 0, 1, 2, 4 and 8, 4 was the most
# accurate on 420 pairs of LCCC.
QUESTION_WEIGHT = 4.0


def choice_shares(
    trained: Trained, model: Model, samples: Sequence[Sample], tokens: Tokenise
) -> dict[str, float | None]:
    """Return the fraction of questions whose true reply has the highest score among ten candidates.

    At most MAX_PAIRS samples are evaluated, which are drawn with a fixed seed. No candidate occurs twice.

    Returns:
        The fractions by name. For "choice_random_at_1", the other nine candidates are replies to random questions; for
        "choice_nearest_at_1", they are replies to the nine most similar questions. A value is None if there are fewer
        than ten distinct replies for a question.
    """
    random = np.random.default_rng(SEED)
    samples = [samples[i] for i in random.permutation(len(samples))[:MAX_PAIRS]]
    orders: dict[str, Callable[[int], Iterable[int]]] = {"random": lambda own: random.permutation(len(samples))}
    if samples:
        index = character_index([sample.question for sample in samples])
        orders["nearest"] = lambda own: np.argsort(-index.scores(samples[own].question), kind="stable")
    shares: dict[str, float | None] = {"choice_random_at_1": None, "choice_nearest_at_1": None}
    for name, order in orders.items():
        rows = [[own, *others(samples, own, order(own))] for own in range(len(samples))]
        if rows and min(map(len, rows)) == REPLIES:
            scores = scores_of(trained, model, samples, tokens, np.array(rows))
            shares[f"choice_{name}_at_1"] = float((scores[:, 0] > scores[:, 1:].max(axis=1)).mean())
    return shares


def others(samples: Sequence[Sample], own: int, order: Iterable[int]) -> list[int]:
    """Choose nine pairs whose replies are the wrong candidates for a question.

    These are the first pairs in `order` with distinct replies and a question that differs from that of pair `own`.
    """
    chosen: dict[str, int] = {}
    for pair in order:
        if len(chosen) == REPLIES - 1:
            break
        if samples[pair].question != samples[own].question and samples[pair].answer != samples[own].answer:
            chosen.setdefault(samples[pair].answer, int(pair))
    return [*chosen.values()]


def scores_of(trained: Trained, model: Model, samples: Sequence[Sample], tokens: Tokenise, rows: Indices) -> Floats:
    """Score candidate replies to questions.

    The score is the increase in the per-token log-probability of a reply when the question is known, so common replies
    have no advantage. If the model also learned to predict questions from replies, the weighted per-token
    log-probability of the question given the reply is added. If the attempt has a judge (a model that ranks replies),
    the score of the judge is used instead.

    Args:
        trained: The model with its settings.
        model: The same model, for scoring.
        samples: The question-answer pairs.
        tokens: A function that splits a text into tokens.
        rows: Indices of samples, with shape [questions, REPLIES]. A row contains the sample of the question, followed
            by the samples whose replies are the other candidates.

    Returns:
        The scores, with shape [questions, REPLIES].
    """
    replies = [trained.vocabulary.reply_ids(tokens(sample.answer)) for sample in samples]
    questions = [sample.ids[: trained.settings.model.max_length] for sample in samples]

    def per_token(sources: IdRows, targets: IdRows, begin: int) -> Floats:
        values = score_pairs(model, sources, targets, begin, lambda: True)
        return values / np.array([len(ids) + 1 for ids in targets])

    question_rows = np.repeat(rows[:, 0], REPLIES)
    reply_rows = rows.ravel()
    if (retrieval := trained.retrieval) is not None and retrieval.is_validated and retrieval.weights is not None:
        judge = Judge(model, trained.vocabulary, retrieval)
        features = judge.features([questions[i] for i in question_rows], [replies[i] for i in reply_rows])
        return (features @ judge.weights).reshape(rows.shape)
    after_question = per_token([questions[i] for i in question_rows], [replies[i] for i in reply_rows], BOS)
    after_nothing = per_token([EMPTY_QUESTION] * len(replies), replies, BOS)
    scores = after_question - after_nothing[reply_rows]
    if trained.settings.learning.both_directions == "on":
        last_turns = [question_of(sample.ids, trained.vocabulary) for sample in samples]
        scores += QUESTION_WEIGHT * per_token(
            [replies[i] for i in reply_rows], [last_turns[i] for i in question_rows], ASK
        )
    return scores.reshape(rows.shape)
