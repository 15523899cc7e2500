"""The Text page: replies to the sample questions, by validation and by question."""

import collections
from collections.abc import Iterable, Sequence

import tensorflow as tf

from chatbot.evaluation.samples import Sample

# The rows of a history: the last validations.
MOST_ROWS = 100


class Replies:
    """Writes a table of all questions at each validation, and for each question a table of its replies so far.

    A resumed run begins new histories. Those before are still shown, at their steps.
    """

    def __init__(self) -> None:
        self._history: dict[int, collections.deque[tuple[str, str]]] = {}  # step and reply, by the number of a question

    def write(self, samples: Sequence[Sample], replies: Sequence[str], step: int) -> None:
        """Write the replies of a validation, with the default writer."""
        rows = [(sample.question, reply, sample.answer) for sample, reply in zip(samples, replies, strict=True)]
        tf.summary.text("replies", _table(("question", "reply", "reference"), rows), step)
        for number, (question, reply, reference) in enumerate(rows, 1):
            history = self._history.setdefault(number, collections.deque(maxlen=MOST_ROWS))
            history.appendleft((f"{step:,}", reply))
            head = _table(("question", "reference"), [(question, reference)])
            tf.summary.text(f"reply_history/{number}", f"{head}\n\n{_table(('step', 'reply'), history)}", step)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    cells = [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([" | ".join(head), " | ".join("---" for _ in head), *cells])
