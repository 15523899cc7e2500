"""Completion of the command `duida` in bash and zsh, by a script that is made from the declarations of the flags."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from chatbot.command_line import CommandLine, subcommand
from chatbot.flags import Flags, flag_of, flags_of, setting

# $before: the words between `duida` and the one that is completed. $last: the last flag and its values. Each of these
# words has a space behind it; bash makes a word of the = in --flag=value. $flags: what is offered where the word begins
# with a dash. $words: what is offered elsewhere; where it is empty, the shell offers names of files.
SCRIPT = """_duida() {{
    local before="" last="" words="" flags="" current="${{COMP_WORDS[COMP_CWORD]}}" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ "${{COMP_WORDS[i]}}" == "=" ]] || before+="${{COMP_WORDS[i]}} "
    done
    [[ "$current" != "=" ]] || current=""
    [[ "$before" != *" --"* ]] || last="--${{before##* --}}"
    case "$before" in
{cases}
    esac
    [[ "$current" != -* ]] || words="$flags"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _duida duida"""
HELP = ["--help", "--version"]
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
    by_name = {subcommand(line.script): line for line in (*lines, COMPLETION)}
    within: dict[str, list[str]] = {"": [*commands]}  # the words after a command that are commands, too
    for name in by_name:
        if " " in name:
            within.setdefault(f"{name.split()[0]} ", []).append(name.split()[1])
    cases = []
    for before, names in within.items():
        line = by_name.get(before.strip())
        cases += [f'"{before}")', f'    flags="{" ".join(_flags(line) if line else HELP)}"']
        cases += [f'    words="{" ".join(names)} $flags" ;;' if before else f'    words="{" ".join(names)}" ;;']
    for name, line in sorted(by_name.items(), reverse=True):  # `attempts compare` before `attempts`
        cases += [f'"{name} "*)', *(f"    {text}" for text in _after(line))]
    text = "\n".join(f"    {case}" for case in cases)
    return (FOR_ZSH if shell == "zsh" else "") + SCRIPT.format(cases=text)


def _after(line: CommandLine[Any]) -> list[str]:
    """Return the lines of the script for the words after a command."""
    choices, others = {'"--help "': line.groups}, []
    for name, field in line.fields.items():
        if name != line.positional and field.metadata["kind"] is not bool:
            pattern = f'"{flag_of(name)} "{"*" if field.metadata["many"] else ""}'
            if field.metadata["choices"]:
                choices[pattern] = field.metadata["choices"]
            else:
                others.append(pattern)
    otherwise = "$flags"
    if line.positional:
        otherwise = " ".join(line.fields[line.positional].metadata["choices"] or ())
    return [
        f'flags="{" ".join(_flags(line))}"',
        'case "$last" in',
        *(f'{pattern}) words="{" ".join(values)}" ;;' for pattern, values in choices.items()),
        *([f"{'|'.join(others)}) ;;"] if others else []),
        f'*) words="{otherwise}" ;;',
        "esac ;;",
    ]


def _flags(line: CommandLine[Any]) -> list[str]:
    fields = (field for name, field in line.fields.items() if name != line.positional)
    return [flag for field in fields for flag in flags_of(field)] + HELP
