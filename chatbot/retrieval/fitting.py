"""Fits the judge, which scores retrieved replies, to the question-reply pairs of an attempt."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.interface import Model
from chatbot.durable import write_json
from chatbot.quiet import progress_bars_disabled
from chatbot.retrieval.characters import Doubles, character_index
from chatbot.retrieval.index import JUDGE, MIN_SCORES, Retrieval
from chatbot.retrieval.judge import BY_MEANING, FEATURES, WITHOUT_MODEL, Judge

SEED = 1

IdPair = tuple[Sequence[int], Sequence[int]]  # token ids of a question with its history, and of its reply

# The maximum number of questions for fitting the judge.
MAX_QUESTIONS = 400
# The number of wrong replies per question: this many replies to similar questions, and as many random replies.
OTHERS = 9
# With fewer questions than this, the default weights are more reliable than fitted weights.
MIN_QUESTIONS = 20
# The fraction of correct answers that reach the fitted minimum score. In a test with 150 unrelated questions, 22% of
# them got an answer.
ANSWERED_FRACTION = 0.9
# The factor that converts log-odds to scores. It makes fitted weights comparable to the default weights.
SCALE = 5.0
# The strength of the prior, in questions: it counts as much as this many questions with features of variance 1.
PRIOR = 30.0


def fit_judge(
    folder: Path,
    vocabulary: Vocabulary,
    model: Model,
    held_out: Sequence[IdPair],
) -> None:
    """Fit the judge, and write it to the index of an attempt's training pairs.

    What is fitted depends on the attempt:
    - With embeddings and validation, the weights are fitted to prefer the true replies to held-out questions.
    - Without embeddings, the default weights are kept, because fitted weights chose worse replies
      (docs/experiments.md).
    - Without validation, only the minimum score is fitted, with and without embeddings. For this purpose, each question
      is excluded from the index in turn, and its answer is retrieved through other phrasings of the question.

    Args:
        folder: The folder of the index.
        vocabulary: The vocabulary of the attempt.
        model: The model of the attempt.
        held_out: The validation pairs.

    Raises:
        UserError: The index is damaged.
        OSError: A file cannot be written.
    """
    (folder / JUDGE).unlink(missing_ok=True)
    retrieval = Retrieval(folder, vocabulary)
    if not retrieval.is_validated:
        by_characters = Retrieval(folder, vocabulary, reads_meaning=False)
        min_scores = [_fit_min_score(index) for index in (retrieval, by_characters)]
        if any(score is not None for score in min_scores):
            write_json(folder / JUDGE, {"weights": WITHOUT_MODEL, **dict(zip(MIN_SCORES, min_scores, strict=True))})
        if min_scores[0] is not None:
            share = f"which {ANSWERED_FRACTION:.0%} of the right answers to other phrasings in the data reach"
            print(f"The chat answers from a score of {min_scores[0]:.1f} on, {share} (--min-score R overrides it).")
    elif retrieval.meaning is not None:
        groups = [*_reply_features(Judge(model, vocabulary, retrieval, BY_MEANING), held_out)]
        if len(groups) >= MIN_QUESTIONS:
            write_json(folder / JUDGE, {"weights": fit_weights(np.stack(groups), BY_MEANING)})


def _reply_features(judge: Judge, held_out: Sequence[IdPair]) -> Iterator[Doubles]:
    """Yield the features of the replies to each question, [replies, features], starting with the true reply."""
    random = np.random.default_rng(SEED)
    held_out = [held_out[i] for i in random.permutation(len(held_out))[:MAX_QUESTIONS]]
    questions = [ids for ids, _ in held_out]
    replies = [tuple(ids) for _, ids in held_out]
    texts = judge.texts(questions)
    similar = character_index(texts or [""])
    for number, text in enumerate(
        tqdm(texts, desc="Fitting the judge", leave=False, delay=2, disable=progress_bars_disabled())
    ):
        # The wrong replies are also held out, because the model prefers replies from its training.
        orders = similar.nearest(text, 4 * OTHERS)[0].tolist(), random.permutation(len(texts)).tolist()
        candidates = dict.fromkeys([replies[number]])
        for order in orders:
            candidates |= dict.fromkeys([x for i in order if (x := replies[i]) not in candidates][:OTHERS])
        if len(candidates) == 1 + 2 * OTHERS:
            yield judge.features([questions[number]] * len(candidates), [*candidates])


def _fit_min_score(retrieval: Retrieval) -> float | None:
    """Fit the minimum score to the scores of correct answers, or return None if there are too few of them."""
    scores = [*_correct_scores(retrieval)]
    return float(np.quantile(scores, 1 - ANSWERED_FRACTION)) if len(scores) >= MIN_QUESTIONS else None


def _correct_scores(retrieval: Retrieval) -> Iterator[float]:
    """Exclude each question from the index in turn, and yield the score of its best answer if the answer is correct."""
    questions, replies = retrieval.texts()
    counts = Counter(replies)
    shared = [number for number, reply in enumerate(replies) if counts[reply] > 1]
    weights = np.array([WITHOUT_MODEL[name] for name in FEATURES])
    for number in shared[:: 1 + len(shared) // MAX_QUESTIONS]:
        (results,) = retrieval.nearest([questions[number]], OTHERS, {number})
        scores = [float(np.dot(values, weights[: len(values)])) for _, *values in results]
        if scores and results[best := int(np.argmax(scores))].pair.reply == replies[number]:
            yield scores[best]


def fit_weights(groups: Doubles, weights: Mapping[str, float]) -> dict[str, float]:
    """Fit weights so that the first reply of each group gets the highest score.

    The result is the maximum a posteriori estimate of a conditional logit model. Its prior is a normal distribution
    around the given weights.

    Args:
        groups: The features of the replies to each question, with shape [groups, replies, features].
        weights: The prior weights by feature name. Weights of constant features are returned unchanged.
    """
    scales = groups.std(axis=(0, 1))
    varies = scales > 0
    values = groups[..., varies] / scales[varies] / SCALE
    prior = np.array([weights[name] for name in FEATURES])[varies] * scales[varies]
    solution = prior
    for _ in range(50):  # Newton's method converges quickly, because the function is concave.
        scores = values @ solution
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        means = np.einsum("gr,grf->gf", shares, values)
        gradient = (values[:, 0] - means).sum(axis=0) - PRIOR / SCALE**2 * (solution - prior)
        curvature = np.einsum("gr,grf,grh->fh", shares, values, values) - means.T @ means
        step = np.linalg.solve(curvature + PRIOR / SCALE**2 * np.eye(len(solution)), gradient)
        solution = solution + step
        if np.abs(step).max() < 1e-6:
            break
    names = [name for name, is_fitted in zip(FEATURES, varies, strict=True) if is_fitted]
    return {**weights, **dict(zip(names, (solution / scales[varies]).round(4).tolist(), strict=True))}
