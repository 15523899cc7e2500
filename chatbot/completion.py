"""Completion of the command `duida` in bash and zsh, by a script that is made from the declarations of the flags."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from chatbot.command_line import CommandLine, subcommand
from chatbot.flags import Flags, flag_of, setting

# $before: the words between `duida` and the one that is completed, each with a space behind it.
SCRIPT = """_duida() {{
    local before="" words="" i
    for ((i = 1; i < COMP_CWORD; i++)); do before+="${{COMP_WORDS[i]}} "; done
    case "$before" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _duida duida"""
FOR_ZSH = (
    "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\nautoload -Uz bashcompinit && bashcompinit\n"
)


@dataclasses.dataclass(frozen=True)
class CompletionSettings(Flags):
    """The settings of duida completion."""

    shell: str = setting(..., "bash or zsh", group="output", choices=("bash", "zsh"), metavar="SHELL")


COMPLETION = CommandLine(
    CompletionSettings,
    "-m chatbot completion",
    'Print a script that completes commands, flags and values. In ~/.bashrc: eval "$(duida completion bash)"',
    "bash",
    positional="shell",
)


def script(shell: str, commands: Iterable[str], lines: Sequence[CommandLine[Any]]) -> str:
    """Return the script. commands: what may follow `duida`. lines: of the commands, and of commands of a command."""
    by_name = {subcommand(line.script): line for line in lines}
    after = {name: [flag for flag, _ in _flags(line)] + ["--help"] for name, line in by_name.items()}
    cases: list[tuple[str, Iterable[str]]] = [('""', commands)]
    for first in dict.fromkeys(name.split()[0] for name in by_name if " " in name):
        within = [name.split()[1] for name in by_name if name.startswith(f"{first} ")]
        cases.append((f'"{first} "', within + after.get(first, ["--help"])))
    for name, line in sorted(by_name.items(), reverse=True):  # `attempts compare` before `attempts`
        cases += [(f'"{name} "*"{flag} "', choices) for flag, choices in _flags(line) if choices]
        cases.append((f'"{name} "*', after[name]))
    text = "\n".join(f"""        {pattern}) words="{" ".join(words)}" ;;""" for pattern, words in cases)
    return (FOR_ZSH if shell == "zsh" else "") + SCRIPT.format(cases=text)


def _flags(line: CommandLine[Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the flags of a command with their choices."""
    fields = {name: field for name, field in line.fields.items() if name != line.positional}
    return [(flag_of(name), field.metadata["choices"] or ()) for name, field in fields.items()]
