"""The questions of a request and the replies to them, as far as they are known."""

from collections.abc import Iterator, Sequence

import orjson

from chatbot.chat.server.completions import Completion, Reply, total
from chatbot.inference.batching.question import Piece, Question, Usage


class Exchange:
    """The questions of a request and the replies to them, as far as they are known.

    echoes: the beginnings of the replies to each question; (): they are empty. log_probs: whether the
    log-probabilities of tokens were asked for.
    """

    def __init__(
        self, completion: Completion, questions: Sequence[Question], echoes: Sequence[str], log_probs: bool
    ) -> None:
        self.completion, self.log_probs = completion, log_probs
        self.beginnings = [
            echo
            for question, echo in zip(questions, echoes or [""] * len(questions), strict=True)
            for _ in range(question.replies)
        ]
        self.replies = [Reply(beginning) for beginning in self.beginnings]
        self._questions = questions
        self._usages: list[Usage] = []

    def add(self, item: Piece | Usage) -> None:
        """Add the next piece of a reply, or the usage of a question."""
        if isinstance(item, Usage):
            self._usages.append(item)
        else:
            self.replies[item.reply].add(item)

    @property
    def usage(self) -> Usage:
        """The usage of all questions."""
        return total(self._usages)

    def lines(self) -> Iterator[str]:
        """Yield a JSON object for each question: {"model", "created", "turns", "replies"}."""
        first = 0
        for question in self._questions:
            replies = self.replies[first : first + question.replies]
            first += question.replies
            yield orjson.dumps(
                {
                    "model": self.completion.model,
                    "created": self.completion.created,
                    "turns": [*question.history, question.text],
                    "replies": [reply.text for reply in replies],
                }
            ).decode()
