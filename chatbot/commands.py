"""The table of all commands, and the function that runs a command.

All commands are subcommands of `duida`, such as `duida train`. In a checkout, scripts such as `python train.py` run the
same commands. The modules of a command are imported only when the command runs, because some imports take seconds.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.errors import UserError, exit_code_of
from chatbot.version import __version__

# Name of the package on PyPI and of the command that it installs.
NAME = "duida"
VERSION = f"{NAME} {__version__}"
LIST = """usage: {program} COMMAND [flags]

{about}

{commands}

COMMAND -h lists the common flags, COMMAND --help all of them.
--version prints the version.

Example: {examples}"""


class Command(NamedTuple):
    """A command or a group of commands. Its functions are imported by name when the command runs.

    Attributes:
        usage: Description in the list of commands, which is also the first sentence of the help.
        line: Name of the command's `CommandLine`, or "" for a group of commands.
        function: Name of the function that runs the command, or "" for a group of commands. It is called with the
            settings, and can return an exit code.
        parser: Name of the function that parses the arguments; by default, the `CommandLine` parses them.
        script: Arguments of `python` that run the command in a checkout; "" means -m chatbot NAME.
    """

    usage: str
    line: str = ""
    function: str = ""
    parser: str = ""
    script: str = ""

    @property
    def sentence(self) -> str:
        """The description in the list of commands as a sentence."""
        return f"{self.usage[0].upper()}{self.usage[1:]}."

    @property
    def command_line(self) -> Any:
        """The `CommandLine` of the command."""
        return _import(self.line)

    def parse(self, arguments: Sequence[str]) -> Any:
        """Parse the arguments of the command. Raises UserError if they are invalid."""
        return (_import(self.parser) if self.parser else self.command_line.parse)(arguments)


def _import(name: str) -> Any:
    module, _, member = name.rpartition(".")
    return getattr(import_module(f"chatbot.{module}"), member)


# All commands by name. The name of a command in a group begins with the group, as in `data inspect`.
COMMANDS = {
    "": Command("train a chatbot on question-answer pairs, on one or many GPUs, and talk to it"),
    "train": Command(
        "train a chatbot on question-answer pairs, or resume the training",
        "config.training.TRAIN",
        "training.start.start",
        "attempts.settings.train_settings",
        script="train.py",
    ),
    "chat": Command(
        "talk to a trained chatbot, in a terminal or through a pipe",
        "config.chat.CHAT",
        "chat.start.start",
        script="chat.py",
    ),
    "ask": Command(
        "print the reply of a trained chatbot to one question",
        "config.chat.ASK",
        "chat.start.start",
        "config.chat.ask_settings",
        script="chat.py QUESTION",
    ),
    "serve": Command(
        "serve a chatbot with an OpenAI-compatible API and a web page",
        "config.chat.SERVE",
        "chat.start.start",
        "config.chat.serve_settings",
        script="chat.py --serve",
    ),
    "data": Command(
        "inspect, print or encode pairs, or prune a pretrained model",
        script="-m chatbot.corpus",
    ),
    "data inspect": Command(
        "report what files contain and what training would drop", "config.corpus.INSPECT", "corpus.inspection.inspect"
    ),
    "data pairs": Command(
        "print the pairs that training would read, one per line", "config.corpus.PAIRS", "corpus.conversion.convert"
    ),
    "data encode": Command(
        "encode pairs into the cache, on this machine or with Apache Beam",
        "config.corpus.ENCODE",
        "corpus.dataset.encode_now",
    ),
    "data prune": Command(
        "prune a pretrained model to the tokens of the pairs",
        "config.corpus.PRUNE",
        "pretrained.pruning.prune",
    ),
    "evaluate": Command(
        "evaluate a trained chatbot on held-out pairs",
        "config.evaluation.EVALUATE",
        "evaluation.start.start",
        script="-m chatbot.evaluation",
    ),
    "attempts": Command(
        "list, compare, rename, index or delete attempts",
        "config.attempts.LIST",
        "attempts.table.print_table",
        script="-m chatbot.attempts",
    ),
    "attempts compare": Command(
        "compare the settings, sizes, best values and curves of attempts",
        "config.attempts.COMPARE",
        "attempts.compare.compare",
    ),
    "attempts rename": Command(
        "rename an attempt, its folders and its name in config.json",
        "config.attempts.RENAME",
        "attempts.folders.rename",
    ),
    "attempts index": Command(
        "index an attempt's pairs for semantic search, and refit its ranking",
        "config.attempts.INDEX",
        "training.reindexing.index",
    ),
    "attempts delete": Command(
        "list the folders of attempts and their sizes, or delete them",
        "config.attempts.DELETE",
        "attempts.folders.delete",
    ),
    "export": Command(
        "export a trained chatbot to ONNX, SavedModel or transformers",
        "config.export.EXPORT",
        "export.start.start",
        script="-m chatbot.export",
    ),
    "bot": Command("answer messages on Telegram", script="-m chatbot.chat.bots"),
    "bot telegram": Command(
        "answer messages on Telegram, using long polling", "config.chat.TELEGRAM", "chat.bots.start.telegram"
    ),
    "init-config": Command(
        "write a template of all settings, for train --config FILE",
        "config.template.INIT_CONFIG",
        "config.template.init_config",
    ),
    "completion": Command(
        "print the completion script for bash or zsh", "completion.COMPLETION", "completion.print_script"
    ),
}
# Names of removed commands, and the commands that replace them.
REMOVED = {
    "bot webhook": "POST to /v1/chat/completions of `duida serve` with a key of --api-key-file; see docs/bots.md",
}


def program(command: str) -> str:
    """Return a call of a command: `duida train` if `duida` started this process, or else `python train.py`."""
    called = Path(sys.argv[0])
    if called.stem == NAME:
        return f"{NAME} {command}".strip()
    is_module = called.parts[-2:] == ("chatbot", "__main__.py")
    return f"python {f'-m chatbot {command}'.strip() if is_module else script_of(command)}"


def script_of(command: str) -> str:
    """Return the arguments of `python` that run a command, such as '-m chatbot.corpus inspect' for 'data inspect'."""
    name, *rest = command.split(" ", 1)
    if name not in COMMANDS:
        return f"-m {command}"  # another package in the checkout, such as benchmarks
    return " ".join([COMMANDS[name].script or f"-m chatbot {name}".strip(), *rest])


def names_within(command: str) -> list[str]:
    """Return the subcommands of a command, such as ["inspect", "pairs", "encode", "prune"] for "data"."""
    start = f"{command} " if command else ""
    names = (name.removeprefix(start) for name in COMMANDS if name.startswith(start))
    return [name for name in names if name and " " not in name]


def lines_within(command: str) -> list[str]:
    """Return one line of help for each subcommand of a command."""
    names = names_within(command)
    width = max(map(len, names), default=0)
    return [f"  {name:{width}}  {COMMANDS[f'{command} {name}'.strip()].usage}" for name in names]


def _format_list(command: str) -> str:
    """Return the help for a group of commands, with examples for the first two commands."""
    called = [f"{command} {name}".strip() for name in names_within(command)[:2]]
    examples = [f"{program(name)} {COMMANDS[name].command_line.example}" for name in called]
    return LIST.format(
        program=program(command),
        about=COMMANDS[command].sentence,
        commands="\n".join(lines_within(command)),
        examples=f"\n{'':9}".join(examples),
    )


def main(command: str = "") -> int:
    """Run a command with the arguments of this process, and return its exit code. By default, run `duida` itself."""
    return exit_code_of(lambda: run(command))


def run(command: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. For a group of commands, the first argument names the subcommand.

    Args:
        command: Name of the command; "" for `duida` itself.
        arguments: Words after the command; by default, the arguments of the process.

    Raises:
        UserError: If the command does not exist or an argument is not allowed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    subcommands = names_within(command)
    name = words[0] if words else ""
    called = f"{command} {name}".strip()
    if name in subcommands:
        return run(called, words[1:])
    if COMMANDS[command].function and (not subcommands or not name or name.startswith("-")):
        settings = COMMANDS[command].parse(words)
        return _import(COMMANDS[command].function)(settings) or 0
    if called in REMOVED:
        raise UserError(f"{called} was removed: {REMOVED[called]}")
    if name not in ("", "-h", "--help", "--version"):
        *others, last = subcommands
        choices = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f"{name}: no such command; choose {choices}")
    print(VERSION if name == "--version" else _format_list(command))
    return 0
