"""How often a model chooses the true reply among ten, which depends on no reply that it generates."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from chatbot.attempts.trained import Trained
from chatbot.corpus.vocabulary import ASK, BOS, question_of
from chatbot.decoding.interface import EMPTY_QUESTION, Model, Rows, log_probabilities
from chatbot.evaluation.measures import SEED, Sample, Tokenise
from chatbot.retrieval.characters import character_index
from chatbot.retrieval.judge import Judge

Pairs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# The number of replies, the true one included, and of the pairs that are used.
REPLIES = 10
MOST_PAIRS = 1000
# The weight of the log-probability of the question given the reply. For 0, 1, 2, 4 and 8, the shares of 420 pairs of
# LCCC were 0.462, 0.471, 0.486, 0.488 and 0.474 (random), and 0.350, 0.379, 0.383, 0.390 and 0.388 (nearest).
QUESTION_WEIGHT = 4.0


def choice_shares(
    trained: Trained, model: Model, samples: Sequence[Sample], tokens: Tokenise
) -> dict[str, float | None]:
    """Return the shares of questions whose true reply has the best score of ten, by the others that it is among.

    choice_random_at_1: replies to nine other questions drawn by a seed. choice_nearest_at_1: to the nine most similar
    other questions. The replies of ten differ. None if there are fewer than ten different replies for a question.

    model: that of `trained`. samples: pairs; of more than MOST_PAIRS, so many are drawn by a seed. tokens: from a text
    to its tokens.
    """
    random = np.random.default_rng(SEED)
    samples = [samples[i] for i in random.permutation(len(samples))[:MOST_PAIRS]]
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
    """Return the first nine pairs of an order with another question and reply than a pair's own, each reply once."""
    chosen: dict[str, int] = {}
    for pair in order:
        if len(chosen) == REPLIES - 1:
            break
        if samples[pair].question != samples[own].question and samples[pair].answer != samples[own].answer:
            chosen.setdefault(samples[pair].answer, int(pair))
    return [*chosen.values()]


def scores_of(trained: Trained, model: Model, samples: Sequence[Sample], tokens: Tokenise, rows: Pairs) -> Floats:
    """Return the score of the reply of each pair of a row after the question of the row's first pair: [rows, REPLIES].

    It is what the question adds to the log-probability of the reply, for each of its tokens, and with a model that
    learned both directions the log-probability of the question given the reply, for each of its tokens. The first
    alone does not depend on how usual a reply is. A judge that was fitted to the attempt gives its own score. rows: the
    numbers of pairs, [rows, REPLIES].
    """
    replies = [trained.vocabulary.reply_ids(tokens(sample.answer)) for sample in samples]
    questions = [sample.ids[: trained.settings.model.max_length] for sample in samples]

    def per_token(sources: Rows, targets: Rows, begin: int) -> Floats:
        values = log_probabilities(model, sources, targets, begin, lambda: True)
        return values / np.array([len(ids) + 1 for ids in targets])

    asked = np.repeat(rows[:, 0], REPLIES)
    replied = rows.ravel()
    if (retrieval := trained.retrieval) is not None and retrieval.is_validated and retrieval.weights is not None:
        judge = Judge(model, trained.vocabulary, retrieval)
        features = judge.features([questions[i] for i in asked], [replies[i] for i in replied])
        return (features @ judge.weights).reshape(rows.shape)
    after_question = per_token([questions[i] for i in asked], [replies[i] for i in replied], BOS)
    after_nothing = per_token([EMPTY_QUESTION] * len(replies), replies, BOS)
    scores = after_question - after_nothing[replied]
    if trained.settings.learning.both_directions == "on":
        last_turns = [question_of(sample.ids, trained.vocabulary) for sample in samples]
        scores += QUESTION_WEIGHT * per_token([replies[i] for i in replied], [last_turns[i] for i in asked], ASK)
    return scores.reshape(rows.shape)
