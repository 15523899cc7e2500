"""Reads the lines that a user types: with editing, completion and a history, or plainly where these do not work.

The history is a file with the questions of earlier sessions.
"""

import contextlib
import locale
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.chat.terminal.commands import COMMANDS, SLASH, is_command
from chatbot.chat.terminal.settings import DEFAULT, FIELDS
from chatbot.config.attempts import CHECKPOINTS, CONFIG
from chatbot.corpus.reading.display import visible

PROMPT = "> "
# Terminals without cursor movements.
DUMB = ("dumb", "unknown")
# Rows that the completions take at most.
MENU_ROWS = 6
ReadLine = Callable[[], str]
LARGEST_HISTORY = 1 << 20  # bytes
MOST_FILES = 200  # that are offered


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
        history=_history(),
        completer=Completions(),
        complete_while_typing=Condition(lambda: session.default_buffer.text.startswith("/")),
        reserve_space_for_menu=MENU_ROWS,
        key_bindings=keys,
        enable_suspend=True,
    )
    return session.prompt


def _history() -> Any:
    """Return the history in a file, or one in memory where the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if (path := history_path()) is not None:
        try:
            make_private(path)
        except OSError as error:
            print(f"Questions are not kept for the next chat: {path}: {error.strerror}", file=sys.stderr)
        else:
            return FileHistory(path)
    return InMemoryHistory()


@contextlib.contextmanager
def kept_unseen() -> Iterator[None]:
    """Within the block, keep the keys for the next line that is edited, and do not show them. Ctrl-C interrupts.

    The terminal would show them amid the reply, and would take Ctrl-D as the end of a line that nobody reads. Windows
    does neither.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSANOW)  # the default would discard keys that were typed already
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def history_path() -> Path | None:
    """Return the path of the file with the questions of earlier sessions, in the user's state folder.

    None without a home directory.
    """
    folder = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME", "")
    try:
        state = Path(folder) if os.path.isabs(folder) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "chatbot" / "chat_history"


def make_private(path: Path) -> None:
    """Make the file if there is none, readable by its owner only, and keep its newer half if it is large.

    Raises OSError if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        os.chmod(path, 0o600)
        if (size := file.seek(0, os.SEEK_END)) > LARGEST_HISTORY:
            file.seek(size - LARGEST_HISTORY // 2)
            kept = file.read().partition(b"\n\n")[2]  # entries begin after an empty line
            file.truncate(0)
            file.write(b"\n" + kept)


class Suggestion(NamedTuple):
    """A text that replaces the end of the line. start: where, in characters before the cursor, as a negative number."""

    text: str
    start: int
    about: str = ""


def completions(line: str) -> Iterator[Suggestion]:
    """Yield what the Tab key offers: commands, and their arguments. line: the text before the cursor."""
    if not is_command(line):
        return
    name, space, rest = line.removeprefix(SLASH).partition(" ")
    if not space:
        for command in COMMANDS.values():
            if command.name.startswith(name.lower()):
                yield Suggestion(SLASH + command.name, -len(line), command.text)
        return
    found = ARGUMENTS.get(name.lower())
    if found is not None:
        yield from found(rest)


def _help(rest: str) -> Iterator[Suggestion]:
    for name in (*COMMANDS, *FIELDS):
        if name.startswith(rest.lower()):
            yield Suggestion(name, -len(rest))


def _settings(rest: str) -> Iterator[Suggestion]:
    word = rest.rpartition(" ")[2]
    for name, field in FIELDS.items():
        if name.startswith(word.lower().replace("-", "_")):
            yield Suggestion(f"{name}=", -len(word), field.metadata["text"])
    if rest == word and DEFAULT.startswith(word):
        yield Suggestion(DEFAULT, -len(word), "all settings as they are without flags")


def _files(rest: str) -> Iterator[Suggestion]:
    folder, name = os.path.split(rest)
    try:
        entries = sorted(os.scandir(Path(folder).expanduser()), key=lambda entry: entry.name)
    except (OSError, ValueError):
        return
    matching = [entry for entry in entries if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    for entry in matching[:MOST_FILES]:
        if entry.name.isprintable():
            yield Suggestion(entry.name + (os.sep if entry.is_dir() else ""), -len(name))


def _models(rest: str) -> Iterator[Suggestion]:
    for config in sorted(CHECKPOINTS.glob(f"*/{CONFIG}")):
        if config.parent.name.startswith(rest):
            yield Suggestion(config.parent.name, -len(rest))
    if os.sep in rest:
        yield from _files(rest)


ARGUMENTS = {"help": _help, "set": _settings, "model": _models, "save": _files, "overwrite": _files, "load": _files}
