"""The state of a chat in the terminal, and its output."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatbot.chat.conversation import Conversation, Exchange
from chatbot.chat.loading import CurrentModel
from chatbot.decoding.reply_text import Origin, WordAttention
from chatbot.display import pluralize, replace_surrogates, visible
from chatbot.errors import UserError
from chatbot.inference.request import Piece
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY

# /why shows up to this number of question words for each word of the reply.
MAX_WORDS = 3
NO_ATTENTION = "This model has no attention weights: it was trained with --attention none."


class Screen:
    """Writes replies and tables to standard output, and messages to standard error.

    Control characters are replaced. Colours are only used in a terminal.
    """

    def __init__(self) -> None:
        self._out, self._messages = (Console(file=stream) for stream in (sys.stdout, sys.stderr))

    def stream(self, pieces: Iterable[Piece]) -> tuple[str, Origin]:
        """Print a reply while it is generated. Return the text, and whether it was generated or retrieved."""
        texts: list[str] = []
        origin = Origin()
        try:
            for piece in pieces:
                origin = piece.origin
                texts.append(piece.text)
                print(visible(piece.text), end="", flush=True)
        except BaseException:
            if any(texts):
                print(flush=True)  # Start the error message on a new line.
            raise
        print(flush=True)
        return "".join(texts), origin

    def line(self, text: str) -> None:
        """Print a line. A long line contains no line breaks when a user copies it, because the terminal wraps it."""
        self._out.print(Text(visible(text)), soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
        """Print a table. The cells of the first column are not wrapped."""
        table = Table(box=None, pad_edge=False, show_header=bool(header))
        for number in range(len(rows[0])):
            name = header[number] if header else ""
            table.add_column(name, overflow="fold", no_wrap=number == 0, style="" if number else "cyan")
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        self._out.print(table)

    def note(self, text: str) -> None:
        """Print a message about the chat."""
        self._message(Text(visible(text), "dim"))

    def error(self, error: Exception) -> None:
        """Print an error message on one line."""
        self._message(Text(visible(f"error: {error}"), "red"))

    def _message(self, text: Text) -> None:
        self._messages.print(text, soft_wrap=not self._messages.is_terminal)


def attention_rows(attention: WordAttention) -> list[list[str]]:
    """Return a table row for each word of the reply.

    A row contains the word, followed by the question words with the largest attention weights.
    """
    rows = []
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        top = sorted(range(len(weights)), key=lambda i: -weights[i])[:MAX_WORDS]
        rows.append([word, *(f"{attention.question[i]} {weights[i]:.2f}" for i in top)])
    return rows


class Session:
    """A chat in a terminal.

    Args:
        current: The model that answers.
        max_turns: The maximum number of earlier messages that the model reads along with a question.
        screen: Prints the replies and messages.
    """

    def __init__(self, current: CurrentModel, max_turns: int, screen: Screen) -> None:
        self.current = current
        self.conversation = Conversation(max_turns)
        self.screen = screen
        self.finished = False

    def answer(self, question: str) -> None:
        """Answer a question: print one or several replies, and add the best one to the conversation."""
        self.current.update(self.screen.note)
        question = replace_surrogates(question)
        context = self.conversation.context()
        n_best = self.current.decoding.n_best
        if n_best > 1:
            best, *_ = self.show(self.current.pieces(question, *context, n_best=n_best))
            reply = best.text
            origin = best.origin
        else:
            reply, origin = self.screen.stream(self.current.pieces(question, *context))
        if reply != EMPTY_QUESTION_REPLY:
            self.conversation.add(question, reply, self.current.model.card.name, origin=origin)

    def show(self, replies: Iterable[Piece]) -> list[Piece]:
        """Print replies with their scores, and return the replies as a list."""
        ranked = list(replies)
        for number, reply in enumerate(ranked, 1):
            self.screen.line(f"{number}. {reply.text}  ({reply.score or 0:.2f})")
        return ranked

    def ask_again(self, **fields: Any) -> list[Piece]:
        """Ask the last question again and return the replies. The arguments replace fields of `Question`."""
        question = self.conversation.exchanges[-1].question
        return list(self.current.pieces(question, *self.conversation.context(-1), **fields))

    def last_exchange(self, error: str) -> Exchange:
        """Return the last question and its reply. If there is none, raise UserError with the message `error`."""
        if self.conversation.last is None:
            raise UserError(f"{error}; ask a question first")
        return self.conversation.last

    def find_origin(self, exchange: Exchange) -> Origin:
        """Return whether a reply was generated or retrieved.

        The result is stored in the exchange, so later ratings cannot change it.
        """
        if exchange.origin is None:
            responder = self.current.model.responder
            exchange.origin = responder.origin(
                exchange.question, exchange.reply, exchange.history, self.current.effective_decoding
            )
        return exchange.origin

    def introduce(self) -> None:
        """Print a summary of the model, the number of earlier messages that it reads, and a few training questions."""
        self.screen.note(f"Talking to {self.current.model.card.summary()}.")
        if turns := self.conversation.max_turns:
            self.screen.note(f"The model reads {pluralize(turns, 'previous turn')} with each question.")
        if questions := self.current.model.card.questions:
            self.screen.note(f"Questions from the training data: {'  '.join(questions)}")
