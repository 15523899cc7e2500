"""Settings in JSON files, an attempt's config.json or what --config names, and flags over them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.config.corpus import EncodingSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of, parse_flags


def train_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The command line of train.py: defaults, then --config, then flags. Raises UserError."""
    given = parse_flags(
        Settings,
        "train.py",
        "Train an attention seq2seq chatbot on question-answer pairs, one tower a device.",
        arguments,
    )
    values = read_settings(Path(given["config"])) if "config" in given else {}
    if {"steps", "epochs"} & given.keys():
        values.pop("steps", None)
        values.pop("epochs", None)
    return Settings(**{**values, **given})


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON file, by name. Raises UserError for a file that does not hold settings."""
    remedy = "restore it from a backup, or use another"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: settings cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, not JSON; {remedy}") from None
    many = {field.name for field in dataclasses.fields(Settings) if field.metadata["many"]}
    if not isinstance(values, dict) or not all(isinstance(values.get(name, []), list) for name in many):
        raise UserError(f"{path}: damaged, a JSON object of settings expected; {remedy}")
    unknown = sorted(values.keys() - {field.name for field in dataclasses.fields(Settings)})
    if unknown:
        raise UserError(f"{path}: unknown setting {unknown[0]!r}; see python train.py --help for the names")
    return {name: tuple(value) if name in many else value for name, value in values.items()}


def stored_settings(path: Path) -> Settings:
    """The settings an attempt was trained with, from its config.json. Raises UserError."""
    try:
        return Settings(**read_settings(path))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def storable(settings: Settings) -> dict[str, Any]:
    """What config.json holds: every setting that is not about the machine or this one start."""
    values = dataclasses.asdict(settings)
    return {f.name: values[f.name] for f in dataclasses.fields(Settings) if f.metadata["stored"]}


def changed_settings(then: Settings, now: Settings) -> list[str]:
    """The fixed settings that differ, each as '--flag then -> now'."""
    return _differences(then, now, [f for f in dataclasses.fields(Settings) if f.metadata["fixed"]])


def changed_text_settings(then: Settings, now: Settings) -> list[str]:
    """What may make other pairs of the same files, if it differs, in the same form."""
    return _differences(then, now, [f for f in dataclasses.fields(EncodingSettings) if f.metadata["stored"]])


def _differences(then: Settings, now: Settings, fields: "Sequence[dataclasses.Field[Any]]") -> list[str]:
    return [
        f"{flag_of(f.name)} {_shown(getattr(then, f.name))} -> {_shown(getattr(now, f.name))}"
        for f in fields
        if _shown(getattr(then, f.name)) != _shown(getattr(now, f.name))
    ]


def _shown(value: Any) -> str:
    """As it is given on the command line. The order of several values never matters."""
    return " ".join(sorted(value)) if isinstance(value, tuple) else str(value)
