"""Dataclass fields that are also flags: one declaration gives the flag, its --help, its check and its JSON."""

import argparse
import dataclasses
import math
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from chatbot.errors import UserError


def setting(
    default: Any,
    group: str,
    text: str,
    *,
    kind: type = str,
    many: bool = False,
    count: int | None = None,
    choices: tuple[str, ...] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    fixed: bool = False,
    stored: bool = True,
    metavar: str | None = None,
) -> Any:
    """A dataclass field that is also a flag; `check_fields` checks it.

    default: ... marks a flag that must be given. least, most and above bound a number (above is
    exclusive). count: how many values a flag with many takes. fixed: an attempt keeps the value for life.
    stored: it is written to config.json.
    """
    meta = {
        "group": group,
        "text": text,
        "kind": kind,
        "many": many,
        "count": count,
        "choices": choices,
        "least": least,
        "most": most,
        "above": above,
        "fixed": fixed,
        "stored": stored,
        "metavar": metavar,
    }
    return dataclasses.field(default=default, metadata=meta)


def flag_of(name: str) -> str:
    """The flag of a setting: rnn_size -> --rnn-size."""
    return "--" + name.replace("_", "-")


def check_fields(settings: Any) -> None:
    """Raises UserError for the first field whose value is not what it allows."""
    for field in dataclasses.fields(settings):
        meta, flag, value = field.metadata, flag_of(field.name), getattr(settings, field.name)
        if value is None and field.default is None:
            continue
        kinds = (int, float) if meta["kind"] is float else (meta["kind"],)
        for item in value if meta["many"] else (value,):
            if not isinstance(item, kinds) or (isinstance(item, bool) and meta["kind"] is not bool):
                raise UserError(f"{flag} {item!r}: {meta['kind'].__name__} expected")
            if (item == "" and field.default != "") or (isinstance(item, str) and not item.isprintable()):
                raise UserError(f"{flag} {item!r}: a printable text is needed")
            if isinstance(item, float) and not math.isfinite(item):
                raise UserError(f"{flag} {item}: a finite number is needed")
            if meta["choices"] and item not in meta["choices"]:
                raise UserError(f"{flag} {item}: choose one of {', '.join(meta['choices'])}")
            if meta["least"] is not None and item < meta["least"]:
                raise UserError(f"{flag} {item}: must be at least {meta['least']}")
            if meta["most"] is not None and item > meta["most"]:
                raise UserError(f"{flag} {item}: must be at most {meta['most']}")
            if meta["above"] is not None and item <= meta["above"]:
                raise UserError(f"{flag} {item}: must be above {meta['above']}")


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"error: {message} (see python {self.prog} --help)\n")


def command_line(settings: Any) -> str:
    """The flags that give these settings, as a shell takes them; those at their default are left out."""
    words: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            words += [flag_of(field.name), *map(str, value if field.metadata["many"] else [value])]
    return shlex.join(words)


def parse_flags(
    settings: type, prog: str, description: str, arguments: Sequence[str] | None, positional: str | None = None
) -> dict[str, Any]:
    """The flags that were given, by the name of their setting; those not given are absent.

    positional: the setting that is given without its flag.
    """
    parser = OneLineParser(
        prog=prog,
        usage=f"python {prog} FILE ... [flags]" if positional else f"python {prog} [flags]",
        description=description,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        meta = field.metadata
        group = groups.setdefault(meta["group"], None) or parser.add_argument_group(meta["group"])
        groups[meta["group"]] = group
        if field.name == positional:
            group.add_argument(field.name, nargs="*", metavar=meta["metavar"], help=meta["text"])
        else:
            group.add_argument(flag_of(field.name), dest=field.name, **_options(field))
    given = vars(parser.parse_args(arguments))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _options(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    """What argparse is told about a field."""
    meta, text = field.metadata, field.metadata["text"].replace("%", "%%")
    if meta["kind"] is bool:
        if field.default:
            return {"action": argparse.BooleanOptionalAction, "help": f"{text} (default: on)"}
        return {"action": "store_true", "help": text}
    default: Any = field.default
    if default not in (None, "", (), ...):
        text += f" (default: {' '.join(default) if meta['many'] else default})"
    metavar = meta["metavar"] or "|".join(meta["choices"] or ()) or {int: "N", float: "R", str: "NAME"}[meta["kind"]]
    options = {"type": meta["kind"], "metavar": metavar, "help": text, "required": field.default is ...}
    if meta["choices"]:
        options["choices"] = meta["choices"]
    if meta["many"]:
        options["nargs"], options["action"] = meta["count"] or "+", "extend"
    return options
