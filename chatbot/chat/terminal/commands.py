"""The commands of the chat in a terminal: lines that begin with a slash."""

import dataclasses
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chatbot.attempts.description import all_attempts
from chatbot.chat.conversation import Exchange, rate_last
from chatbot.chat.terminal.session import NO_ATTENTION, Session, attention_rows
from chatbot.chat.terminal.transcript import load, save
from chatbot.config.attempts import RATINGS
from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.display import counted, decodable, visible
from chatbot.errors import UserError
from chatbot.flags import Flag, flags_of, nearest, settings_by_name
from chatbot.retrieval.ratings import Rating

SLASH = "/"
# Commands that need no slash.
PLAIN = {"exit": "exit", "quit": "exit", "help": "help", "帮助": "help"}
# Replies of /n, and exchanges of /history, without a number.
BEST = 5
SHOWN = 10
# With a search for the best reply, /retry looks for this number of replies or multiples of it.
NEXT_BEST = 5
# /retry draws at most this number of samples until one differs from the replies before.
SAMPLES = 10
HISTORY = "history"
DEFAULT = "default"
# What /set changes, by name, in the order of /settings.
FLAGS = {HISTORY: flags_of(ChatSettings)[HISTORY], **flags_of(DecodingSettings)}


@dataclasses.dataclass(frozen=True)
class Command:
    """A command. run: carries it out, given the text after its name, which is empty without `arguments`."""

    name: str
    arguments: str
    text: str
    run: Callable[[Session, str], None]

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"{SLASH}{self.name} {self.arguments}".rstrip()


def respond(session: Session, line: str) -> None:
    """Carry out a command, or answer a question, which `//text` asks as `/text`.

    Raises UserError for a command that is unknown, with the nearest, or cannot be carried out.
    """
    stripped = line.strip()
    if stripped.startswith(2 * SLASH):
        session.answer(line.lstrip().removeprefix(SLASH))
    elif stripped.startswith(SLASH) or stripped.lower() in PLAIN:
        _carry_out(session, PLAIN.get(stripped.lower(), line))
    else:
        session.answer(line)


def _carry_out(session: Session, line: str) -> None:
    name, _, text = visible(decodable(line)).strip().removeprefix(SLASH).partition(" ")
    command = _command_of(name)
    text = text.strip()
    if text and not command.arguments:
        raise UserError(f"{SLASH}{command.name} {text}: {SLASH}{command.name} takes nothing after it")
    with settings_by_name(FLAGS):
        command.run(session, text)


def _command_of(name: str) -> Command:
    """Return the command of a name. Raises UserError for an unknown one, with the nearest."""
    lower = name.lower().removeprefix(SLASH)
    if lower in KNOWN:
        return KNOWN[lower]
    near = nearest(lower, KNOWN)
    hint = f"the nearest is {SLASH}{near}" if near else f"{SLASH}help lists the commands"
    raise UserError(f"{SLASH}{name}: no such command; {hint}; {2 * SLASH}{name} asks it as a question")


def _help(session: Session, text: str) -> None:
    name = text.lower().lstrip("-/").replace("-", "_")
    if not text:
        session.screen.table([(command.usage, command.text) for command in COMMANDS.values()])
        session.screen.line("A question that begins with a slash is typed with two: //text")
    elif name in FLAGS and name not in KNOWN:
        several = f"; several are separated by commas, {name}=one,two" if FLAGS[name].many else ""
        session.screen.table([(name, FLAGS[name].text + several)])
    else:
        command = _command_of(name)
        session.screen.table([(command.usage, command.text)])


def _set(session: Session, text: str) -> None:
    """Change settings. Nothing is changed if one of them is not allowed."""
    trained = session.current.model.turns
    current = session.current
    if not text:
        _settings(session, "")
    elif text.lower() == DEFAULT:
        current.set_decoding(DecodingSettings())
        session.conversation.read = trained
        session.screen.note("All settings have their defaults.")
    else:
        changes = changes_of(text)
        of_decoding = {name: value for name, value in changes.items() if name != HISTORY}
        read = changes.get(HISTORY, session.conversation.read)
        read = trained if read is None else read
        if read > trained:
            turns = f"{counted(trained, 'turn')} before a question; give at most {trained}"
            raise UserError(f"/set {HISTORY}={read}: the model was trained to read {turns}")
        if of_decoding:
            current.set_decoding(dataclasses.replace(current.decoding, **of_decoding))
        session.conversation.read = read
        values = {**dataclasses.asdict(current.used_decoding), HISTORY: read}
        session.screen.note(", ".join(f"{name}={shown(values[name])}" for name in changes))


def _settings(session: Session, text: str) -> None:
    read = session.conversation.read
    trained = session.current.model.turns
    rows = [[HISTORY, str(read), "model" if read == trained else "set"]]
    chosen = session.current.decoding
    used = session.current.used_decoding
    for name, flag in flags_of(DecodingSettings).items():
        value = getattr(used, name)
        is_set = value == getattr(chosen, name)
        rows.append([name, shown(value), "" if value == flag.default else "set" if is_set else "model"])
    session.screen.table(rows, ["setting", "value", "from"])


def _n(session: Session, text: str) -> None:
    number = _number("n", text, BEST)
    session.last("/n: no reply yet")
    session.show(session.again(decoding=with_replies(session.current.used_decoding, number), n_best=number))


def with_replies(decoding: DecodingSettings, number: int) -> DecodingSettings:
    """Return settings of the same kind of search that finds this number of replies.

    decoding: chooses a search. Raises UserError for more replies than it can find.
    """
    if decoding.hypotheses >= number:
        return decoding
    if decoding.samples:
        return dataclasses.replace(decoding, candidates=number)
    return dataclasses.replace(decoding, beam_size=number)


def _retry(session: Session, text: str) -> None:
    """Replace the last reply by a sample of another seed, or by the next best one."""
    last = session.last("/retry: no reply yet")
    decoding = session.current.used_decoding
    another, remedy = (
        (_sample, "no sample differs from the replies before; /set temperature=2 makes more varied ones")
        if decoding.samples
        else (_next_best, "the search finds no other reply; /set temperature=1 beam_size= samples replies")
    )
    reply = another(session, last, decoding)
    if reply is None:
        raise UserError(f"/retry: {remedy}")
    session.screen.line(reply)
    last.replace(reply, session.conversation.turns_before_last, session.current.model.card.name)


def _sample(session: Session, last: Exchange, decoding: DecodingSettings) -> str | None:
    for number in range(SAMPLES):
        seed = (decoding.seed + len(last.replies) + number) % 2**31
        (reply,) = session.again(seed=seed, n_best=1)
        if reply.text not in last.replies:
            return reply.text
    return None


def _next_best(session: Session, last: Exchange, decoding: DecodingSettings) -> str | None:
    number = max(-(-(len(last.replies) + 1) // NEXT_BEST) * NEXT_BEST, decoding.hypotheses)
    replies = session.again(decoding=with_replies(decoding, number), n_best=number)
    return next((reply.text for reply in replies if reply.text not in last.replies), None)


def _why(session: Session, text: str) -> None:
    last = session.last("/why: no reply yet")
    responder = session.current.model.responder
    decoding = session.current.used_decoding
    if responder.fixed_reply(last.question, [0], decoding) == last.reply:
        session.screen.line("A rule gave this answer (--rules).")
        return
    if last.reply == decoding.fallback and (
        decoding.min_score is not None or not responder.replier_of(decoding).generates
    ):
        score = "fits" if decoding.min_score is None else f"has the score {decoding.min_score:g} (min_score)"
        session.screen.line(f"No reply {score}.")
        return
    if (origin := session.origin(last)).question:
        found = "This reply was rated good as a reply" if origin.is_rated else "A person wrote this reply,"
        session.screen.line(f"{found} to: {origin.question}")
    else:
        session.screen.line("The model generated this reply.")
    attention = responder.attention(last.question, last.reply, last.before)
    if attention is None:
        session.screen.line(NO_ATTENTION)
    else:
        session.screen.table(attention_rows(attention))


def _history(session: Session, text: str) -> None:
    exchanges = session.conversation.exchanges
    start = max(0, len(exchanges) - _number("history", text, SHOWN))
    if not exchanges:
        session.screen.note("No questions yet.")
    for number, exchange in enumerate(exchanges[start:], start + 1):
        rated = f"  ({exchange.rating})" if exchange.rating else ""
        session.screen.line(f"{number:>3} > {exchange.question}")
        session.screen.line(f"      {exchange.reply}{rated}")


def _reset(session: Session, text: str) -> None:
    session.conversation.exchanges.clear()
    session.screen.note("A new conversation.")


def _save(command: str) -> Callable[[Session, str], None]:
    def run(session: Session, text: str) -> None:
        path = _path(command, text)
        exchanges = session.conversation.exchanges
        save(path, exchanges, overwrite=command == "overwrite")
        session.screen.note(f"{path}: {counted(len(exchanges), 'question')} saved.")

    return run


def _load(session: Session, text: str) -> None:
    exchanges = load(path := _path("load", text))
    session.conversation.exchanges.clear()
    for exchange in exchanges:
        session.conversation.add(exchange.question, exchange.reply, exchange.model, exchange.rated)
    session.screen.note(f"{path}: {counted(len(exchanges), 'question')} loaded. The conversation continues.")


def _model(session: Session, text: str) -> None:
    if text:
        session.current.switch(Path(os.path.expanduser(text)))
        session.conversation.read = session.current.model.turns
        session.introduce()
        return
    session.screen.line(session.current.model.card.line())
    attempts = [(one.name, "" if one.step is None else f"{one.step:,}", one.state) for one in all_attempts()]
    if attempts:
        session.screen.table(attempts, ["attempt", "step", "state"])


def _rate(rating: Rating) -> Callable[[Session, str], None]:
    def rate(session: Session, text: str) -> None:
        last = session.last(f"/{rating}: no reply to rate yet")
        session.origin(last)
        if last.rating == rating:
            raise UserError(f"/{rating}: the reply is in {RATINGS} already")
        rate_last(RATINGS, session.conversation, rating, last.model or session.current.model.card.name)
        current = session.current
        follows = current.model.responder.replier_of(current.used_decoding).follows_ratings
        unchanged = "" if follows else " Replies stay as they are: this model looks none up, or not by ratings."
        session.screen.note(f"{RATINGS}: rated {rating}.{unchanged}")

    return rate


def _exit(session: Session, text: str) -> None:
    session.finished = True


def changes_of(text: str) -> dict[str, Any]:
    """Return the changes of /set, by name. text: NAME=VALUE ..., where no value stands for the default.

    Texts in quotes may have spaces, and several words are separated by commas. Raises UserError for a name that is
    unknown, with the nearest one, and for a value that is not allowed by itself.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"/set: {str(error).lower()}; close the quotation mark, or write \\' for one") from None
    changes: dict[str, Any] = {}
    for word in words:
        typed, equals, value = word.partition("=")
        if not equals or not typed:
            raise UserError(
                f"/set {word}: expected NAME=VALUE, such as temperature=0.8; several words are separated by commas, "
                "such as ban=one,two"
            )
        name = typed.lower().removeprefix("--").replace("-", "_")  # it may be given as a flag
        if name not in FLAGS:
            near = nearest(name, FLAGS)
            hint = f"the nearest is {near}" if near else "/settings lists the settings"
            raise UserError(f"/set {typed}: no such setting; {hint}")
        changes[name] = _value_of(FLAGS[name], value)
    return changes


def _value_of(flag: Flag, text: str) -> Any:
    """Return the value that a text stands for. Raises UserError for one that is not allowed."""
    if not text:
        return flag.default
    parts = text.split(",") if flag.many else [text]
    values = tuple(flag.parsed(part, f"/set {flag.name}") for part in parts)
    return values if flag.many else values[0]


def shown(value: Any) -> str:
    """Return a value of a setting for readers."""
    if value is None or value == ():
        return "-"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _number(name: str, text: str, default: int) -> int:
    if not text:
        return default
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", text) is None:
        raise UserError(f"{SLASH}{name} {text}: expected a whole number of at least 1, such as {SLASH}{name} 3")
    return int(text)


def _path(name: str, text: str) -> Path:
    if not text:
        raise UserError(f"{SLASH}{name}: the name of a file is missing, such as {SLASH}{name} chat.jsonl")
    return Path(os.path.expanduser(text))


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "[NAME]", "list the commands, or explain one or a setting", _help),
        Command("set", "NAME=VALUE ...", "change settings; NAME= resets one, /set default all of them", _set),
        Command("settings", "", "show the settings of the replies", _settings),
        Command("n", "[N]", "show the N best replies to the last question with their scores", _n),
        Command("why", "", "show where the last reply comes from, and which words each word attended to", _why),
        Command("retry", "", "another reply: another sample, or the next best one", _retry),
        Command("good", "", "rate the last reply good: training can learn it", _rate("good")),
        Command("bad", "", "rate the last reply bad: training leaves it out", _rate("bad")),
        Command("history", "[N]", "show the last N questions and their replies", _history),
        Command("reset", "", "begin a new conversation; so does /new", _reset),
        Command("save", "FILE", "save the conversation as JSON Lines; the name of FILE ends in .jsonl", _save("save")),
        Command("overwrite", "FILE", "save the conversation in place of what FILE has", _save("overwrite")),
        Command("load", "FILE", "continue a saved conversation", _load),
        Command("model", "[ATTEMPT]", "talk to another attempt or export, or list the attempts", _model),
        Command("exit", "", "end the chat; so do exit, quit and Ctrl-D", _exit),
    )
}
KNOWN = {**COMMANDS, "new": COMMANDS["reset"], "quit": COMMANDS["exit"]}
