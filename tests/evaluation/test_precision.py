"""The least score with a wanted precision, against all scores tried one after another."""

import random

import pytest

from chatbot.decoding.reply_text import Reply
from chatbot.evaluation.measures import precision_measures
from chatbot.evaluation.report import precision_line


@pytest.mark.parametrize("seed", range(8))
def test_least_score_is_the_minimum_for_the_precision(seed: int) -> None:
    """Scores that are equal are given or not together. Questions from outside have wrong answers only."""
    drawn = random.Random(seed)
    replies = [Reply(drawn.choice("ab"), float(drawn.randrange(8))) for _ in range(20)]
    references = [drawn.choice("ab") if drawn.random() < 0.5 else reply.text for reply in replies]
    outside = [Reply("a", float(drawn.randrange(4))) for _ in range(drawn.randrange(6))]
    precision = drawn.choice([0.5, 0.7, 0.9])

    def right_share(least: float) -> float:
        given = [reply.text == ref for reply, ref in zip(replies, references, strict=True) if reply.score >= least]
        return sum(given) / (len(given) + sum(reply.score >= least for reply in outside))

    measures = precision_measures(replies, references, outside, precision)
    scores = {reply.score for reply in (*replies, *outside)}
    reached = [x for x in scores if any(r.score >= x for r in replies) and right_share(x) >= precision]
    assert measures["least_score"] == min(reached, default=None)
    answered = [sum(reply.score >= least for reply in replies) / 20 for least in reached]
    assert measures["answered_share"] == max(answered, default=0)
    curve = measures["precision_curve"]
    assert [score for _, _, score in curve] == sorted(scores, reverse=True)
    assert curve[-1][:2] == (1.0, right_share(min(scores)))


def test_unreachable_precision_is_reported() -> None:
    measures = precision_measures([Reply("a", 1.0)], ["b"], [], 0.9)
    assert (measures["least_score"], measures["answered_share"]) == (None, 0)
    assert "No score reaches 90% right answers" in precision_line(measures, 0.9)
    found = precision_measures([Reply("a", 1.25), Reply("b", 1.0)], ["a", "a"], [], 0.9)
    assert (
        precision_line(found, 0.9)
        == "--min-score 1.25: 50% of the questions are answered, 90% of the answers are right."
    )
