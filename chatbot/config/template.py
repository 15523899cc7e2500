"""The file of --config: written with all defaults, for editing, and read."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatbot.command_line import CommandLine
from chatbot.commands import program
from chatbot.config.training import TRAIN
from chatbot.errors import UserError
from chatbot.flags import REMOVED, Flag, Flags, nearest, setting

YAML = (".yaml", ".yml")
# Values that mean: not set.
NULL = ("null", "~", "")
SHOWN = 60  # characters of a text in a message


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
    "init-config",
    "",
    "settings.yaml",
    positional="file",
)


def init_config(settings: InitConfigSettings) -> None:
    """Write a file of all settings, none of which is set. Raises UserError if it exists."""
    file = settings.file
    try:
        with open(file, "x", encoding="utf-8") as written:
            written.write(template())
    except FileExistsError:
        raise UserError(f"init-config {file}: exists already; give another name, or remove the file") from None
    print(f"Remove the # of settings in {file}, then run {program('train')} --config {file}")


def template() -> str:
    """Return a file of all settings with their descriptions and defaults, as comments."""
    lines = [
        "# Settings of a training run. Each line shows a default; remove its # to set a value.",
        "# Flags on the command line override this file.",
    ]
    for group in TRAIN.groups:
        lines += ["", f"# ---- {group} ----"]
        for name, flag in TRAIN.flags.items():
            if flag.group == group and name != "config":
                choices = "" if flag.metavar else ", ".join(flag.choices)
                about = f"{flag.text}{choices and f': {choices}'} (default: {flag.shown_default})"
                value = json.dumps(flag.default, ensure_ascii=False)  # YAML contains JSON
                lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 100)), f"#{name}: {value}"]
    return "\n".join(lines) + "\n"


def read_chosen(path: Path) -> dict[str, Any]:
    """Return the settings in the file of --config, by name. JSON is read as what it is, a part of YAML.

    Raises UserError, which says the line: for text that is neither, and for a setting that is unknown, repeated, or
    has a value that is not allowed.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path}: not UTF-8; save it in that encoding") from None
    values: dict[str, Any] = {}
    if path.suffix not in YAML:
        text = text.replace("\t", " ")  # tabs may indent JSON, but not YAML
    for key, value, line in _entries(path, text):
        name = key.replace("-", "_")
        where = f"{path}, line {line}"
        if name == "config":
            raise UserError(f"{where}: {key}: a file names no other file of settings; copy its settings into this one")
        if name in REMOVED:
            if path.suffix in YAML:  # written by hand; an attempt's config.json may be of an earlier version
                raise UserError(f"{where}: {key} was removed: {REMOVED[name]}")
            continue
        if name not in TRAIN.flags:
            near = nearest(name, TRAIN.flags)
            hint = f"; the nearest is {near}" if near else ""
            raise UserError(f"{where}: unknown setting {key[:SHOWN]!r}{hint}; correct it, or remove it")
        if name in values:
            raise UserError(f"{where}: {key} is set twice in this file; remove one of the two")
        try:
            values[name] = _value(TRAIN.flags[name], value, key)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    return values


def _entries(path: Path, text: str) -> Iterator[tuple[str, Any, int]]:
    """Yield the keys of a file, their values and lines. Raises UserError for text that is no mapping.

    Each scalar is the text that a flag would have: neither `gpus: 0`, `both_directions: on` nor `time_limit: 1:30` is
    what YAML makes of it.
    """
    import yaml

    try:
        loader = yaml.BaseLoader(text)
        node = loader.get_single_node()
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}: no settings; write NAME: VALUE on each line")
        for key, value in [] if node is None else node.value:
            name = loader.construct_object(key, deep=True)
            yield str(name), loader.construct_object(value, deep=True), key.start_mark.line + 1
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        line = f", line {mark.line + 1}" if mark else ""
        why = f" ({problem[:SHOWN]})" if problem else ""
        kind = "YAML" if path.suffix in YAML else "JSON"
        raise UserError(f"{path}{line}: not {kind}{why}; write NAME: VALUE on each line") from None


def _value(flag: Flag, value: Any, key: str) -> Any:
    """Return the value of a setting in a file. key: its name there. Raises UserError."""
    if value in NULL and flag.default in (None, ()):
        return flag.default
    parsed = [_item(flag, item, key) for item in (value if flag.many and isinstance(value, list) else [value])]
    return tuple(parsed) if flag.many else parsed[0]


def _item(flag: Flag, item: Any, key: str) -> Any:
    if not isinstance(item, str):
        flag.check(item, key)  # a list or a mapping, which no setting is
    # JSON may escape an emoji as two halves.
    return flag.parsed(item.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), key)
