"""Scripts for bash and zsh that complete the commands and flags of `duida`."""

import dataclasses
from typing import Any

from chatbot.command_line import CommandLine
from chatbot.commands import COMMANDS, names_within
from chatbot.flags import Flags, flag_of, setting

# $before contains the words between `duida` and the current word. $last contains the last flag and its values. bash
# treats the = in --flag=value as a separate word, so it is removed. $flags contains completions for words that start
# with a dash, and $words contains completions for other words. If $words is empty, the shell completes file names.
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
    """Settings of `duida completion`."""

    shell: str = setting(
        ...,
        "shell that will run the completion script: bash or zsh",
        group="output",
        choices=("bash", "zsh"),
        metavar="SHELL",
    )


COMPLETION = CommandLine(
    CompletionSettings,
    "completion",
    about='In ~/.bashrc: eval "$(duida completion bash)"',
    example="bash",
    positional="shell",
)


def print_script(settings: CompletionSettings) -> None:
    """Print the completion script for a shell."""
    print(script(settings.shell))


def script(shell: str) -> str:
    """Return the completion script for a shell."""
    lines = {name: row.command_line for name, row in COMMANDS.items() if row.function}
    cases = []
    for group in filter(names_within, COMMANDS):
        names = " ".join(names_within(group))
        flags = " ".join(_flags(lines[group]) if group in lines else HELP)
        words = f"{names} $flags" if group else names
        before = f"{group} " if group else ""
        cases += [f'"{before}")', f'    flags="{flags}"', f'    words="{words}" ;;']
    for name, line in sorted(lines.items(), reverse=True):  # match `attempts compare` before `attempts`
        cases += [f'"{name} "*)', *(f"    {text}" for text in _completion_lines(line))]
    text = "\n".join(f"    {case}" for case in cases)
    return (FOR_ZSH if shell == "zsh" else "") + SCRIPT.format(cases=text)


def _completion_lines(line: CommandLine[Any]) -> list[str]:
    """Return the lines of the script for a single command."""
    choices = {'"--help "': line.groups}
    plain = []
    for name, flag in line.flags.items():
        if name != line.positional and flag.kind is not bool:
            pattern = f'"{flag_of(name)} "{"*" if flag.many else ""}'
            if flag.choices:
                choices[pattern] = [*flag.choices]
            else:
                plain.append(pattern)
    otherwise = "$flags"
    if line.positional:
        otherwise = " ".join(line.flags[line.positional].choices)
    return [
        f'flags="{" ".join(_flags(line))}"',
        'case "$last" in',
        *(f'{pattern}) words="{" ".join(values)}" ;;' for pattern, values in choices.items()),
        *([f"{'|'.join(plain)}) ;;"] if plain else []),
        f'*) words="{otherwise}" ;;',
        "esac ;;",
    ]


def _flags(line: CommandLine[Any]) -> list[str]:
    flags = (flag for name, flag in line.flags.items() if name != line.positional)
    return [spelling for flag in flags for spelling in flag.spellings] + HELP
