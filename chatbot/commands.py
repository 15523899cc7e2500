"""The table of all commands, and how one of them is run.

The installed command `duida`, which is `python -m chatbot` in a checkout, runs all of them; train.py, chat.py and
`python -m` with a package run some of them. The modules of a command are imported when it runs: some take seconds.
Messages and usage lines name a command as it was called: `duida train`, `python -m chatbot train`, `python train.py`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.errors import UserError, exit_code_of
from chatbot.version import __version__

# The name of the distribution, and of its command.
NAME = "duida"
VERSION = f"{NAME} {__version__}"
LIST = """usage: {program} COMMAND [flags]

{about}

{commands}

COMMAND -h lists the flags that people use, COMMAND --help all of them.
--version prints the version.

Example: {examples}"""


class Command(NamedTuple):
    """A row of the table. Its names within this package are imported when the command runs.

    usage: its line in the list of commands, and the first sentence of its help. line: its `CommandLine`. function: runs
    it with its settings, and may return a code. A row without these two has only commands of its own. parser: of the
    arguments, where it is not that of the command line. script: the arguments of `python` that run it in a checkout;
    "": -m chatbot NAME.
    """

    usage: str
    line: str = ""
    function: str = ""
    parser: str = ""
    script: str = ""

    @property
    def sentence(self) -> str:
        """The usage as a sentence."""
        return f"{self.usage[0].upper()}{self.usage[1:]}."

    @property
    def command_line(self) -> Any:
        """The `CommandLine`."""
        return _imported(self.line)

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the settings. Raises UserError."""
        return (_imported(self.parser) if self.parser else self.command_line.parse)(arguments)


def _imported(name: str) -> Any:
    module, _, member = name.rpartition(".")
    return getattr(import_module(f"chatbot.{module}"), member)


# By name. Some are commands of a command, such as `data inspect`.
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
        "serve a trained chatbot: OpenAI's API, and a page for browsers",
        "config.chat.SERVE",
        "chat.start.start",
        "config.chat.serve_settings",
        script="chat.py --serve",
    ),
    "data": Command("inspect, write or encode pairs, or prune a model to their tokens", script="-m chatbot.corpus"),
    "data inspect": Command(
        "report what files contain, and what training would drop", "config.corpus.INSPECT", "corpus.inspection.inspect"
    ),
    "data pairs": Command(
        "write the pairs that training would read, one on each line", "config.corpus.PAIRS", "corpus.conversion.convert"
    ),
    "data encode": Command(
        "encode pairs into the cache, on this machine or with Apache Beam",
        "config.corpus.ENCODE",
        "corpus.dataset.encode_now",
    ),
    "data prune": Command("write a model with the tokens of pairs", "config.corpus.PRUNE", "pretrained.pruning.prune"),
    "evaluate": Command(
        "measure a trained chatbot on held-out pairs",
        "config.evaluation.EVALUATE",
        "evaluation.start.start",
        script="-m chatbot.evaluation",
    ),
    "attempts": Command(
        "list training runs; or compare, rename, delete, index them",
        "config.attempts.LIST",
        "attempts.table.print_table",
        script="-m chatbot.attempts",
    ),
    "attempts compare": Command(
        "compare the settings that differ, sizes, best values and curves",
        "config.attempts.COMPARE",
        "attempts.compare.compare",
    ),
    "attempts rename": Command(
        "rename an attempt: its folders, and its name in config.json",
        "config.attempts.RENAME",
        "attempts.folders.rename",
    ),
    "attempts index": Command(
        "find the pairs of an attempt by meaning, and fit its choice anew",
        "config.attempts.INDEX",
        "training.reindexing.index",
    ),
    "attempts delete": Command(
        "list the folders of attempts with sizes; with --yes, delete them",
        "config.attempts.DELETE",
        "attempts.folders.delete",
    ),
    "export": Command(
        "write a trained chatbot as ONNX, SavedModel or for transformers",
        "config.export.EXPORT",
        "export.start.start",
        script="-m chatbot.export",
    ),
    "bot": Command("answer messages on Telegram", script="-m chatbot.chat.bots"),
    "bot telegram": Command(
        "answer messages on Telegram, by long polling", "config.chat.TELEGRAM", "chat.bots.start.telegram"
    ),
    "init-config": Command(
        "write a commented file of all settings, for train --config FILE",
        "config.template.INIT_CONFIG",
        "config.template.init_config",
    ),
    "completion": Command(
        "print the completion script of bash or zsh", "completion.COMPLETION", "completion.print_script"
    ),
}
# Commands of earlier versions: what replaces them.
REMOVED = {
    "bot webhook": "POST to /v1/chat/completions of `duida serve` with a key of --api-key-file; see docs/bots.md",
}


def program(command: str) -> str:
    """Return how a command, such as 'data inspect', is called in the way in which this process was called."""
    called = Path(sys.argv[0])
    if called.stem == NAME:
        return f"{NAME} {command}".strip()
    is_module = called.parts[-2:] == ("chatbot", "__main__.py")
    return f"python {f'-m chatbot {command}'.strip() if is_module else script_of(command)}"


def script_of(command: str) -> str:
    """Return the arguments of `python` that run a command: 'data inspect' -> '-m chatbot.corpus inspect'."""
    name, *rest = command.split(" ", 1)
    if name not in COMMANDS:
        return f"-m {command}"  # of the checkout, such as benchmarks
    return " ".join([COMMANDS[name].script or f"-m chatbot {name}".strip(), *rest])


def names_within(command: str) -> list[str]:
    """Return the names that may follow a command: ["inspect", "pairs", "encode", "prune"] for "data"."""
    start = f"{command} " if command else ""
    names = (name.removeprefix(start) for name in COMMANDS if name.startswith(start))
    return [name for name in names if name and " " not in name]


def lines_within(command: str) -> list[str]:
    """Return the lines of the list of the commands that may follow a command."""
    names = names_within(command)
    width = max(map(len, names), default=0)
    return [f"  {name:{width}}  {COMMANDS[f'{command} {name}'.strip()].usage}" for name in names]


def _list(command: str) -> str:
    """Return what is printed for a command that only has commands of its own, with examples of the first two."""
    called = [f"{command} {name}".strip() for name in names_within(command)[:2]]
    examples = [f"{program(name)} {COMMANDS[name].command_line.example}" for name in called]
    return LIST.format(
        program=program(command),
        about=COMMANDS[command].sentence,
        commands="\n".join(lines_within(command)),
        examples=f"\n{'':9}".join(examples),
    )


def main(command: str = "") -> int:
    """Run a command with the arguments of the process, and return its exit code. By default, `duida` itself."""
    return exit_code_of(lambda: run(command))


def run(command: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command, or the command of it that the first argument names, and return its exit code.

    arguments: by default those of the process. Raises UserError.
    """
    words = sys.argv[1:] if arguments is None else arguments
    within = names_within(command)
    name = words[0] if words else ""
    called = f"{command} {name}".strip()
    if name in within:
        return run(called, words[1:])
    if COMMANDS[command].function and (not within or not name or name.startswith("-")):
        settings = COMMANDS[command].parse(words)
        return _imported(COMMANDS[command].function)(settings) or 0
    if called in REMOVED:
        raise UserError(f"{called} was removed: {REMOVED[called]}")
    if name not in ("", "-h", "--help", "--version"):
        *others, last = within
        choices = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f"{name}: no such command; choose {choices}")
    print(VERSION if name == "--version" else _list(command))
    return 0
