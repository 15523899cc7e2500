"""The questions of a request and the replies to them, as far as they are known."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from chatbot.chat.server.completions import Completion, Reply, chunks, first_chunk, total
from chatbot.inference.questions import Piece, Question, Usage


class Exchange:
    """The questions of a request and the replies to them, as far as they are known.

    echoes: the beginnings of the replies to each question; (): they are empty. log_probs: whether the
    log-probabilities of tokens were asked for.
    """

    def __init__(
        self, completion: Completion, questions: Sequence[Question], echoes: Sequence[str], log_probs: bool
    ) -> None:
        self.completion, self.log_probs = completion, log_probs
        self.replies = [
            Reply(echo)
            for question, echo in zip(questions, echoes or [""] * len(questions), strict=True)
            for _ in range(question.replies)
        ]
        self._questions = questions
        self._usages: list[Usage] = []
        self._begun: set[int] = set()  # replies whose first chunk was made

    def add(self, item: Piece | Usage) -> None:
        """Add the next piece of a reply, or the usage of a question."""
        if isinstance(item, Usage):
            self._usages.append(item)
        else:
            self.replies[item.reply].add(item)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Add the next piece of a reply, and yield its chunks for a stream.

        The first chunks of replies to a question are in the order of their numbers: some clients keep the replies in a
        list. Replies that the search has not found have no chunks.
        """
        first = piece.reply - piece.reply % self._questions[0].replies  # of this question
        for index in sorted({*range(first, piece.reply + 1)} - self._begun):
            yield first_chunk(self.completion, index, self.replies[index].text)
            self._begun.add(index)
        yield from chunks(self.completion, piece, self.log_probs, len(self.replies[piece.reply].text))
        self.add(piece)

    @property
    def answered(self) -> int:
        """The number of replies that were found."""
        return sum(reply.finish_reason is not None for reply in self.replies)

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
                    "replies": [reply.text for reply in replies if reply.finish_reason is not None],
                }
            ).decode()
