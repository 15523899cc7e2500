"""The table of all commands, and how one of them is run.

The installed command `duida`, which is `python -m chatbot` in a checkout, runs all of them; train.py, chat.py and
`python -m` with a package run some of them. The modules of a command are imported after its flags are parsed: some take
seconds.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from chatbot.command_line import VERSION, CommandLine, program
from chatbot.config.attempts import COMPARE, DELETE, LIST, RENAME
from chatbot.config.bots import TELEGRAM, WEBHOOK
from chatbot.config.chat import ASK, CHAT, SERVE, ask_settings, serve_settings
from chatbot.config.completion import COMPLETION
from chatbot.config.corpus import ENCODE, INSPECT, PAIRS
from chatbot.config.evaluation import EVALUATE
from chatbot.config.export import EXPORT
from chatbot.config.stored import train_settings
from chatbot.config.template import INIT_CONFIG
from chatbot.config.training import TRAIN
from chatbot.errors import UserError, exit_code_of

# What is printed for `duida`, and for a command that only has commands of its own.
USAGES = {
    "": """usage: {program} COMMAND [flags]

Train a chatbot on question-answer pairs, on one or many GPUs, and talk to it.

  train        train a chatbot, or resume the training
  chat         talk to a trained chatbot, in a terminal or through a pipe
  ask          print the reply to one question
  serve        serve a trained chatbot: OpenAI's API, and a page for browsers
  data         inspect, write or encode the pairs of files
  evaluate     measure a trained chatbot on held-out pairs
  attempts     list training runs; or compare, rename, delete them
  export       write a trained chatbot as ONNX or SavedModel
  bot          answer on Telegram, or behind a webhook
  init-config  write a commented file of all settings, for train --config FILE
  completion   print the completion script of bash or zsh

COMMAND -h lists the flags that people use, COMMAND --help all of them.
--version prints the version.

Example: {program} train --data pairs.tsv --attempt weibo
         {program} chat --attempt weibo""",
    "data": """usage: {program} inspect FILE ...  report what the files contain, and what training would drop
       {program} pairs FILE ...    write the pairs that training would read, one on each line
       {program} encode FILE ...   tokenise and encode now, on this machine or with Apache Beam
Give either -h or --help to list its flags. --version prints the version.""",
    "bot": """usage: {program} telegram [flags]  answer messages on Telegram
       {program} webhook [flags]   answer signed messages by HTTP
Give either -h or --help to list its flags. --version prints the version.""",
}


class Command(NamedTuple):
    """A command: its flags, and the function of this package that runs it with its settings and may return a code."""

    line: CommandLine[Any]
    function: str
    parser: Callable[[Sequence[str]], Any] | None = None  # of the arguments, where it is not that of `line`

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the settings. Raises UserError."""
        return (self.parser or self.line.parse)(arguments)


# By name. Some are commands of a command, such as `data inspect`.
COMMANDS = {
    command.line.command: command
    for command in (
        Command(TRAIN, "training.start.start", train_settings),
        Command(CHAT, "chat.start.start"),
        Command(ASK, "chat.start.start", ask_settings),
        Command(SERVE, "chat.start.start", serve_settings),
        Command(INSPECT, "corpus.start.inspect"),
        Command(PAIRS, "corpus.start.write"),
        Command(ENCODE, "corpus.start.encode"),
        Command(EVALUATE, "evaluation.start.start"),
        Command(LIST, "attempts.table.print_table"),
        Command(COMPARE, "attempts.compare.compare"),
        Command(RENAME, "attempts.folders.rename"),
        Command(DELETE, "attempts.folders.delete"),
        Command(EXPORT, "export.start.start"),
        Command(TELEGRAM, "chat.bots.start.telegram"),
        Command(WEBHOOK, "chat.bots.start.webhook"),
        Command(INIT_CONFIG, "config.template.init_config"),
        Command(COMPLETION, "completion.print_script"),
    )
}


def names_within(command: str) -> list[str]:
    """Return the names that may follow a command: ["inspect", "pairs", "encode"] for "data"."""
    start = f"{command} " if command else ""
    names = (name.removeprefix(start).split()[0] for name in COMMANDS if name.startswith(start))
    return list(dict.fromkeys(names))


def main(command: str = "") -> int:
    """Run a command with the arguments of the process, and return its exit code. By default, `duida` itself."""
    return exit_code_of(lambda: run(command))


def run(command: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command, or the command of it that the first argument names, and return its exit code.

    arguments: by default those of the process. Raises UserError.
    """
    words = sys.argv[1:] if arguments is None else arguments
    within = names_within(command)
    if command in COMMANDS and (not within or not words or words[0].startswith("-")):
        settings = COMMANDS[command].parse(words)
        module, _, function = COMMANDS[command].function.rpartition(".")
        return getattr(import_module(f"chatbot.{module}"), function)(settings) or 0
    name = words[0] if words else "--help"
    if name in within:
        return run(f"{command} {name}".strip(), words[1:])
    if name not in ("-h", "--help", "--version"):
        *others, last = within
        raise UserError(f"{name}: no such command; choose {', '.join(others)} or {last}")
    print(VERSION if name == "--version" else USAGES[command].format(program=program(command)))
    return 0
