"""Reads the lines that a user types: with editing, completion and a history, or plainly where these do not work.

The history is a file with the questions of earlier sessions.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chatbot.attempts.files import CONFIG
from chatbot.chat.terminal.commands import COMMANDS, DEFAULT, FLAGS, SLASH
from chatbot.config.attempts import CHECKPOINTS
from chatbot.display import visible

PROMPT = "> "
# Terminals without cursor movements.
DUMB = ("dumb", "unknown")
# Rows that the completions take at most.
MENU_ROWS = 6
ReadLine = Callable[[], str]


def line_reader() -> ReadLine:
    """Return the function that reads a line. It raises EOFError at the end and KeyboardInterrupt for Ctrl-C."""
    try:
        in_terminal = os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError):
        in_terminal = False
    return _line_editor() if in_terminal and os.environ.get("TERM", "").lower() not in DUMB else _read_plainly


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
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys
    from prompt_toolkit.output.defaults import create_output

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
        history=_history(),
        completer=completer(),
        complete_while_typing=Condition(lambda: session.default_buffer.text.startswith(SLASH)),
        reserve_space_for_menu=MENU_ROWS,
        key_bindings=keys,
        enable_suspend=True,
    )
    return session.prompt


def _history() -> Any:
    """Return the history in a file, or one in memory where the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_path()
    try:
        make_private(path)
    except OSError as error:
        print(f"Questions are not kept for the next chat: {path}: {error.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(path)


def history_path() -> Path:
    """Return the path of the file with the questions of earlier sessions, in the user's state folder."""
    folder = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME", "")
    state = folder if os.path.isabs(folder) else os.path.expanduser("~/.local/state")
    return Path(state, "chatbot", "chat_history")


def make_private(path: Path) -> None:
    """Make the file if there is none, readable by its owner only. Raises OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    os.chmod(path, 0o600)


def completer() -> Any:
    """Return what the Tab key offers, of prompt_toolkit: commands, and their arguments."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
    from prompt_toolkit.document import Document

    def words(texts: Any, about: dict[str, str] | None = None) -> WordCompleter:
        return WordCompleter(texts, ignore_case=True, WORD=True, meta_dict=about)

    commands = {SLASH + name: command.text for name, command in COMMANDS.items()}
    settings = {f"{name}=": flag.text for name, flag in FLAGS.items()}
    files = PathCompleter(expanduser=True)
    arguments = {
        "/help": words([*COMMANDS, *FLAGS]),
        "/set": words([*settings, DEFAULT], settings),
        "/model": words(lambda: sorted(config.parent.name for config in CHECKPOINTS.glob(f"*/{CONFIG}"))),
        **dict.fromkeys(("/save", "/overwrite", "/load"), files),
    }

    class Completions(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            command, space, text = document.text_before_cursor.partition(" ")
            if not space:
                return words([*commands], commands).get_completions(Document(command), complete_event)
            argument = arguments.get(command.lower())
            return [] if argument is None else argument.get_completions(Document(text), complete_event)

    return Completions()
