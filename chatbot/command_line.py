"""Command-line parsing and help. Both are generated from the flags that the settings of a command declare."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn

from chatbot.commands import COMMANDS, VERSION, lines_within, program
from chatbot.errors import UserError
from chatbot.flags import Composed, Flag, compose, flag_of, flags_of, unknown_flags

NONE = "none"  # value of a flag that leaves a setting unset, even if a settings file sets it
# Name under which argparse stores the positional argument.
POSITIONAL = "positional argument"


class OneLineParser(argparse.ArgumentParser):
    """Argument parser that reports an error on a single line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


class PrintHelp(argparse.Action):
    """Action of argparse that prints a help text and exits."""

    def __init__(self, get_text: Callable[[Any], str], **options: Any) -> None:
        super().__init__(**options)
        self._get_text = get_text

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Print the help text for the value, and exit with code 0."""
        print(self._get_text(values), end="")
        parser.exit()


class StoreOnce(argparse.Action):
    """Action of argparse that rejects a repeated flag, because it is unclear which value is intended."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Store the value, or exit with an error if the flag already has a value."""
        if hasattr(namespace, self.dest):
            parser.error(f"{option} is given twice; give one")
        setattr(namespace, self.dest, values)


@dataclasses.dataclass(frozen=True)
class CommandLine(Generic[Composed]):
    """Flags and help of a command."""

    settings: type[Composed]
    command: str  # name in the table of commands, such as "data inspect"
    about: str = ""  # description in the help, after the first sentence
    example: str = ""  # arguments of the example in the help
    common: str = ""  # names of the settings that -h lists, separated by spaces; "" means all settings
    positional: str | None = None  # name of the setting that is a positional argument
    without: str = ""  # names of settings that the command does not support, separated by spaces

    def parse(self, arguments: Sequence[str] | None = None) -> Composed:
        """Convert command-line arguments to settings. By default, these are the arguments of the process.

        Raises UserError if a value is not allowed.
        """
        return compose(self.settings, **self.values(arguments))

    def values(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the value of each flag that occurs in the arguments, by the name of the setting.

        If the arguments include -h or --help, the help is printed and the process exits with code 0. For unknown flags,
        it exits with code 2.

        Raises:
            UserError: If a value is not allowed.
        """
        parser = self._parser(self.flags)
        namespace, unknown = parser.parse_known_args(arguments)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            data_hint = f"; give files of pairs as --data {unknown[0]}" if "data" in self.flags and not names else ""
            parser.error(unknown_flags(self.flags, names or unknown) + data_hint)
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
        """Flags by the names of their settings, in the order of declaration."""
        without = self.without.split()
        return {name: flag for name, flag in flags_of(self.settings).items() if name not in without}

    @property
    def groups(self) -> list[str]:
        """Headings of the groups of flags, in the order of --help."""
        return list(dict.fromkeys(flag.group for flag in self.flags.values()))

    @property
    def description(self) -> str:
        """Description of the command in its help."""
        row = COMMANDS.get(self.command)
        return f"{row.sentence} {self.about}".strip() if row else self.about

    @property
    def prog(self) -> str:
        """The command as the user called it, such as `python train.py`."""
        return program(self.command)

    def short_help(self) -> str:
        """Return the help for the common flags, with an example and a hint about the other flags."""
        if not self.common:
            return self.full_help()
        shown = self._parser({name: self.flags[name] for name in self.common.split()}, "flags").format_help()
        rest = f"{self.prog} --help lists all {len(self.flags)} flags, --help GROUP the flags of one group:"
        return f"{shown}{self._example()}{rest}\n{', '.join(self.groups)}.\n"

    def full_help(self, group: str | None = None) -> str:
        """Return the help for all flags, or for one group of flags. Raises UserError if the group is unknown."""
        if group not in (None, *self.groups):
            raise UserError(f"--help {group}: no such group of flags; choose one of {', '.join(self.groups)}")
        shown = {name: flag for name, flag in self.flags.items() if group in (None, flag.group)}
        within = lines_within(self.command)
        commands = "\n".join(["", "commands, each with its own --help:", *within, ""]) if within else ""
        return self._parser(shown).format_help() + commands + self._example()

    def _example(self) -> str:
        return f"\nExample: {self.prog} {self.example}\n" if self.example else ""

    def _parser(self, flags: Mapping[str, Flag], heading: str | None = None) -> OneLineParser:
        """Return a parser for these flags. Without `heading`, the help has a heading for each group of flags."""
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
                options["help"] = argparse.SUPPRESS  # the help does not show this flag
            group.add_argument(flag_of(name), dest=name, **options)
        group = parser.add_argument_group("help")
        group.add_argument(
            "-h", action=PrintHelp, nargs=0, get_text=lambda _: self.short_help(), help="show the common flags"
        )
        group.add_argument(
            "--help",
            action=PrintHelp,
            nargs="?",
            metavar="GROUP",
            get_text=self.full_help,
            help="show all flags, or the flags of one group",
        )
        group.add_argument("--version", action="version", version=VERSION, help="print the version and exit")
        return parser


def _options(flag: Flag) -> dict[str, Any]:
    """Return the keyword arguments for argparse that define a flag."""
    stated = "required" if flag.default is ... else f"default: {flag.shown_default}"
    options: dict[str, Any] = {"help": f"{flag.text} ({stated})".replace("%", "%%")}
    if flag.kind is bool:
        return {**options, "action": argparse.BooleanOptionalAction if len(flag.spellings) > 1 else "store_true"}
    options["metavar"] = flag.shown_value
    options["type"] = lambda text: None if text == NONE and flag.default is None else flag.parsed(text)
    if flag.once:
        return {**options, "action": StoreOnce}
    return {**options, "nargs": flag.count or "+", "action": "extend"} if flag.many else options
