"""Settings in JSON files: an attempt's config.json, or the file of --config, which flags override."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.config.corpus import AUTO, NONE, CorpusSettings, EncodingSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, fields_of, flag_of, flatten, parse_flags, program


def train_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Parse the command line of train.py: defaults, overridden by --config, overridden by flags. Raises UserError."""
    about = "Train an attention seq2seq chatbot on question-answer pairs, one tower a device."
    return settings_over_config(parse_flags(Settings, "train.py", about, arguments))


def settings_over_config(given: dict[str, Any]) -> Settings:
    """Return the defaults, overridden by the file named by `config`, overridden by the given flat values.

    Raises UserError for a file or a value that cannot be used.
    """
    values = read_settings(Path(given["config"])) if given.get("config") else {}
    if {"steps", "epochs"} & given.keys():
        values.pop("steps", None)
        values.pop("epochs", None)
    return compose(Settings, **{**values, **given})


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file, by name. Raises UserError for a file that does not hold settings."""
    remedy = "restore it from a backup, or use another"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: settings cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, not JSON; {remedy}") from None
    fields = fields_of(Settings)
    many = {name for name, field in fields.items() if field.metadata["many"]}
    if not isinstance(values, dict) or not all(isinstance(values.get(name, []), list) for name in many):
        raise UserError(f"{path}: damaged, a JSON object of settings expected; {remedy}")
    if values.get("validation", "") is None:  # version 1.0 and earlier: no validation file
        values["validation"] = NONE
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise UserError(f"{path}: unknown setting {unknown[0]!r}; see {program('train.py')} --help for the names")
    return {name: tuple(value) if name in many else value for name, value in values.items()}


def stored_settings(path: Path) -> Settings:
    """Return the settings in an attempt's config.json. Raises UserError for a damaged file or a value not allowed."""
    try:
        return compose(Settings, **read_settings(path))
    except UserError as error:
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def storable(settings: Settings) -> dict[str, Any]:
    """Return the content of config.json: every setting that is declared as stored."""
    fields = fields_of(Settings)
    return {name: value for name, value in flatten(settings).items() if fields[name].metadata["stored"]}


def changed_settings(then: Settings, now: Settings) -> list[str]:
    """Return the fixed settings that differ, each as '--flag then -> now'."""
    return _differences(then, now, [name for name, field in fields_of(Settings).items() if field.metadata["fixed"]])


def changed_corpus_settings(then: Settings, now: Settings) -> list[str]:
    """Return the settings that differ and change the pairs read from the same files, each as '--flag then -> now'."""
    fields = fields_of(CorpusSettings) | fields_of(EncodingSettings)
    return _differences(then, now, [name for name, field in fields.items() if field.metadata["stored"]])


def _differences(then: Settings, now: Settings, names: Sequence[str]) -> list[str]:
    """Compare the settings of these names. "auto" now equals any value: the attempt keeps its earlier choice."""
    old, new = flatten(then), flatten(now)
    return [
        f"{flag_of(name)} {_on_command_line(old[name])} -> {_on_command_line(new[name])}"
        for name in names
        if new[name] != AUTO and _on_command_line(old[name]) != _on_command_line(new[name])
    ]


def _on_command_line(value: Any) -> str:
    """Return the value as text; several values are sorted, since their order has no meaning."""
    return " ".join(sorted(value)) if isinstance(value, tuple) else str(value)
