"""Completion of the command `duida` in bash and zsh, by a script that is made from the declarations of the flags."""

import dataclasses
from typing import Any

from chatbot.command_line import CommandLine
from chatbot.commands import COMMANDS, names_within
from chatbot.flags import Flags, flag_of, setting

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
    "completion",
    'In ~/.bashrc: eval "$(duida completion bash)"',
    "bash",
    positional="shell",
)


def print_script(settings: CompletionSettings) -> None:
    """Print the script of a shell."""
    print(script(settings.shell))


def script(shell: str) -> str:
    """Return the script of a shell."""
    lines = {name: row.command_line for name, row in COMMANDS.items() if row.function}
    cases = []
    for group in filter(names_within, COMMANDS):
        names = " ".join(names_within(group))
        flags = " ".join(_flags(lines[group]) if group in lines else HELP)
        words = f"{names} $flags" if group else names
        before = f"{group} " if group else ""
        cases += [f'"{before}")', f'    flags="{flags}"', f'    words="{words}" ;;']
    for name, line in sorted(lines.items(), reverse=True):  # `attempts compare` before `attempts`
        cases += [f'"{name} "*)', *(f"    {text}" for text in _after(line))]
    text = "\n".join(f"    {case}" for case in cases)
    return (FOR_ZSH if shell == "zsh" else "") + SCRIPT.format(cases=text)


def _after(line: CommandLine[Any]) -> list[str]:
    """Return the lines of the script for the words after a command."""
    choices = {'"--help "': line.groups}
    others = []
    for name, flag in line.flags.items():
        if name != line.positional and flag.kind is not bool:
            pattern = f'"{flag_of(name)} "{"*" if flag.many else ""}'
            if flag.choices:
                choices[pattern] = [*flag.choices]
            else:
                others.append(pattern)
    otherwise = "$flags"
    if line.positional:
        otherwise = " ".join(line.flags[line.positional].choices)
    return [
        f'flags="{" ".join(_flags(line))}"',
        'case "$last" in',
        *(f'{pattern}) words="{" ".join(values)}" ;;' for pattern, values in choices.items()),
        *([f"{'|'.join(others)}) ;;"] if others else []),
        f'*) words="{otherwise}" ;;',
        "esac ;;",
    ]


def _flags(line: CommandLine[Any]) -> list[str]:
    flags = (flag for name, flag in line.flags.items() if name != line.positional)
    return [spelling for flag in flags for spelling in flag.spellings] + HELP
