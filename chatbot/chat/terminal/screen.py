"""What the chat shows in a terminal: replies as they are made, lines, tables, and errors of one line."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatbot.decoding.reply_text import Origin
from chatbot.display import visible
from chatbot.inference.request import Piece
from chatbot.inference.text_responder import WordAttention

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
