"""Dataclasses of settings, whose fields are also command-line flags.

The declaration of a field defines the flag, its help text and the check of its value. Settings can be nested: a field
can be another dataclass of settings. On the command line and in JSON, they are flat. `compose` builds nested settings
from flat values, and `flatten` does the reverse.
"""

import contextlib
import dataclasses
import inspect
import math
import re
import shlex
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from chatbot.errors import UserError

# Type of a setting -> description of the expected values in error messages.
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
# Type of a setting -> placeholder for a value in the help.
METAVARS = {int: "N", float: "R", str: "NAME"}
FLAG = "flag"  # key under which the metadata of a field contains its `Flag`
# Maximum absolute value of integers.
MAX_INT = 2**63 - 1

Composed = TypeVar("Composed")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting on the command line. `setting` creates it, and `Flags` adds the name and the type of its field."""

    name: str  # name of the setting, such as rnn_size
    default: Any  # default value; `...` means that the flag is required
    kind: type  # type of a single value
    many: bool  # whether the flag accepts several values
    text: str  # help text
    group: str = ""  # heading in --help; "" means the heading of the previous flag
    unset: str = ""  # text that the help shows as the default; "" means the default value
    count: int | None = None  # required number of values of a flag with several values; None means any number
    choices: tuple[str, ...] = ()  # allowed values; () means any value
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # exclusive lower bound
    remedy: str = ""  # advice in the error message if a value is not above the bound
    fixed: bool = False  # whether a resumed attempt cannot change the value
    stored: bool = True  # whether the value is written to config.json
    negatable: bool = False  # whether the flag --no-NAME exists
    once: bool = False  # whether a repeated flag is an error; otherwise, the last value counts
    metavar: str = ""  # placeholder of a value in the help; "" means the choices or the type

    @property
    def spellings(self) -> list[str]:
        """The flag, followed by its negation if there is one, such as --copy and --no-copy."""
        can_be_off = self.kind is bool and (self.default or self.negatable)
        return [flag_of(self.name), flag_of(f"no_{self.name}")] if can_be_off else [flag_of(self.name)]

    @property
    def shown_value(self) -> str:
        """The placeholder for a value in the help, such as FILE, lstm|gru or N."""
        return self.metavar or "|".join(self.choices) or METAVARS[self.kind]

    @property
    def shown_default(self) -> str:
        """The default value as shown in the help."""
        if self.unset or self.default in (None, "", ()):
            return self.unset or "none"
        if self.kind is bool:
            return "on" if self.default else "off"
        return " ".join(map(str, self.default)) if self.many else str(self.default)

    def words(self, value: Any) -> list[str]:
        """Return the command-line words that set a value, such as ["--rnn-size", "64"] or ["--no-copy"]."""
        if self.kind is bool:
            return [flag_of(self.name if value else f"no_{self.name}")]
        return [flag_of(self.name), *map(str, value if self.many else [value])]

    def parsed(self, text: str, name: str | None = None) -> Any:
        """Convert the text of a single value to its type. Raises UserError if the value is not allowed."""
        value: Any = text
        if self.kind is bool:
            value = {"true": True, "false": False}.get(text, text)
        else:
            with contextlib.suppress(ValueError):
                value = self.kind(text)
        self.check(value, name)
        return value

    def check(self, value: Any, name: str | None = None) -> None:
        """Raise UserError if a single value is not allowed. The message contains `name` or, by default, the flag."""
        flag = name or flag_of(self.name)
        kinds: Any = (int, float) if self.kind is float else self.kind
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise UserError(f"{flag} {value!r}: expected {EXPECTED[self.kind]}")
        if (value == "" and self.default != "") or (isinstance(value, str) and not value.isprintable()):
            raise UserError(f"{flag} {value!r}: expected printable text")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{flag} {value}: expected a finite number")
        if isinstance(value, int) and abs(value) > MAX_INT:
            shown = f" {value}" if abs(value) < 10**40 else ""  # a number in a file can have any length
            raise UserError(f"{flag}{shown}: must be at most {MAX_INT}")
        if self.choices and value not in self.choices:
            raise UserError(f"{flag} {value}: choose one of {', '.join(self.choices)}")
        if self.minimum is not None and value < self.minimum:
            raise UserError(f"{flag} {value}: must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise UserError(f"{flag} {value}: must be at most {self.maximum}")
        if self.above is not None and value <= self.above:
            raise UserError(f"{flag} {value}: must be above {self.above}{self.remedy and f'; {self.remedy}'}")


def setting(default: Any, text: str, **options: Any) -> Any:
    """Declare a field of a `Flags` class as a command-line flag.

    Args:
        default: Default value; `...` marks a required flag.
        text: Help text.
        options: Values of other fields of `Flag`.
    """
    return dataclasses.field(default=default, metadata={"text": text, **options})


class Flags:
    """Base class of settings. Creating settings raises UserError if a value is not allowed."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Complete the flags of a class with names, types and headings. `options` apply to all flags of the class."""
        group = ""
        for name, annotation in inspect.get_annotations(cls).items():
            field = cls.__dict__.get(name)
            if isinstance(field, dataclasses.Field) and field.metadata:
                kind = (typing.get_args(annotation) or (annotation,))[0]  # int for int | None and for tuple[int, ...]
                many = typing.get_origin(annotation) is tuple
                group = field.metadata.get("group", group)
                details = {**options, **field.metadata, "group": group}
                field.metadata = MappingProxyType({FLAG: Flag(name, field.default, kind, many, **details)})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            if not field.metadata:
                continue  # the field is not a flag; nested settings were checked when they were created
            flag: Flag = field.metadata[FLAG]
            value = getattr(self, flag.name)
            if value is None and flag.default is None:
                continue
            for item in value if flag.many else (value,):
                flag.check(item)


def flag_of(name: str) -> str:
    """Return the flag of a setting, such as --rnn-size for rnn_size."""
    return "--" + name.replace("_", "-")


def flags_of(settings: Any) -> dict[str, Flag]:
    """Return all flags of a settings class or instance by name, including the flags of nested settings."""
    flags: dict[str, Flag] = {}
    for field in dataclasses.fields(settings):
        if field.metadata:
            flags[field.name] = field.metadata[FLAG]
        elif dataclasses.is_dataclass(field.type):
            flags |= flags_of(field.type)
    return flags


def compose(kind: type[Composed], **values: Any) -> Composed:
    """Build settings from flat values, as in `compose(Settings, rnn_size=64)`.

    Raises:
        UserError: If a value is not allowed.
        TypeError: If a name is unknown.
    """
    unknown = values.keys() - _names_of(kind)
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.type):
            assert isinstance(field.type, type)
            names = _names_of(field.type) & values.keys()
            parts[field.name] = compose(field.type, **{name: values[name] for name in names})
        elif field.name in values:
            parts[field.name] = values[field.name]
    return kind(**parts)


def _names_of(kind: Any) -> set[str]:
    """Return the names of all fields of a settings class, including the fields of nested settings."""
    names: set[str] = set()
    for field in dataclasses.fields(kind):
        names |= _names_of(field.type) if dataclasses.is_dataclass(field.type) else {field.name}
    return names


def flatten(settings: Any) -> dict[str, Any]:
    """Return the values of all settings by name, including nested settings. This is the inverse of `compose`."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        values |= flatten(value) if dataclasses.is_dataclass(field.type) else {field.name: value}
    return values


def replace(settings: Composed, **changes: Any) -> Composed:
    """Return a copy of settings with some values changed, as in `replace(settings, rnn_size=64)`.

    Raises:
        UserError: If a value is not allowed.
        TypeError: If a name is unknown.
    """
    return compose(type(settings), **{**flatten(settings), **changes})


@contextlib.contextmanager
def settings_by_name(names: Collection[str]) -> Iterator[None]:
    """Replace flags in messages of UserError with Python keywords, such as --rnn-size with rnn_size.

    Only the flags of settings in `names` are replaced. Commands that a message quotes are not changed.
    """

    def name_of(match: re.Match[str]) -> str:
        name = (match[1] or "").replace("-", "_")
        positive = name.removeprefix("no_")
        return name if name in names else f"{positive}=False" if positive in names else match[0]

    try:
        yield
    except UserError as error:
        error.args = (re.sub(r"`[^`]*`|\b(?:python|duida) [^;,]*|(?<![\w-])--([a-z-]+)(?![\w.])", name_of, str(error)),)
        raise


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is most similar to `name`, or "" if no name is similar."""
    import difflib

    # Prefer names with the same first letter, because typos rarely affect it.
    likely = sorted(other for other in known if other[:1] == name[:1])
    matches = difflib.get_close_matches(name, likely, 1, 0.75) or difflib.get_close_matches(name, known, 1, 0.85)
    return matches[0] if matches else ""


# Names of removed settings, and advice on what to use instead.
REMOVED = {
    "histograms": "TensorBoard shows the loss and the gradients' norm",
    "input_feeding": "attention follows the recurrent layers, leave it out",
    "sampled_softmax": "the exact loss is computed in chunks",
    "typical": "use --top-p or --min-p",
    "coverage_penalty": "leave it out",
    "diverse_groups": "use --n-best, or sample replies with --candidates",
    "diversity": "use --n-best, or sample replies with --candidates",
    **dict.fromkeys(("sheet", "compare", "number"), "in a checkout, use python -m benchmarks sheet"),
}


def unknown_flags(settings: Iterable[str], names: Sequence[str]) -> str:
    """Return the error message for unknown flags. If possible, it suggests another flag instead of the first one.

    Args:
        settings: Names of the settings that are flags.
        names: Unknown flags, such as "--rnnsize".
    """
    name = names[0].lstrip("-")
    if replacement := REMOVED.get(name.replace("-", "_")):
        return f"--{name} was removed: {replacement}"
    # Remove `name` itself: settings that are positional arguments are known, but cannot be used as flags.
    known = {flag_of(known).removeprefix("--") for known in settings} - {name}
    suggestion = nearest(name, known)
    return f"unrecognized arguments: {' '.join(names)}" + (f"; the nearest is --{suggestion}" if suggestion else "")


def flags_for(settings: Any, values: dict[str, Any] | None = None) -> str:
    """Return a command line with all flags that differ from their defaults, quoted for a shell.

    Args:
        settings: Settings class or instance.
        values: Values by name; by default, the values of the instance.
    """
    values = flatten(settings) if values is None else values
    words: list[str] = []
    for name, flag in flags_of(settings).items():
        value = values.get(name, flag.default)
        if value != flag.default:
            words += flag.words(value)
    return shlex.join(words)
