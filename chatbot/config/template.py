"""A file of settings for --config in YAML, which is made for editing: written with all defaults, and read."""

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.command_line import CommandLine, program
from chatbot.config.training import TRAIN
from chatbot.errors import UserError
from chatbot.flags import Flags, check_value, default_text, parsed_value, setting

YAML = (".yaml", ".yml")
# Values that mean: not set.
NULL = ("null", "~", "")


@dataclasses.dataclass(frozen=True)
class InitConfigSettings(Flags):
    """The settings of duida init-config."""

    file: str = setting(..., "the file to write, whose name ends in .yaml", group="output", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.file).suffix not in YAML:
            raise UserError(f"init-config {self.file}: give a name that ends in .yaml")


INIT_CONFIG = CommandLine(
    InitConfigSettings,
    "-m chatbot init-config",
    "Write a file of all settings of a training run with their defaults, as comments. --config FILE reads it.",
    "settings.yaml",
    positional="file",
)


def init_config(arguments: Sequence[str]) -> int:
    """Write a file of all settings, none of which is set. Return the exit code. Raises UserError if it exists."""
    file = INIT_CONFIG.parse(arguments).file
    try:
        with open(file, "x", encoding="utf-8") as written:
            written.write(template())
    except FileExistsError:
        raise UserError(f"init-config {file}: exists already; give another name, or remove the file") from None
    print(f"Remove the # of settings in {file}, then run {program('train.py')} --config {file}")
    return 0


def template() -> str:
    """Return a file of all settings with their descriptions and defaults, as comments."""
    lines = [
        "# Settings of a training run. Each line shows a default; remove its # to set a value.",
        "# Flags on the command line override this file.",
    ]
    for group in TRAIN.groups:
        lines += ["", f"# ---- {group} ----"]
        for name, field in TRAIN.fields.items():
            if field.metadata["group"] == group and name != "config":
                choices = "" if field.metadata["metavar"] else ", ".join(field.metadata["choices"] or ())
                about = f"{field.metadata['text']}{choices and f': {choices}'} (default: {default_text(field)})"
                value = json.dumps(field.default, ensure_ascii=False)  # YAML contains JSON
                lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 100)), f"#{name}: {value}"]
    return "\n".join(lines) + "\n"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file, by name. Raises UserError for a file without settings, and OSError.

    Each scalar is the text that a flag would have: neither `gpus: 0`, `both_directions: on` nor `time_limit: 1:30` is
    what YAML makes of it.
    """
    import yaml

    try:
        values = yaml.BaseLoader(path.read_text(encoding="utf-8")).get_single_data() or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML in UTF-8; write NAME: VALUE on each line") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: no settings; write NAME: VALUE on each line")
    if "config" in values:
        raise UserError(f"{path}: config: a file names no other file of settings; copy its settings into this one")
    try:
        return {key: _value(key, value) for key, value in ((name.replace("-", "_"), values[name]) for name in values)}
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _value(name: str, value: Any) -> Any:
    """Return the value of a setting in YAML; that of an unknown one as it is. Raises UserError."""
    field = TRAIN.fields.get(name)
    if field is None:
        return value
    if value in NULL and field.default in (None, ()):
        return field.default
    many = field.metadata["many"]
    items = value if many and isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str):
            check_value(field, item)  # a list or a mapping, which no setting is
    parsed = tuple(parsed_value(field, item) for item in items)
    return parsed if many else parsed[0]
