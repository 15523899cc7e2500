"""A chat in a terminal: a conversation with a model, and what is shown of it. Commands do the rest."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatbot.chat.conversation import Conversation, Exchange
from chatbot.chat.loading import CurrentModel
from chatbot.decoding.reply_text import Origin, WordAttention
from chatbot.display import counted, decodable, visible
from chatbot.errors import UserError
from chatbot.inference.request import Piece
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY

# Words of the question that /why shows for each word of the reply, the largest weights first.
MOST_WORDS = 3
NO_ATTENTION = "This model shows no attention: it was trained with --attention none."


class Screen:
    """The terminal. Replies and tables go to standard output, messages to standard error.

    No text reaches the terminal with control characters. A stream that is no terminal gets no colours.
    """

    def __init__(self) -> None:
        self._out, self._messages = (
            Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)
            for stream in (sys.stdout, sys.stderr)
        )

    def stream(self, pieces: Iterable[Piece]) -> tuple[str, Origin]:
        """Show a reply while it is made. Return the reply, and where it comes from."""
        shown: list[str] = []
        origin = Origin()
        try:
            for piece in pieces:
                origin = piece.origin
                if piece.text:
                    shown.append(piece.text)
                    print(visible(piece.text), end="", file=sys.stdout, flush=True)
        except BaseException:
            if shown:
                print(file=sys.stdout, flush=True)  # what is said of it is a line of its own
            raise
        print(file=sys.stdout, flush=True)
        return "".join(shown), origin

    def line(self, text: str) -> None:
        """Show a line of an answer, which the terminal breaks anywhere. It is copied as one line."""
        self._out.print(Text(visible(text)), soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
        """Show rows of cells in columns. The first cell of a row is not broken."""
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(header))
        for number in range(len(rows[0])):
            name = header[number] if header else ""
            table.add_column(name, overflow="fold", no_wrap=number == 0, style="" if number else "cyan")
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        self._out.print(table)

    def note(self, text: str) -> None:
        """Show a message about the chat itself."""
        self._message(Text(visible(text), "dim"))

    def error(self, error: Exception) -> None:
        """Show what could not be done, in one line."""
        self._message(Text(visible(f"error: {error}"), "red"))

    def _message(self, text: Text) -> None:
        self._messages.print(text, soft_wrap=not self._messages.is_terminal)


def attention_rows(attention: WordAttention) -> list[list[str]]:
    """Return the rows of /why, one for each word of the reply, with words of the question and their weights."""
    rows = []
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        top = sorted(range(len(weights)), key=lambda i: -weights[i])[:MOST_WORDS]
        rows.append([word, *(f"{attention.question[i]} {weights[i]:.2f}" for i in top)])
    return rows


class Session:
    """A chat in a terminal with a model. read: the maximum number of turns that it reads before a question."""

    def __init__(self, current: CurrentModel, read: int, screen: Screen) -> None:
        self.current = current
        self.conversation = Conversation(read)
        self.screen = screen
        self.finished = False

    def answer(self, question: str) -> None:
        """Show the reply to a question, or the best ones with their scores, and remember it."""
        self.current.update(self.screen.note)
        question = decodable(question)
        turns = self.conversation.turns
        asked = question, turns, self.conversation.last_reply
        number = self.current.decoding.n_best
        if number > 1:
            first, *_ = self.show(self.current.pieces(*asked, n_best=number))
            reply = first.text
            origin = first.origin
        else:
            reply, origin = self.screen.stream(self.current.pieces(*asked))
        if reply != EMPTY_QUESTION_REPLY:
            self.conversation.add(question, reply, self.current.model.card.name, origin=origin)

    def show(self, replies: Iterable[Piece]) -> list[Piece]:
        """Show replies with their scores. Return them."""
        found = list(replies)
        for number, reply in enumerate(found, 1):
            self.screen.line(f"{number}. {reply.text}  ({reply.score or 0:.2f})")
        return found

    def again(self, **fields: Any) -> list[Piece]:
        """Return other replies to the last question. fields: of `Question`."""
        last = self.conversation.exchanges[-1]
        before = self.conversation.turns_before_last
        return list(self.current.pieces(last.question, before, self.conversation.reply_before_last, **fields))

    def last(self, command: str) -> Exchange:
        """Return the last question and its reply. Raises UserError without one."""
        if self.conversation.last is None:
            raise UserError(f"{command}; ask a question first")
        return self.conversation.last

    def origin(self, exchange: Exchange) -> Origin:
        """Return where a reply comes from, and remember it: its rating may change what is looked up."""
        if exchange.origin is None:
            asked = exchange.question, exchange.reply, exchange.before
            exchange.origin = self.current.model.responder.origin(*asked, self.current.used_decoding)
        return exchange.origin

    def introduce(self) -> None:
        """Say what the model was trained on, and how many turns it reads."""
        self.screen.note(f"Talking to {self.current.model.card.line()}.")
        if read := self.conversation.read:
            self.screen.note(f"It reads {counted(read, 'turn')} before a question.")
        if questions := self.current.model.card.questions:
            self.screen.note(f"Questions that it has learned: {'  '.join(questions)}")
