"""Settings files (YAML or JSON) for --config: a template with all defaults, and a parser."""

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
# In a settings file, these values mean that a setting is unset.
NULL = ("null", "~", "")
MAX_SHOWN = 60  # maximum number of characters to quote in an error message


@dataclasses.dataclass(frozen=True)
class InitConfigSettings(Flags):
    """Settings of `duida init-config`."""

    file: str = setting(..., "YAML file to create, ending in .yaml", group="output", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.file).suffix not in YAML:
            raise UserError(f"init-config {self.file}: give a name that ends in .yaml")


INIT_CONFIG = CommandLine(
    InitConfigSettings,
    "init-config",
    example="settings.yaml",
    positional="file",
)


def init_config(settings: InitConfigSettings) -> None:
    """Write a file that lists all settings as comments. Raises UserError if the file exists."""
    file = settings.file
    try:
        with open(file, "x", encoding="utf-8") as output:
            output.write(template())
    except FileExistsError:
        raise UserError(f"init-config {file}: exists already; give another name, or remove the file") from None
    print(f"Remove the # of settings in {file}, then run {program('train')} --config {file}")


def template() -> str:
    """Return a YAML text that lists all settings as comments, with their help texts and defaults."""
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
                value = json.dumps(flag.default, ensure_ascii=False)  # JSON is a subset of YAML
                lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 100)), f"#{name}: {value}"]
    return "\n".join(lines) + "\n"


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file for --config, and return its settings by name.

    Raises:
        UserError: If the file cannot be parsed, or a setting is unknown, repeated or not allowed. The message contains
            the line number.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path}: not UTF-8; save it in that encoding") from None
    values: dict[str, Any] = {}
    if path.suffix not in YAML:
        text = text.replace("\t", " ")  # tabs can indent JSON, but not YAML
    for key, value, line in _entries(path, text):
        name = key.replace("-", "_")
        location = f"{path}, line {line}"
        if name == "config":
            raise UserError(
                f"{location}: {key}: a settings file cannot include another file; copy its settings into this file"
            )
        if name in REMOVED:
            if path.suffix in YAML:  # removed settings are ignored in JSON, such as the config.json of an old version
                raise UserError(f"{location}: {key} was removed: {REMOVED[name]}")
            continue
        if name not in TRAIN.flags:
            suggestion = nearest(name, TRAIN.flags)
            hint = f"; the nearest is {suggestion}" if suggestion else ""
            raise UserError(f"{location}: unknown setting {key[:MAX_SHOWN]!r}{hint}; correct it, or remove it")
        if name in values:
            raise UserError(f"{location}: {key} is set twice in this file; remove one of the two")
        try:
            values[name] = _parse_value(TRAIN.flags[name], value, key)
        except UserError as error:
            raise UserError(f"{location}: {error}") from None
    return values


def _entries(path: Path, text: str) -> Iterator[tuple[str, Any, int]]:
    """Yield each key in a file with its value and line number.

    Values remain strings, as on the command line. YAML would convert values such as `on` and `1:30`.

    Raises:
        UserError: If the file is not a mapping.
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
        reason = f" ({problem[:MAX_SHOWN]})" if problem else ""
        kind = "YAML" if path.suffix in YAML else "JSON"
        raise UserError(f"{path}{line}: not {kind}{reason}; write NAME: VALUE on each line") from None


def _parse_value(flag: Flag, value: Any, key: str) -> Any:
    """Parse the value of a setting. Error messages refer to the setting by `key`."""
    # In earlier versions, the default of --embeddings was null.
    if value in NULL and (flag.default in (None, ()) or key == "embeddings"):
        return flag.default
    parsed = [_parse_item(flag, item, key) for item in (value if flag.many and isinstance(value, list) else [value])]
    return tuple(parsed) if flag.many else parsed[0]


def _parse_item(flag: Flag, item: Any, key: str) -> Any:
    if not isinstance(item, str):
        flag.check(item, key)  # rejects lists and mappings
    # JSON can escape an emoji as two surrogates, which must be joined.
    return flag.parsed(item.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), key)
