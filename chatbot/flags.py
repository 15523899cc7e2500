"""Dataclass fields that are also flags: one declaration defines the flag, its --help, its check and its JSON.

The settings of a command are a `Flags`, whose fields are flags or, recursively, dataclasses of them (its parts). On the
command line and in JSON all flags are flat: `compose` makes the parts and `flatten` undoes it. Any other field is no
flag: only the code sets it.
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

# What an error says that a value must be.
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
# What the help shows for a value.
METAVARS = {int: "N", float: "R", str: "NAME"}
FLAG = "flag"  # the key of a `Flag` in the metadata of its field
# Of a whole number, also in a file.
LARGEST = 2**63 - 1

Composed = TypeVar("Composed")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting on the command line. `setting` declares it, and `Flags` completes it by the field that it is of."""

    name: str  # of the setting, such as rnn_size
    default: Any  # `...`: it must be given
    kind: type  # of a value
    many: bool  # whether it takes several values
    text: str  # the help
    group: str = ""  # the heading in --help; "": that of the flag before in its class
    unset: str = ""  # what is done without the flag, as the help states it; "": the default itself, or none
    count: int | None = None  # the exact number of values of a flag that takes several
    choices: tuple[str, ...] = ()  # none: any value
    least: float | None = None
    most: float | None = None
    above: float | None = None  # an exclusive bound
    remedy: str = ""  # what to give instead of a value that is not above it
    fixed: bool = False  # the value cannot change when the attempt is resumed
    stored: bool = True  # the value is written to config.json
    negatable: bool = False  # there is --no-NAME, too, as for every bool that is on by default
    once: bool = False  # the flag is an error where it is given twice; of others, the last counts
    metavar: str = ""  # what the help shows for a value; "": its choices, or its type

    @property
    def spellings(self) -> list[str]:
        """The flag and, where it can be turned off, the one that does: --copy and --no-copy."""
        can_be_off = self.kind is bool and (self.default or self.negatable)
        return [flag_of(self.name), flag_of(f"no_{self.name}")] if can_be_off else [flag_of(self.name)]

    @property
    def shown_value(self) -> str:
        """What the help shows for a value: FILE, lstm|gru, N."""
        return self.metavar or "|".join(self.choices) or METAVARS[self.kind]

    @property
    def shown_default(self) -> str:
        """The default for readers."""
        if self.unset or self.default in (None, "", ()):
            return self.unset or "none"
        if self.kind is bool:
            return "on" if self.default else "off"
        return " ".join(map(str, self.default)) if self.many else str(self.default)

    def words(self, value: Any) -> list[str]:
        """Return the words that give the setting a value on the command line: --rnn-size 64, --no-copy."""
        if self.kind is bool:
            return [flag_of(self.name if value else f"no_{self.name}")]
        return [flag_of(self.name), *map(str, value if self.many else [value])]

    def parsed(self, text: str, name: str | None = None) -> Any:
        """Convert and check a single value that a user gives as text. Raises UserError as `check`, by the same name."""
        value: Any = text
        if self.kind is bool:
            value = {"true": True, "false": False}.get(text, text)
        else:
            with contextlib.suppress(ValueError):
                value = self.kind(text)
        self.check(value, name)
        return value

    def check(self, value: Any, name: str | None = None) -> None:
        """Raise UserError if a single value is not allowed. name: in the message, by default the flag."""
        flag = name or flag_of(self.name)
        kinds: Any = (int, float) if self.kind is float else self.kind
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise UserError(f"{flag} {value!r}: expected {EXPECTED[self.kind]}")
        if (value == "" and self.default != "") or (isinstance(value, str) and not value.isprintable()):
            raise UserError(f"{flag} {value!r}: expected printable text")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{flag} {value}: expected a finite number")
        if isinstance(value, int) and abs(value) > LARGEST:
            shown = f" {value}" if abs(value) < 10**40 else ""  # a number of any length may be in a file
            raise UserError(f"{flag}{shown}: must be at most {LARGEST}")
        if self.choices and value not in self.choices:
            raise UserError(f"{flag} {value}: choose one of {', '.join(self.choices)}")
        if self.least is not None and value < self.least:
            raise UserError(f"{flag} {value}: must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise UserError(f"{flag} {value}: must be at most {self.most}")
        if self.above is not None and value <= self.above:
            raise UserError(f"{flag} {value}: must be above {self.above}{self.remedy and f'; {self.remedy}'}")


def setting(default: Any, text: str, **options: Any) -> Any:
    """Return a field of a `Flags` class that is also a flag. default: `...` marks a required one. options: of Flag."""
    return dataclasses.field(default=default, metadata={"text": text, **options})


class Flags:
    """A frozen dataclass of flags. Raises UserError for a value that is not allowed, when it is made."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Complete the declarations by the annotations and the group of the flag before. options: of all flags."""
        group = ""
        for name, annotation in inspect.get_annotations(cls).items():
            field = cls.__dict__.get(name)
            if isinstance(field, dataclasses.Field) and field.metadata:
                kind = (typing.get_args(annotation) or (annotation,))[0]  # of int, int | None, tuple[int, ...]
                many = typing.get_origin(annotation) is tuple
                group = field.metadata.get("group", group)
                given = {**options, **field.metadata, "group": group}
                field.metadata = MappingProxyType({FLAG: Flag(name, field.default, kind, many, **given)})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            if not field.metadata:
                continue  # a part, which was checked when it was made, or no flag
            flag: Flag = field.metadata[FLAG]
            value = getattr(self, flag.name)
            if value is None and flag.default is None:
                continue
            for item in value if flag.many else (value,):
                flag.check(item)


def flag_of(name: str) -> str:
    """Return the flag of a setting: rnn_size -> --rnn-size."""
    return "--" + name.replace("_", "-")


def flags_of(settings: Any) -> dict[str, Flag]:
    """Return the flags of a settings class or instance and of its parts, by name, in the order of declaration."""
    flags: dict[str, Flag] = {}
    for field in dataclasses.fields(settings):
        if field.metadata:
            flags[field.name] = field.metadata[FLAG]
        elif dataclasses.is_dataclass(field.type):
            flags |= flags_of(field.type)
    return flags


def compose(kind: type[Composed], **values: Any) -> Composed:
    """Return settings from flat values: `compose(Settings, rnn_size=64)`. Raises UserError, TypeError for unknown
    names."""
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
    """Return the names of the flat values of a settings class: its flags, and its fields that are no flags."""
    names: set[str] = set()
    for field in dataclasses.fields(kind):
        names |= _names_of(field.type) if dataclasses.is_dataclass(field.type) else {field.name}
    return names


def flatten(settings: Any) -> dict[str, Any]:
    """Return the flat values of settings, by name: the inverse of `compose`."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        values |= flatten(value) if dataclasses.is_dataclass(field.type) else {field.name: value}
    return values


def replace(settings: Composed, **changes: Any) -> Composed:
    """Return a copy with some flat values changed: `replace(settings, rnn_size=64)`. Raises as `compose` does."""
    return compose(type(settings), **{**flatten(settings), **changes})


@contextlib.contextmanager
def settings_by_name(names: Collection[str]) -> Iterator[None]:
    """Let a UserError name settings as Python does: rnn_size in place of --rnn-size, copy=False of --no-copy.

    names: of the settings that the user can give by name. The flags of commands that a message quotes stay.
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
    """Return the known name that is most similar to an unknown one, "" if none is similar."""
    import difflib

    # Typing errors rarely concern the first letter: --port is not near --export, but /ood is near /good.
    likely = sorted(other for other in known if other[:1] == name[:1])
    near = difflib.get_close_matches(name, likely, 1, 0.75) or difflib.get_close_matches(name, known, 1, 0.85)
    return near[0] if near else ""


# Settings of earlier versions, which a file of settings may still have: what replaces them.
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
    """Return the message about unknown flags. It says what replaces the first, or suggests the most similar name.

    settings: the names of the settings that are flags.
    """
    name = names[0].lstrip("-")
    if replacement := REMOVED.get(name.replace("-", "_")):
        return f"--{name} was removed: {replacement}"
    # A known name is not a flag if its values are positional arguments.
    known = {flag_of(known).removeprefix("--") for known in settings} - {name}
    near = nearest(name, known)
    return f"unrecognized arguments: {' '.join(names)}" + (f"; the nearest is --{near}" if near else "")


def flags_for(settings: Any, values: dict[str, Any] | None = None) -> str:
    """Return settings as flags, quoted for a shell, without those at their defaults.

    values: by name, of the settings class `settings`; by default those of the instance `settings`.
    """
    values = flatten(settings) if values is None else values
    words: list[str] = []
    for name, flag in flags_of(settings).items():
        value = values.get(name, flag.default)
        if value != flag.default:
            words += flag.words(value)
    return shlex.join(words)
