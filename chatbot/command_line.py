"""Command lines: the flags of a command, which its settings declare, are parsed and explained."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn

from chatbot.commands import COMMANDS, VERSION, lines_within, program
from chatbot.errors import UserError
from chatbot.flags import Composed, Flag, compose, flag_of, flags_of, unknown_flags

NONE = "none"  # as the value of a flag: the setting is not set, whatever an attempt or a file says
# The name of the positional argument among the values of the flags.
POSITIONAL = "positional argument"


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
    command: str  # its name in the table of commands, such as "data inspect"
    about: str = ""  # what the help says after the first sentence, which is that of the table
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
        parser = self._parser(self.flags)
        namespace, unknown = parser.parse_known_args(arguments)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            of_files = (
                f"; files of pairs follow --data: --data {unknown[0]}" if "data" in self.flags and not names else ""
            )
            parser.error(unknown_flags(self.flags, names or unknown) + of_files)
        values = vars(namespace)
        if self.positional and (words := values.pop(POSITIONAL)):
            values[self.positional] = words
        missing = [
            flag.metavar if name == self.positional else flag_of(name)
            for name, flag in self.flags.items()
            if flag.default is ... and name not in values
        ]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    @functools.cached_property
    def flags(self) -> dict[str, Flag]:
        """The flags by the names of their settings, in the order of declaration."""
        without = self.without.split()
        return {name: flag for name, flag in flags_of(self.settings).items() if name not in without}

    @property
    def groups(self) -> list[str]:
        """The headings of the flags, in the order of --help."""
        return list(dict.fromkeys(flag.group for flag in self.flags.values()))

    @property
    def description(self) -> str:
        """What the command does."""
        row = COMMANDS.get(self.command)
        return f"{row.sentence} {self.about}".strip() if row else self.about

    @property
    def prog(self) -> str:
        """The command as it was called."""
        return program(self.command)

    def short_help(self) -> str:
        """Return the help with the common flags, an example, and where the others are."""
        if not self.common:
            return self.full_help()
        shown = self._parser({name: self.flags[name] for name in self.common.split()}, "flags").format_help()
        rest = f"{self.prog} --help lists all {len(self.flags)} flags, --help GROUP those of a group:"
        return f"{shown}{self._example()}{rest}\n{', '.join(self.groups)}.\n"

    def full_help(self, group: str | None = None) -> str:
        """Return the help with all flags, or those of a group. Raises UserError for the name of no group."""
        if group not in (None, *self.groups):
            raise UserError(f"--help {group}: no such group of flags; choose one of {', '.join(self.groups)}")
        shown = {name: flag for name, flag in self.flags.items() if group in (None, flag.group)}
        within = lines_within(self.command)
        commands = "\n".join(["", "commands, each with its own --help:", *within, ""]) if within else ""
        return self._parser(shown).format_help() + commands + self._example()

    def _example(self) -> str:
        return f"\nExample: {self.prog} {self.example}\n" if self.example else ""

    def _parser(self, flags: Mapping[str, Flag], heading: str | None = None) -> OneLineParser:
        """Return a parser of some of the flags. heading: of all of them, by default their groups."""
        usage = self.prog
        if self.positional:
            positional = self.flags[self.positional]
            usage += f" {positional.metavar}" + (" ..." if positional.many else "")
        parser = OneLineParser(
            prog=self.prog,
            usage=f"{usage} [flags]",
            description=self.description,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
        )
        groups = {name: parser.add_argument_group(name) for name in ([heading] if heading else self.groups)}
        for name, flag in flags.items():
            group = groups[heading or flag.group]
            options = _options(flag)
            if name == self.positional:
                nargs = "*" if flag.many else "?"
                parse = functools.partial(flag.parsed, name=flag.metavar)
                shown = {"metavar": flag.metavar, "help": options["help"]}
                group.add_argument(POSITIONAL, nargs=nargs, type=parse, default=None, **shown)
                if flag.many:
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


def _options(flag: Flag) -> dict[str, Any]:
    """Return the options of argparse for a flag."""
    stated = "required" if flag.default is ... else f"default: {flag.shown_default}"
    options: dict[str, Any] = {"help": f"{flag.text} ({stated})".replace("%", "%%")}
    if flag.kind is bool:
        return {**options, "action": argparse.BooleanOptionalAction if len(flag.spellings) > 1 else "store_true"}
    options["metavar"] = flag.shown_value
    options["type"] = lambda text: None if text == NONE and flag.default is None else flag.parsed(text)
    if flag.once:
        return {**options, "action": Once}
    return {**options, "nargs": flag.count or "+", "action": "extend"} if flag.many else options
