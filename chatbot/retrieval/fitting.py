"""Fits the judge of an attempt to its own pairs: which reply belongs to a question, and when none does."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.interface import Model
from chatbot.durable import write_json
from chatbot.quiet import no_bars
from chatbot.retrieval.characters import character_index
from chatbot.retrieval.index import JUDGE, Retrieval
from chatbot.retrieval.judge import BY_MEANING, FEATURES, WITHOUT_MODEL, Floats, Judge, fitted

SEED = 1

IdPair = tuple[Sequence[int], Sequence[int]]  # the ids of a question, with turns before it, and of its reply

# Questions that are used, and other replies to each: to similar questions, and as many drawn by a seed.
MOST_QUESTIONS = 400
OTHERS = 9
# With fewer questions, the weights before fitting are better known than what they would be after it.
FEWEST_QUESTIONS = 20
# The share of right answers that are still given: of 150 questions from outside, 22% got an answer then.
KEPT_SHARE = 0.9


def fit_judge(
    folder: Path,
    vocabulary: Vocabulary,
    model: Model,
    both_directions: bool,
    held_out: Sequence[IdPair],
) -> None:
    """Fit how replies are judged, and write it into the index of an attempt's pairs. Raises UserError, OSError.

    With embeddings and validation, the weights are those by which the true replies to held-out questions are told from
    others; by characters alone, fitted weights have chosen worse replies (docs/experiments.md). Without validation, the
    least score of a reply is fitted: phrasings of questions are asked as if they were not known.

    both_directions: whether the model learned the questions to replies.
    """
    (folder / JUDGE).unlink(missing_ok=True)
    retrieval = Retrieval(folder, vocabulary)
    if not retrieval.is_validated:
        if len(scores := [*_right_scores(retrieval)]) >= FEWEST_QUESTIONS:
            least = float(np.quantile(scores, 1 - KEPT_SHARE))
            write_json(folder / JUDGE, {"weights": WITHOUT_MODEL, "least": least})
    elif retrieval.meaning is not None:
        all_features = {**dict.fromkeys(FEATURES, 1.0), "question": float(both_directions)}
        groups = [*_true_and_others(Judge(model, vocabulary, retrieval, all_features), held_out)]
        if len(groups) >= FEWEST_QUESTIONS:
            write_json(folder / JUDGE, {"weights": fitted(np.stack(groups), BY_MEANING)})


def _true_and_others(judge: Judge, held_out: Sequence[IdPair]) -> Iterator[Floats]:
    """Yield the features of the true reply to each question, the first, and of others, [replies, features]."""
    random = np.random.default_rng(SEED)
    held_out = [held_out[i] for i in random.permutation(len(held_out))[:MOST_QUESTIONS]]
    questions = [ids for ids, _ in held_out]
    replies = [tuple(ids) for _, ids in held_out]
    texts = judge.texts(questions)
    similar = character_index(texts or [""])
    for own, text in enumerate(tqdm(texts, desc="Fitting the judge", leave=False, delay=2, disable=no_bars())):
        # Not replies of training: the model has seen them, and they are more probable than any that it has not.
        orders = similar.nearest(text, 4 * OTHERS)[0].tolist(), random.permutation(len(texts)).tolist()
        others = dict.fromkeys([replies[own]])
        for order in orders:
            others |= dict.fromkeys([x for i in order if (x := replies[i]) not in others][:OTHERS])
        if len(others) == 1 + 2 * OTHERS:
            yield judge.features([questions[own]] * len(others), [*others])


def _right_scores(retrieval: Retrieval) -> Iterator[float]:
    """Yield the scores of right answers to questions that are taken out of the index.

    They are those whose answer has another phrasing.
    """
    questions, replies = retrieval.texts()
    counts = Counter(replies)
    several = [number for number, reply in enumerate(replies) if counts[reply] > 1]
    weights = np.array([WITHOUT_MODEL[name] for name in FEATURES])
    for number in several[:: 1 + len(several) // MOST_QUESTIONS]:
        (found,) = retrieval.nearest([questions[number]], OTHERS, {number})
        scores = [float(np.dot(one[1:], weights[: len(one) - 1])) for one in found]
        if scores and found[best := int(np.argmax(scores))].pair.reply == replies[number]:
            yield scores[best]
