"""From which score on answers are right, so that a chatbot says that it does not know rather than answer wrongly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.decoding.reply_text import Reply
from chatbot.errors import UserError


def read_questions(path: Path) -> list[str]:
    """Return the questions of --outside, the lines of a UTF-8 text file. Raises UserError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--outside {path}: cannot be read ({error}); give a text file of questions") from None


def precision_measures(
    replies: Sequence[Reply], references: Sequence[str], outside: Sequence[Reply], precision: float
) -> dict[str, Any]:
    """Return the least score with a precision, and what it leaves answered, as measures.

    least_score: the lowest from which on the share `precision` of answers is right; None if there is none.
    answered_share: of the questions that have an answer, those that still get one. precision_curve: for each score, the
    highest first, the share that is answered, that of right answers among all given, and the score.

    replies, references: the best reply to each question, and the right one. outside: the best replies to questions that
    have no right answer.
    """
    given = [(reply.score, reply.text == right, True) for reply, right in zip(replies, references, strict=True)]
    given += [(reply.score, False, False) for reply in outside]
    given.sort(key=lambda one: -one[0])
    curve = list[tuple[float, float, float]]()
    right = 0
    inside = 0
    for number, (score, is_right, is_inside) in enumerate(given, start=1):
        right = right + is_right
        inside = inside + is_inside
        if number == len(given) or given[number][0] < score:  # equal scores are given or not together
            curve.append((inside / len(replies), right / number, score))
    enough = [point for point in curve if point[1] >= precision]
    share, _, least = enough[-1] if enough else (0.0, 0.0, None)
    return {"least_score": least, "answered_share": share, "precision_curve": curve}


def precision_line(measures: dict[str, Any], precision: float) -> str:
    """Return the least score in words."""
    if measures["least_score"] is None:
        return f"No score has {precision:.0%} right answers: an answer is right if it is that of --data."
    answered = measures["answered_share"]
    least = measures["least_score"]
    return (
        f"--min-score {least:.4g}: {answered:.0%} of the questions are answered, {precision:.0%} of the answers right."
    )
