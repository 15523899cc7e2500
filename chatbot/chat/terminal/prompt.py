"""Reads the lines that a user types: with editing, completion and a history, or plainly where these do not work."""

import contextlib
import locale
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chatbot.chat.terminal.completion import completions
from chatbot.chat.terminal.question_history import history_path, make_private
from chatbot.chat.visible import visible

PROMPT = "> "
# Terminals without cursor movements.
DUMB = ("dumb", "unknown")
# Rows that the completions take at most.
MENU_ROWS = 6

ReadLine = Callable[[], str]


def line_reader() -> ReadLine:
    """Return the function that reads a line. It raises EOFError at the end and KeyboardInterrupt for Ctrl-C."""
    if not _is_plain():
        return _line_editor()
    if locale.setlocale(locale.LC_CTYPE) not in ("C", "POSIX"):  # where readline drops the eighth bit of UTF-8
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401  (gives input() line editing and history)
    return _read_plainly


def reads_keys() -> bool:
    """Return whether `line_reader` reads single keys, in contrast to lines that the terminal has edited itself."""
    return _in_terminal() and (not _is_plain() or "readline" in sys.modules)


def _is_plain() -> bool:
    """Return whether the streams are no terminal in which a line can be edited."""
    return not _in_terminal() or os.environ.get("TERM", "").lower() in DUMB


def _in_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError):
        return False


def _read_plainly() -> str:
    try:
        if sys.stdout.isatty():
            return input(PROMPT)
        print(PROMPT, end="", file=sys.stderr, flush=True)  # standard output is for the replies
        return input()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)  # ends the line of the prompt
        raise


def _line_editor() -> ReadLine:
    """Return a reader with prompt_toolkit, whose import takes a tenth of a second."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.output.defaults import create_output

    class Completions(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            for text, start, about in completions(document.text_before_cursor):
                yield Completion(text, start, display_meta=visible(about))

    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    @keys.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        lines = event.data.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        event.current_buffer.insert_text(visible(lines))  # one question

    output: Any = create_output(sys.stdout)
    # The answers of a terminal to this question arrive late over a slow connection, and are shown as text.
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        FormattedText([("ansigreen", PROMPT)]),
        output=output,
        history=_history(history_path()),
        completer=Completions(),
        complete_while_typing=Condition(lambda: session.default_buffer.text.startswith("/")),
        reserve_space_for_menu=MENU_ROWS,
        key_bindings=keys,
        enable_suspend=True,
    )
    return session.prompt


def _history(path: Path | None) -> Any:
    """Return the history in a file, or one in memory where the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is not None:
        try:
            make_private(path)
        except OSError as error:
            print(f"Questions are not kept for the next chat: {path}: {error.strerror}", file=sys.stderr)
        else:
            return FileHistory(path)
    return InMemoryHistory()
