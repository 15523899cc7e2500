"""Command lines: the flags of a command, which its settings declare, are parsed and explained.

Messages and usage lines name a command as it was called: `duida train`, `python -m chatbot train`, `python train.py`.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn

from chatbot.errors import UserError
from chatbot.flags import (
    Composed,
    compose,
    fields_of,
    flag_of,
    flags_of,
    parsed_flag,
    parsed_value,
    shown_default,
    unknown_flags,
)
from chatbot.version import __version__

# The name of the distribution, and of its command.
NAME = "duida"
VERSION = f"{NAME} {__version__}"
# Commands of `duida` -> the arguments of `python` that run them in a checkout; those of the others: -m chatbot NAME.
SCRIPTS = {
    "train": "train.py",
    "chat": "chat.py",
    "ask": "chat.py QUESTION",
    "serve": "chat.py --serve",
    "data": "-m chatbot.corpus",
    "evaluate": "-m chatbot.evaluation",
    "attempts": "-m chatbot.attempts",
    "export": "-m chatbot.export",
    "bot": "-m chatbot.chat.bots",
    "benchmarks": "-m benchmarks",  # no command of `duida`
}
# The name of the positional argument among the values of the flags.
POSITIONAL = "positional argument"
METAVARS = {int: "N", float: "R", str: "NAME"}


def script_of(command: str) -> str:
    """Return the arguments of `python` that run a command: 'data inspect' -> '-m chatbot.corpus inspect'."""
    name, *rest = command.split(" ", 1)
    return " ".join([SCRIPTS.get(name, f"-m chatbot {name}"), *rest]).strip()


def program(command: str) -> str:
    """Return how a command, such as 'data inspect', is called in the way in which this process was called."""
    called = Path(sys.argv[0])
    if called.stem == NAME:
        return f"{NAME} {command}".strip()
    is_module = called.parts[-2:] == ("chatbot", "__main__.py")
    return f"python {f'-m chatbot {command}'.strip() if is_module else script_of(command)}"


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


class Help(argparse.Action):
    """A flag that prints a text and exits. text_of: from the values of the flag to the text."""

    def __init__(self, text_of: Callable[[Any], str], **options: Any) -> None:
        super().__init__(**options)
        self._text_of = text_of

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Print the text and exit with code 0."""
        print(self._text_of(values), end="")
        parser.exit()


class Once(argparse.Action):
    """A flag that is an error where it is given again: neither value is more likely to be meant."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Store the value."""
        if hasattr(namespace, self.dest):
            parser.error(f"{option} is given twice; give one")
        setattr(namespace, self.dest, values)


@dataclasses.dataclass(frozen=True)
class CommandLine(Generic[Composed]):
    """The flags of a command, and what its help says."""

    settings: type[Composed]
    command: str  # what follows `duida`, such as "data inspect"
    about: str
    example: str = ""  # arguments
    common: str = ""  # the names of the settings that -h lists, between spaces; "": all
    positional: str | None = None  # the setting that is given without a flag; it needs a metavar
    without: str = ""  # the names of the settings that this command does not use, between spaces

    def parse(self, arguments: Sequence[str] | None = None) -> Composed:
        """Return the settings of a command line, by default that of the process. Raises UserError."""
        return compose(self.settings, **self.values(arguments))

    def values(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the flat values of the flags that were given, by name; those not given are absent. Raises UserError.

        Prints help and exits with code 0 where the arguments ask for it, exits with code 2 for unknown flags.
        """
        parser = self._parser(self.fields)
        namespace, unknown = parser.parse_known_args(arguments)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            of_files = (
                f"; files of pairs follow --data: --data {unknown[0]}" if "data" in self.fields and not names else ""
            )
            parser.error(unknown_flags(self.fields, names or unknown) + of_files)
        values = vars(namespace)
        if self.positional and (words := values.pop(POSITIONAL)):
            values[self.positional] = words
        missing = [
            field.metadata["metavar"] if name == self.positional else flag_of(name)
            for name, field in self.fields.items()
            if field.default is ... and name not in values
        ]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    @property
    def fields(self) -> "dict[str, dataclasses.Field[Any]]":
        """The flags by the names of their settings, in the order of declaration."""
        without = self.without.split()
        return {name: field for name, field in fields_of(self.settings).items() if name not in without}

    @property
    def groups(self) -> list[str]:
        """The headings of the flags, in the order of --help."""
        return list(dict.fromkeys(field.metadata["group"] for field in self.fields.values()))

    @property
    def prog(self) -> str:
        """The command as it was called."""
        return program(self.command)

    def short_help(self) -> str:
        """Return the help with the common flags, an example, and where the others are."""
        if not self.common:
            return self.full_help()
        shown = self._parser({name: self.fields[name] for name in self.common.split()}, "flags").format_help()
        rest = f"{self.prog} --help lists all {len(self.fields)} flags, --help GROUP those of a group:"
        return f"{shown}{self._example()}{rest}\n{', '.join(self.groups)}.\n"

    def full_help(self, group: str | None = None) -> str:
        """Return the help with all flags, or those of a group. Raises UserError for the name of no group."""
        if group not in (None, *self.groups):
            raise UserError(f"--help {group}: no such group of flags; choose one of {', '.join(self.groups)}")
        shown = {name: field for name, field in self.fields.items() if group in (None, field.metadata["group"])}
        return self._parser(shown).format_help() + self._example()

    def _example(self) -> str:
        return f"\nExample: {self.prog} {self.example}\n" if self.example else ""

    def _parser(self, fields: "Mapping[str, dataclasses.Field[Any]]", heading: str | None = None) -> OneLineParser:
        """Return a parser of some of the flags. heading: of all of them, by default their groups."""
        usage = self.prog
        if self.positional:
            meta = self.fields[self.positional].metadata
            usage += f" {meta['metavar']}" + (" ..." if meta["many"] else "")
        parser = OneLineParser(
            prog=self.prog,
            usage=f"{usage} [flags]",
            description=self.about,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
        )
        groups = {name: parser.add_argument_group(name) for name in ([heading] if heading else self.groups)}
        for name, field in fields.items():
            group = groups[heading or field.metadata["group"]]
            options = _options(field)
            if name == self.positional:
                meta = field.metadata
                nargs = "*" if meta["many"] else "?"
                parse = functools.partial(parsed_value, field, name=meta["metavar"])
                shown = {"metavar": meta["metavar"], "help": options["help"]}
                group.add_argument(POSITIONAL, nargs=nargs, type=parse, default=None, **shown)
                if meta["many"]:
                    continue
                options["help"] = argparse.SUPPRESS  # a flag, too, as other commands have it
            group.add_argument(flag_of(name), dest=name, **options)
        group = parser.add_argument_group("help")
        group.add_argument(
            "-h", action=Help, nargs=0, text_of=lambda _: self.short_help(), help="the flags that people use"
        )
        group.add_argument(
            "--help", action=Help, nargs="?", metavar="GROUP", text_of=self.full_help, help="all flags, or one group"
        )
        group.add_argument("--version", action="version", version=VERSION, help="print the version and exit")
        return parser


def _options(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    """Return the options of argparse for a flag."""
    meta = field.metadata
    stated = "required" if field.default is ... else f"default: {shown_default(field)}"
    options: dict[str, Any] = {"help": f"{meta['text']} ({stated})".replace("%", "%%")}
    if meta["kind"] is bool:
        return {**options, "action": argparse.BooleanOptionalAction if len(flags_of(field)) > 1 else "store_true"}
    options["metavar"] = meta["metavar"] or "|".join(meta["choices"] or ()) or METAVARS[meta["kind"]]
    options["type"] = functools.partial(parsed_flag, field)
    if meta["once"]:
        return {**options, "action": Once}
    return {**options, "nargs": meta["count"] or "+", "action": "extend"} if meta["many"] else options
