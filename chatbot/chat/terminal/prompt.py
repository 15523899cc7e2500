"""The prompt of the terminal chat. Most terminals support line editing, completion and a history file."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chatbot.attempts.files import CONFIG
from chatbot.chat.terminal.commands import COMMANDS, DEFAULT, FLAGS
from chatbot.config.attempts import CHECKPOINTS
from chatbot.display import visible

PROMPT = "> "
# The names, in the variable TERM, of terminals that cannot move the cursor.
DUMB = ("dumb", "unknown")
# The maximum number of rows of the completion menu.
MENU_ROWS = 6
ReadLine = Callable[[], str]


def line_reader() -> ReadLine:
    """Return a function that reads a line. The function raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""
    try:
        in_terminal = os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except ValueError:
        in_terminal = False
    return _create_line_editor() if in_terminal and os.environ.get("TERM", "").lower() not in DUMB else _read_basic_line


def _read_basic_line() -> str:
    try:
        if sys.stdout.isatty():
            return input(PROMPT)
        print(PROMPT, end="", file=sys.stderr, flush=True)  # Standard output is only for replies.
        return input()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)  # Move the cursor to the line below the prompt.
        raise


def _create_line_editor() -> ReadLine:
    """Return a function that reads a line with prompt_toolkit."""
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
        event.current_buffer.insert_text(visible(lines))  # Join pasted lines into one question.

    output: Any = create_output(sys.stdout)
    # Do not ask the terminal for the cursor position. A late response would look like typed text.
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        FormattedText([("ansigreen", PROMPT)]),
        output=output,
        history=_create_history(),
        completer=completer(),
        complete_while_typing=Condition(lambda: session.default_buffer.text.startswith("/")),
        reserve_space_for_menu=MENU_ROWS,
        key_bindings=keys,
        enable_suspend=True,
    )
    return session.prompt


def _create_history() -> Any:
    """Return the history of typed lines. It is stored in a file, or in memory if the file is not writable."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_path()
    try:
        make_private(path)
    except OSError as error:
        print(f"The input history cannot be saved: {path}: {error.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(path)


def history_path() -> Path:
    """Return the path of the history file, in the user's state directory."""
    folder = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME", "")
    state = folder if os.path.isabs(folder) else os.path.expanduser("~/.local/state")
    return Path(state, "chatbot", "chat_history")


def make_private(path: Path) -> None:
    """Make a file accessible only to its owner, creating it if necessary. Raises OSError if it is not writable."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    os.chmod(path, 0o600)


def completer() -> Any:
    """Return a prompt_toolkit completer for the commands and their arguments."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
    from prompt_toolkit.document import Document

    def complete_words(words: Any, descriptions: dict[str, str] | None = None) -> WordCompleter:
        return WordCompleter(words, ignore_case=True, WORD=True, meta_dict=descriptions)

    commands = {f"/{name}": command.text for name, command in COMMANDS.items()}
    settings = {f"{name}=": flag.text for name, flag in FLAGS.items()}
    files = PathCompleter(expanduser=True)
    arguments = {
        "/help": complete_words([*COMMANDS, *FLAGS]),
        "/set": complete_words([*settings, DEFAULT], settings),
        "/model": complete_words(lambda: sorted(config.parent.name for config in CHECKPOINTS.glob(f"*/{CONFIG}"))),
        **dict.fromkeys(("/save", "/overwrite", "/load"), files),
    }

    class Completions(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            command, space, text = document.text_before_cursor.partition(" ")
            if not space:
                return complete_words([*commands], commands).get_completions(Document(command), complete_event)
            argument = arguments.get(command.lower())
            return [] if argument is None else argument.get_completions(Document(text), complete_event)

    return Completions()
