"""The commands of the chat in a terminal: lines that begin with a slash."""

import dataclasses
import difflib
import re
from collections.abc import Callable
from pathlib import Path

from chatbot.attempts.attempt import all_attempts
from chatbot.chat.conversation import Exchange, Rating
from chatbot.chat.ratings import RATINGS
from chatbot.chat.terminal.screen import NO_ATTENTION
from chatbot.chat.terminal.session import Session, expanded
from chatbot.chat.terminal.settings import DEFAULT, FIELDS, HISTORY, changes_of, explanation, shown
from chatbot.chat.terminal.transcript import load, save
from chatbot.corpus.reading.display import counted, decodable, visible
from chatbot.errors import UserError

SLASH = "/"
EXIT = ("exit", "quit")
# Replies of /n, and exchanges of /history, without a number.
BEST, SHOWN = 5, 10
# Similarity of a name that is suggested in place of an unknown one, as difflib measures it.
NEAR = 0.7


@dataclasses.dataclass(frozen=True)
class Command:
    """A command. run: carries it out, given the text after its name."""

    name: str
    arguments: str
    text: str
    run: Callable[[Session, str], None]

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"{SLASH}{self.name} {self.arguments}".rstrip()


def is_command(line: str) -> bool:
    """Return whether a line is a command and no question."""
    return line.startswith(SLASH) and not line.startswith(2 * SLASH)


def question_of(line: str) -> str:
    """Return the question of a line that is no command: `//text` asks `/text`."""
    stripped = line.lstrip()
    return stripped.removeprefix(SLASH) if stripped.startswith(2 * SLASH) else line


def carry_out(session: Session, line: str) -> None:
    """Carry out a command. Raises UserError for one that is unknown, with the nearest, or cannot be carried out."""
    name, _, rest = visible(decodable(line)).strip().removeprefix(SLASH).partition(" ")
    session_command(name).run(session, rest.strip())


def session_command(name: str) -> Command:
    """Return the command of a name. Raises UserError for an unknown one, with the nearest."""
    known = {**COMMANDS, **{other: COMMANDS[command] for other, command in OTHER_NAMES.items()}}
    lower = name.lower().removeprefix(SLASH)
    if lower in known:
        return known[lower]
    nearest = difflib.get_close_matches(lower, known, n=1, cutoff=NEAR)
    hint = f"the nearest is {SLASH}{nearest[0]}" if nearest else f"{SLASH}help lists the commands"
    raise UserError(f"{SLASH}{name}: no such command; {hint}; {2 * SLASH}{name} asks it as a question")


def _help(session: Session, rest: str) -> None:
    if not rest:
        session.screen.explained([(command.usage, command.text) for command in COMMANDS.values()])
        session.screen.sentence("A question that begins with a slash is typed with two: //text")
        return
    bare = rest.removeprefix(SLASH).lower()
    if bare in COMMANDS or bare in OTHER_NAMES or rest.startswith(SLASH):
        command = session_command(bare)
        session.screen.explained([(command.usage, command.text)])
        if command.name == "set":
            session.screen.explained([(name, explanation(name)) for name in FIELDS])
        return
    name = bare.lstrip("-").replace("-", "_")
    if name not in FIELDS:
        nearest = difflib.get_close_matches(name, [*COMMANDS, *FIELDS], n=1, cutoff=NEAR)
        hint = (
            f"the nearest is {nearest[0]}"
            if nearest
            else f"{SLASH}help lists the commands, {SLASH}settings the settings"
        )
        raise UserError(f"{SLASH}help {rest}: no such command or setting; {hint}")
    session.screen.explained([(name, explanation(name))])


def _set(session: Session, rest: str) -> None:
    if not rest:
        _settings(session, "")
    elif rest.lower() == DEFAULT:
        session.set_default()
        session.screen.note("All settings have their defaults.")
    else:
        changes = changes_of(rest)
        session.set(dict(changes))
        values = {**dataclasses.asdict(session.current.responder().decoding), HISTORY: session.conversation.read}
        session.screen.note(", ".join(f"{name}={shown(values[name])}" for name in changes))


def _settings(session: Session, rest: str) -> None:
    _no_arguments("settings", rest)
    used = {HISTORY: session.conversation.read, **dataclasses.asdict(session.current.responder().decoding)}
    changed = session.changed()
    rows = []
    for name, field in FIELDS.items():
        source = "set" if name in changed else "model" if used[name] != field.default else ""
        rows.append([name, shown(used[name]), source])
    session.screen.table(rows, ["setting", "value", "from"])


def _n(session: Session, rest: str) -> None:
    session.show_best(_number("n", rest, BEST))


def _why(session: Session, rest: str) -> None:
    _no_arguments("why", rest)
    if (lines := session.explanation()) is None:
        session.screen.sentence(NO_ATTENTION)
    for line in lines or ():
        session.screen.line(line)


def _history(session: Session, rest: str) -> None:
    exchanges = session.conversation.exchanges
    start = max(0, len(exchanges) - _number("history", rest, SHOWN))
    if not exchanges:
        session.screen.note("No questions yet.")
    elif start:
        session.screen.note(f"{start:,} earlier; {SLASH}history {len(exchanges)} shows all.")
    for number, exchange in enumerate(exchanges[start:], start + 1):
        _show_exchange(session, number, exchange)


def _show_exchange(session: Session, number: int, exchange: Exchange) -> None:
    rated = f"  ({exchange.rating})" if exchange.rating else ""
    session.screen.line(f"{number:>3} > {exchange.question}")
    session.screen.line(f"      {exchange.reply}{rated}")


def _reset(session: Session, rest: str) -> None:
    _no_arguments("reset", rest)
    session.conversation.exchanges.clear()
    session.screen.note("A new conversation.")


def _save(session: Session, rest: str) -> None:
    _write(session, _path("save", rest), overwrite=False)


def _overwrite(session: Session, rest: str) -> None:
    _write(session, _path("overwrite", rest), overwrite=True)


def _write(session: Session, path: Path, overwrite: bool) -> None:
    exchanges = session.conversation.exchanges
    if not exchanges:
        raise UserError("no questions yet, nothing to save")
    saved = save(path, exchanges, overwrite)
    session.screen.note(f"{path}: {counted(saved, 'question')} saved.")
    if left_out := len(exchanges) - saved:
        session.screen.note(f"Left out: {counted(left_out, 'question')} with a bad reply. A .jsonl file keeps ratings.")


def _load(session: Session, rest: str) -> None:
    exchanges = load(path := _path("load", rest))
    session.conversation.exchanges.clear()
    for exchange in exchanges:
        session.conversation.add(exchange.question, exchange.reply, exchange.model, exchange.rated)
    session.screen.note(f"{path}: {counted(len(exchanges), 'question')} loaded. The conversation continues.")


def _model(session: Session, rest: str) -> None:
    if rest:
        with session.screen.busy():
            session.switch(_unquoted(rest))
        session.screen.note(session.current.model.card.line())
        if reads := session.reads():
            session.screen.note(reads)
        return
    rows = [
        [attempt.name, "" if attempt.step is None else f"{attempt.step:,}", attempt.state] for attempt in all_attempts()
    ]
    session.screen.sentence(session.current.model.card.line())
    if rows:
        session.screen.table(rows, ["attempt", "step", "state"])


def _rate(rating: Rating) -> Callable[[Session, str], None]:
    def rate(session: Session, rest: str) -> None:
        _no_arguments(rating, rest)
        session.rate(rating)
        session.screen.note(f"{RATINGS}: rated {rating}.")

    return rate


def _retry(session: Session, rest: str) -> None:
    _no_arguments("retry", rest)
    session.retry()


def _exit(session: Session, rest: str) -> None:
    _no_arguments("exit", rest)
    session.finished = True


def _no_arguments(name: str, rest: str) -> None:
    if rest:
        raise UserError(f"{SLASH}{name} {rest}: {SLASH}{name} takes nothing after it")


def _number(name: str, rest: str, default: int) -> int:
    if not rest:
        return default
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", rest) is None:
        raise UserError(f"{SLASH}{name} {rest}: expected a whole number of at least 1, such as {SLASH}{name} 3")
    return int(rest)


def _path(name: str, rest: str) -> Path:
    path = _unquoted(rest)
    if not path.strip():
        raise UserError(f"{SLASH}{name}: the name of a file is missing, such as {SLASH}{name} chat.jsonl")
    return expanded(path)


def _unquoted(text: str) -> str:
    """Return a name without the pair of quotation marks around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "[NAME]", "list the commands, or explain one or a setting", _help),
        Command("set", "NAME=VALUE ...", "change settings; NAME= resets one, /set default all of them", _set),
        Command("settings", "", "show the settings of the replies", _settings),
        Command("n", "[N]", "show the N best replies to the last question with their scores", _n),
        Command("why", "", "show which words each word of the last reply attended to", _why),
        Command("retry", "", "another reply: another sample, or the next best one", _retry),
        Command("good", "", "rate the last reply good: training can learn it", _rate("good")),
        Command("bad", "", "rate the last reply bad: training leaves it out", _rate("bad")),
        Command("history", "[N]", "show the last N questions and their replies", _history),
        Command("reset", "", "begin a new conversation; so does /new", _reset),
        Command("save", "FILE", "save the conversation; as JSON Lines if FILE ends in .jsonl", _save),
        Command("overwrite", "FILE", "save the conversation in place of what FILE has", _overwrite),
        Command("load", "FILE", "continue a saved conversation", _load),
        Command("model", "[ATTEMPT]", "talk to another attempt or export, or list the attempts", _model),
        Command("exit", "", "end the chat; so do exit, quit and Ctrl-D", _exit),
    )
}
OTHER_NAMES = {"new": "reset", "quit": "exit"}
