"""The slash commands of the terminal chat."""

import dataclasses
import os
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chatbot.attempts.description import all_attempts
from chatbot.chat.conversation import Exchange, rate_last
from chatbot.chat.terminal.session import NO_ATTENTION, Session, attention_rows
from chatbot.chat.terminal.transcript import load, save
from chatbot.config.attempts import RATINGS
from chatbot.config.chat import ChatSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.display import pluralize, replace_surrogates, visible
from chatbot.errors import UserError
from chatbot.flags import Flag, flags_of, nearest, settings_by_name
from chatbot.retrieval.ratings import Rating

# Maps words that also work as commands without a slash to the names of the commands.
PLAIN = {"exit": "exit", "quit": "exit", "help": "help", "帮助": "help"}
# The default number of replies that /n shows.
DEFAULT_N = 5
# The default number of questions and replies that /history shows.
DEFAULT_HISTORY = 10
# Without sampling, /retry asks the search for this many more replies at a time.
RETRY_STEP = 5
# With sampling, /retry draws up to this number of samples until it finds a new reply.
MAX_RETRY_SAMPLES = 10
HISTORY = "history"
DEFAULT = "default"
# The settings that /set can change, in the order in which /settings lists them.
FLAGS = {HISTORY: flags_of(ChatSettings)[HISTORY], **flags_of(DecodingSettings)}


@dataclasses.dataclass(frozen=True)
class Command:
    """A slash command.

    Attributes:
        name: The name, without the slash.
        arguments: The arguments, as shown in the help; "" if the command has none.
        text: The description for the help.
        run: Runs the command. Its arguments are the session and the text after the name of the command.
    """

    name: str
    arguments: str
    text: str
    run: Callable[[Session, str], None]

    @property
    def usage(self) -> str:
        """The command with its arguments, such as "/save FILE"."""
        return f"/{self.name} {self.arguments}".rstrip()


def handle_line(session: Session, line: str) -> None:
    """Run a command or answer a question. The line `//text` asks the question `/text`.

    Raises:
        UserError: If the command is unknown or fails.
    """
    stripped = line.strip()
    if stripped.startswith("//"):
        session.answer(line.lstrip().removeprefix("/"))
    elif stripped.startswith("/") or stripped.lower() in PLAIN:
        _run_command(session, PLAIN.get(stripped.lower(), line))
    else:
        session.answer(line)


def _run_command(session: Session, line: str) -> None:
    name, _, text = visible(replace_surrogates(line)).strip().removeprefix("/").partition(" ")
    command = _find_command(name)
    text = text.strip()
    if text and not command.arguments:
        raise UserError(f"/{command.name} {text}: /{command.name} accepts no arguments")
    with settings_by_name(FLAGS):
        command.run(session, text)


def _find_command(name: str) -> Command:
    """Return a command by its name. If the name is unknown, raise UserError with a suggestion."""
    lower = name.lower().removeprefix("/")
    if lower in KNOWN:
        return KNOWN[lower]
    suggestion = nearest(lower, KNOWN)
    hint = f"did you mean /{suggestion}?" if suggestion else "/help lists all commands."
    raise UserError(f"/{name}: no such command; {hint} To ask this as a question, type //{name}")


def _help(session: Session, text: str) -> None:
    name = text.lower().lstrip("-/").replace("-", "_")
    if not text:
        session.screen.table([(command.usage, command.text) for command in COMMANDS.values()])
        session.screen.line("To ask a question that begins with a slash, type two slashes: //text")
    elif name in FLAGS and name not in KNOWN:
        separator_note = f"; separate several values by commas: {name}=one,two" if FLAGS[name].many else ""
        session.screen.table([(name, FLAGS[name].text + separator_note)])
    else:
        command = _find_command(name)
        session.screen.table([(command.usage, command.text)])


def _set(session: Session, text: str) -> None:
    """Change settings. If one of the values is invalid, change nothing."""
    trained_turns = session.current.model.turns
    current = session.current
    if not text:
        _settings(session, "")
    elif text.lower() == DEFAULT:
        current.set_decoding(DecodingSettings())
        session.conversation.max_turns = trained_turns
        session.screen.note("All settings were reset to their defaults.")
    else:
        changes = parse_changes(text)
        decoding_changes = {name: value for name, value in changes.items() if name != HISTORY}
        max_turns = changes.get(HISTORY, session.conversation.max_turns)
        max_turns = trained_turns if max_turns is None else max_turns
        if max_turns > trained_turns:
            turns = f"{pluralize(trained_turns, 'previous turn')}; use at most {trained_turns}"
            raise UserError(f"/set {HISTORY}={max_turns}: the model was trained to read {turns}")
        if decoding_changes:
            current.set_decoding(dataclasses.replace(current.decoding, **decoding_changes))
        session.conversation.max_turns = max_turns
        values = {**dataclasses.asdict(current.effective_decoding), HISTORY: max_turns}
        session.screen.note(", ".join(f"{name}={format_value(values[name])}" for name in changes))


def _settings(session: Session, text: str) -> None:
    max_turns = session.conversation.max_turns
    trained_turns = session.current.model.turns
    rows = [[HISTORY, str(max_turns), "model" if max_turns == trained_turns else "set"]]
    chosen = session.current.decoding
    effective = session.current.effective_decoding
    for name, flag in flags_of(DecodingSettings).items():
        value = getattr(effective, name)
        is_set = value == getattr(chosen, name)
        rows.append([name, format_value(value), "" if value == flag.default else "set" if is_set else "model"])
    session.screen.table(rows, ["setting", "value", "from"])


def _show_best(session: Session, text: str) -> None:
    number = _parse_number("n", text, DEFAULT_N)
    session.last_exchange("/n: no reply yet")
    session.show(session.ask_again(decoding=with_replies(session.current.effective_decoding, number), n_best=number))


def with_replies(decoding: DecodingSettings, number: int) -> DecodingSettings:
    """Return decoding settings with which the search finds at least `number` replies.

    Args:
        decoding: The settings to start from. They determine whether to sample or to use beam search.
        number: The number of replies to find.

    Raises:
        UserError: If the search cannot find this many replies.
    """
    if decoding.hypotheses >= number:
        return decoding
    if decoding.samples:
        return dataclasses.replace(decoding, candidates=number)
    return dataclasses.replace(decoding, beam_size=number)


def _retry(session: Session, text: str) -> None:
    """Replace the last reply with another sample, or with the next best reply of the search."""
    last = session.last_exchange("/retry: no reply yet")
    decoding = session.current.effective_decoding
    if decoding.samples:
        reply = _draw_new_sample(session, last, decoding)
        failure = "every sample repeats an earlier reply; use /set temperature=2 for more varied replies"
    else:
        reply = _find_next_best(session, last, decoding)
        failure = "the search finds no other reply; use /set temperature=1 beam_size= to sample replies"
    if reply is None:
        raise UserError(f"/retry: {failure}")
    session.screen.line(reply)
    history, _ = session.conversation.context(-1)
    last.replace_reply(reply, history, session.current.model.card.name)


def _draw_new_sample(session: Session, last: Exchange, decoding: DecodingSettings) -> str | None:
    for number in range(MAX_RETRY_SAMPLES):
        seed = (decoding.seed + len(last.replies) + number) % 2**31
        (reply,) = session.ask_again(seed=seed, n_best=1)
        if reply.text not in last.replies:
            return reply.text
    return None


def _find_next_best(session: Session, last: Exchange, decoding: DecodingSettings) -> str | None:
    number = max(-(-(len(last.replies) + 1) // RETRY_STEP) * RETRY_STEP, decoding.hypotheses)
    replies = session.ask_again(decoding=with_replies(decoding, number), n_best=number)
    return next((reply.text for reply in replies if reply.text not in last.replies), None)


def _why(session: Session, text: str) -> None:
    last = session.last_exchange("/why: no reply yet")
    responder = session.current.model.responder
    decoding = session.current.effective_decoding
    if responder.fixed_reply(last.question, [0], decoding) == last.reply:
        session.screen.line("This reply comes from a rule (--rules).")
        return
    if last.reply == decoding.fallback and (
        decoding.min_score is not None or not responder.replier_for(decoding).generates
    ):
        threshold = (
            "" if decoding.min_score is None else f" with a score of at least {decoding.min_score:g} (min_score)"
        )
        session.screen.line(f"The search found no reply{threshold}.")
        return
    if (origin := session.find_origin(last)).question:
        source = "A user rated this reply good for" if origin.is_rated else "A person wrote this reply to"
        session.screen.line(f"{source}: {origin.question}")
    else:
        session.screen.line("The model generated this reply.")
    attention = responder.attention(last.question, last.reply, last.history)
    if attention is None:
        session.screen.line(NO_ATTENTION)
    else:
        session.screen.table(attention_rows(attention))


def _history(session: Session, text: str) -> None:
    exchanges = session.conversation.exchanges
    start = max(0, len(exchanges) - _parse_number("history", text, DEFAULT_HISTORY))
    if not exchanges:
        session.screen.note("You have not asked any questions yet.")
    for number, exchange in enumerate(exchanges[start:], start + 1):
        rating = f"  ({exchange.rating})" if exchange.rating else ""
        session.screen.line(f"{number:>3} > {exchange.question}")
        session.screen.line(f"      {exchange.reply}{rating}")


def _reset(session: Session, text: str) -> None:
    session.conversation.exchanges.clear()
    session.screen.note("Started a new conversation.")


def _save(session: Session, text: str, command: str = "save") -> None:
    path = _parse_path(command, text)
    exchanges = session.conversation.exchanges
    save(path, exchanges, overwrite=command == "overwrite")
    session.screen.note(f"{path}: saved {pluralize(len(exchanges), 'question')}.")


_overwrite = partial(_save, command="overwrite")


def _load(session: Session, text: str) -> None:
    exchanges = load(path := _parse_path("load", text))
    session.conversation.exchanges.clear()
    for exchange in exchanges:
        session.conversation.add(exchange.question, exchange.reply, exchange.model, exchange.stored_rating)
    session.screen.note(f"{path}: loaded {pluralize(len(exchanges), 'question')}. You can continue the conversation.")


def _model(session: Session, text: str) -> None:
    if text:
        session.current.switch(Path(os.path.expanduser(text)))
        session.conversation.max_turns = session.current.model.turns
        session.introduce()
        return
    session.screen.line(session.current.model.card.summary())
    rows = [
        (attempt.name, "" if attempt.step is None else f"{attempt.step:,}", attempt.state) for attempt in all_attempts()
    ]
    if rows:
        session.screen.table(rows, ["attempt", "step", "state"])


def _rate(session: Session, text: str, rating: Rating) -> None:
    last = session.last_exchange(f"/{rating}: no reply to rate yet")
    session.find_origin(last)
    if last.rating == rating:
        raise UserError(f"/{rating}: the reply is already rated {rating} in {RATINGS}")
    current = session.current
    rate_last(RATINGS, session.conversation, rating, last.model or current.model.card.name)
    follows = current.model.responder.replier_for(current.effective_decoding).follows_ratings
    no_effect = (
        "" if follows else " This does not change any replies: the model does not use retrieval or ignores ratings."
    )
    session.screen.note(f"{RATINGS}: rated {rating}.{no_effect}")


def _exit(session: Session, text: str) -> None:
    session.finished = True


def parse_changes(text: str) -> dict[str, Any]:
    """Parse the arguments of /set.

    Args:
        text: Assignments separated by spaces, such as `temperature=0.8 ban=one,two`. Values with spaces must be quoted.
            An empty value resets a setting to its default.

    Returns:
        A dictionary from the names of settings to their new values.

    Raises:
        UserError: If a name is unknown or a value is invalid.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"/set: {str(error).lower()}; close the quotation, or escape a quotation mark as \\'") from None
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(
                f"/set {word}: expected NAME=VALUE, such as temperature=0.8; separate several words by commas, "
                "such as ban=one,two"
            )
        name = key.lower().removeprefix("--").replace("-", "_")  # Also accept command-line flags such as --top-p.
        if name not in FLAGS:
            suggestion = nearest(name, FLAGS)
            hint = f"did you mean {suggestion}?" if suggestion else "/settings lists the settings"
            raise UserError(f"/set {key}: no such setting; {hint}")
        changes[name] = _parse_value(FLAGS[name], value)
    return changes


def _parse_value(flag: Flag, text: str) -> Any:
    """Parse the value of a setting. Raises UserError if the value is invalid."""
    if not text:
        return flag.default
    parts = text.split(",") if flag.many else [text]
    values = tuple(flag.parsed(part, f"/set {flag.name}") for part in parts)
    return values if flag.many else values[0]


def format_value(value: Any) -> str:
    """Format the value of a setting for display."""
    if value is None or value == ():
        return "-"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _parse_number(name: str, text: str, default: int) -> int:
    if not text:
        return default
    if re.fullmatch(r"0*[1-9][0-9]{0,8}", text) is None:
        raise UserError(f"/{name} {text}: expected a whole number of at least 1, such as /{name} 3")
    return int(text)


def _parse_path(name: str, text: str) -> Path:
    if not text:
        raise UserError(f"/{name}: expected a file name, such as /{name} chat.jsonl")
    return Path(os.path.expanduser(text))


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "[NAME]", "list all commands, or explain a command or a setting", _help),
        Command("set", "NAME=VALUE ...", "change settings; reset one with NAME=, or all with /set default", _set),
        Command("settings", "", "show the decoding settings", _settings),
        Command("n", "[N]", "show the N best replies to the last question with their scores", _show_best),
        Command("why", "", "show where the last reply came from and the attention weights of its words", _why),
        Command("retry", "", "replace the last reply with another sample or the next best reply", _retry),
        Command("good", "", "rate the last reply good, to train on it", partial(_rate, rating="good")),
        Command("bad", "", "rate the last reply bad, to exclude it from training", partial(_rate, rating="bad")),
        Command("history", "[N]", "show the last N questions and replies", _history),
        Command("reset", "", "start a new conversation; the same as /new", _reset),
        Command("save", "FILE", "save the conversation to a .jsonl file", _save),
        Command("overwrite", "FILE", "save the conversation to FILE, replacing its content", _overwrite),
        Command("load", "FILE", "load a saved conversation to continue it", _load),
        Command("model", "[ATTEMPT]", "switch to another attempt or export, or list all attempts", _model),
        Command("exit", "", "end the chat; the same as exit, quit and Ctrl-D", _exit),
    )
}
KNOWN = {**COMMANDS, "new": COMMANDS["reset"], "quit": COMMANDS["exit"]}
