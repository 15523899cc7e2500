"""The settings of duida completion."""

import dataclasses

from chatbot.command_line import CommandLine
from chatbot.flags import Flags, setting


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
