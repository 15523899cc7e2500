"""What the chat shows in a terminal: replies as they are made, lines, tables, and errors of one line."""

import contextlib
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chatbot.corpus.reading.display import padded, visible, width
from chatbot.inference.text_responder import WordAttention

# Columns of a terminal that has space for a table of names and their explanations.
WIDE = 60
# Columns that the cells of a column of a table have at least, before their words are broken.
CELL = 10
# Words of the question that /why shows for each word of the reply, the largest weights first.
MOST_WORDS = 3
NO_ATTENTION = "This model shows no attention: it was trained with --attention none or with --input-feeding."


class Screen:
    """The terminal. Replies and tables go to standard output, messages to standard error.

    No text reaches the terminal with control characters. A stream that is no terminal gets no colours.
    """

    def __init__(self) -> None:
        self._out, self._messages = (
            Console(file=stream, force_terminal=stream.isatty(), highlight=False, markup=False, emoji=False)
            for stream in (sys.stdout, sys.stderr)
        )
        self._within_line = False

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return self._out.width

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Show that a reply is computed."""
        if self._out.is_terminal and not self._out.is_dumb_terminal:
            with self._out.status("", spinner="line"):
                yield
        else:
            yield

    def stream(self, pieces: Iterator[str]) -> str:
        """Show a reply while it is made. Returns the reply."""
        shown: list[str] = []
        with self.busy():
            piece: str | None = next(pieces, None)
        while piece is not None:
            shown.append(piece)
            self._within_line = True
            print(visible(piece), end="", file=sys.stdout, flush=True)
            piece = next(pieces, None)
        print(file=sys.stdout, flush=True)
        self._within_line = False
        return "".join(shown)

    def line(self, text: str) -> None:
        """Show a line of an answer, which the terminal breaks anywhere. It is copied as one line."""
        self._out.print(Text(visible(text)), soft_wrap=True)

    def sentence(self, text: str) -> None:
        """Show a text that is broken between words."""
        self._out.print(Text(visible(text)), soft_wrap=not self._out.is_terminal)

    def scored(self, text: str, score: float) -> None:
        """Show a reply with its score, which is not broken."""
        text, shown = visible(text), f"  ({score:.2f})"
        if self._out.is_terminal and end_column(text, self.columns) + len(shown) > self.columns:
            shown = f"\n{shown}"
        self._out.print(Text(text + shown), soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
        """Show rows of cells in columns; in a narrow terminal, the first cell of each row above the others."""
        rows = [[*map(visible, row)] for row in rows]
        widths = [max(map(width, column)) for column in zip(header, *rows, strict=True)]
        if widths[0] + sum(2 + min(columns, CELL) for columns in widths[1:]) > self.columns:
            for first, *cells in rows:
                self._out.print(Text(first, "cyan"), soft_wrap=True)
                self.sentence(
                    "  " + ", ".join(f"{name} {cell}" for name, cell in zip(header[1:], cells, strict=True) if cell)
                )
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in header:
            table.add_column(name, overflow="fold", no_wrap=name == header[0])
        for row in rows:
            table.add_row(*map(Text, row))
        self._out.print(table)

    def explained(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names with an explanation each: beside it, or below it in a narrow terminal."""
        if self.columns >= WIDE:
            table = Table(box=None, pad_edge=False, show_header=False)
            table.add_column(no_wrap=True, style="cyan")
            for name, text in rows:
                table.add_row(visible(name), Text(visible(text)))
            self._out.print(table)
            return
        for name, text in rows:
            self._out.print(Text(visible(name), "cyan"))
            self._out.print(Text(visible(text)))

    def note(self, text: str) -> None:
        """Show a message about the chat itself."""
        self._message(Text(visible(text), "dim"))

    def error(self, error: Exception) -> None:
        """Show what could not be done, in one line."""
        self._message(Text(visible(f"error: {error}"), "red"))

    def stopped(self) -> None:
        """Say that Ctrl-C has stopped what was done."""
        self._out.show_cursor(True)
        self.note("Stopped.")

    def _message(self, text: Text) -> None:
        if self._within_line:
            print(file=sys.stdout, flush=True)
            self._within_line = False
        self._messages.print(text, soft_wrap=not self._messages.is_terminal)


def end_column(text: str, columns: int) -> int:
    """Return the column of the cursor after a text in a terminal of this width. A wide character is not broken."""
    column = 0
    for character in text:
        column = (0 if column + width(character) > columns else column) + width(character)
    return column


def attention_table(attention: WordAttention, columns: int = 80) -> list[str]:
    """Return the lines of /why, one for each word of the reply: the word, and words of the question with their weights.

    columns: of the terminal. Fewer words of the question are shown if the lines are wider, at least one.
    """
    for shown in range(MOST_WORDS, 0, -1):
        lines = _attention_lines(attention, shown)
        if max(map(width, lines)) <= columns:
            break
    return lines


def _attention_lines(attention: WordAttention, shown: int) -> list[str]:
    rows = []
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        top = sorted(range(len(weights)), key=lambda place: -weights[place])[:shown]
        rows.append([visible(word), *(f"{visible(attention.question[i])} {weights[i]:.2f}" for i in top)])
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]
