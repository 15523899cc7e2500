"""What the Tab key offers: the commands, and their arguments."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chatbot.chat.terminal.commands import COMMANDS, SLASH, is_command
from chatbot.chat.terminal.settings import DEFAULT, FIELDS
from chatbot.config.attempts import CHECKPOINTS, CONFIG

# Files that are offered at most.
FILES = 200


class Completion(NamedTuple):
    """A text that replaces the end of the line. start: where, in characters before the cursor, as a negative number."""

    text: str
    start: int
    about: str = ""


def completions(line: str) -> Iterator[Completion]:
    """Yield what may follow. line: the text before the cursor."""
    if not is_command(line):
        return
    name, space, rest = line.removeprefix(SLASH).partition(" ")
    if not space:
        for command in COMMANDS.values():
            if command.name.startswith(name.lower()):
                yield Completion(SLASH + command.name, -len(line), command.text)
        return
    found = ARGUMENTS.get(name.lower())
    if found is not None:
        yield from found(rest)


def _help(rest: str) -> Iterator[Completion]:
    for name in (*COMMANDS, *FIELDS):
        if name.startswith(rest.lower()):
            yield Completion(name, -len(rest))


def _settings(rest: str) -> Iterator[Completion]:
    word = rest.rpartition(" ")[2]
    for name, field in FIELDS.items():
        if name.startswith(word.lower().replace("-", "_")):
            yield Completion(f"{name}=", -len(word), field.metadata["text"])
    if rest == word and DEFAULT.startswith(word):
        yield Completion(DEFAULT, -len(word), "all settings as they are without flags")


def _files(rest: str) -> Iterator[Completion]:
    folder, name = os.path.split(rest)
    try:
        entries = sorted(os.scandir(Path(folder).expanduser()), key=lambda entry: entry.name)
    except (OSError, ValueError):
        return
    matching = [entry for entry in entries if entry.name.startswith(name) and (name or entry.name[0] != ".")]
    for entry in matching[:FILES]:
        if entry.name.isprintable():
            yield Completion(entry.name + (os.sep if entry.is_dir() else ""), -len(name))


def _models(rest: str) -> Iterator[Completion]:
    for config in sorted(CHECKPOINTS.glob(f"*/{CONFIG}")):
        if config.parent.name.startswith(rest):
            yield Completion(config.parent.name, -len(rest))
    if os.sep in rest:
        yield from _files(rest)


ARGUMENTS = {"help": _help, "set": _settings, "model": _models, "save": _files, "overwrite": _files, "load": _files}
