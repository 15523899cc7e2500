"""Writes flags.md, the reference of all flags, from their declarations.

python docs/flags.py
"""

import re
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from chatbot.command_line import CommandLine  # noqa: E402
from chatbot.commands import COMMANDS, script_of  # noqa: E402
from chatbot.flags import Flag, flag_of  # noqa: E402

TITLE = """# Flags

`python docs/flags.py` makes this page from the declarations in `chatbot/config/`. Every command also prints its flags:
`-h` those that people use, `--help` all, and `--help GROUP` those under one heading.
"""


def reference() -> str:
    """The page: a section for each command, and in it a table for each group of flags that no earlier command has."""
    lines = [TITLE]
    earlier: dict[str, str] = {}  # a table -> the command that has it
    for command, line in ((name, row.command_line) for name, row in COMMANDS.items() if row.function):
        script = script_of(command).replace("--serve", "--serve 127.0.0.1:8000")
        about = textwrap.fill(f"The same as `python {script}`. {line.description}", 120)
        lines += [f"## duida {command}", "", about, ""]
        shared = defaultdict(list)
        for group in line.groups:
            table = "\n".join(rows(line, group))
            if table in earlier:
                shared[earlier[table]].append(f"*{group}*")
            else:
                earlier[table] = command
                lines += [f"### {group}", "", "| flag | default | meaning |", "|---|---|---|", table, ""]
        for other, groups in shared.items():
            lines += [f"As in `duida {other}`: {', '.join(groups)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def rows(line: CommandLine[Any], group: str) -> list[str]:
    """The rows of a group."""
    table = []
    for name, flag in line.flags.items():
        if flag.group == group:
            default = "required" if flag.default is ... else flag.shown_default
            cells = [usage(flag, name == line.positional), markdown(default), markdown(flag.text)]
            table.append(f"| {' | '.join(cells)} |")
    return table


def usage(flag: Flag, is_positional: bool) -> str:
    """A flag with its values, as code."""
    if flag.kind is bool:
        return ", ".join(f"`{spelling}`" for spelling in flag.spellings)
    values = flag.shown_value.replace("|", "\\|")
    if flag.many:
        values = " ".join([values] * flag.count) if flag.count else f"{values} ..."
    return f"`{values}`" if is_positional else f"`{flag_of(flag.name)} {values}`"


def markdown(text: str) -> str:
    """A text of --help, with its flags as code."""
    return re.sub(r"(?<!')--[a-z][a-z-]*", r"`\g<0>`", re.sub(r"[*_|\\<]", r"\\\g<0>", text))


if __name__ == "__main__":
    (ROOT / "docs" / "flags.md").write_text(reference(), encoding="utf-8")
