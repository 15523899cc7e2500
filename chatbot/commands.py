"""The table of all commands, and how one of them is run.

The installed command `duida`, which is `python -m chatbot` in a checkout, runs all of them; train.py, chat.py and
`python -m` with a package run some of them. The modules of a command are imported after its flags are parsed: some take
seconds.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from chatbot.command_line import VERSION, CommandLine, program
from chatbot.errors import UserError, exit_code_of

# What is printed for `duida`, and for a command that only has commands of its own.
USAGES = {
    "": """usage: {program} COMMAND [flags]

Train a chatbot on question-answer pairs, on one or many GPUs, and talk to it.

  train        train a chatbot, or resume the training
  chat         talk to a trained chatbot, in a terminal or through a pipe
  ask          print the reply to one question
  serve        serve a trained chatbot: OpenAI's API, and a page for browsers
  data         inspect, write or encode pairs, or prune a model to their tokens
  evaluate     measure a trained chatbot on held-out pairs
  attempts     list training runs; or compare, rename, delete, index them
  export       write a trained chatbot as ONNX or SavedModel
  bot          answer on Telegram
  init-config  write a commented file of all settings, for train --config FILE
  completion   print the completion script of bash or zsh

COMMAND -h lists the flags that people use, COMMAND --help all of them.
--version prints the version.

Example: {program} train --data pairs.tsv --attempt weibo
         {program} chat --attempt weibo""",
    "data": """usage: {program} inspect FILE ...  report what the files contain, and what training would drop
       {program} pairs FILE ...    write the pairs that training would read, one on each line
       {program} encode FILE ...   tokenise and encode now, on this machine or with Apache Beam
       {program} prune FILE ...    write a pretrained model with the tokens that occur in the pairs
Give either -h or --help to list its flags. --version prints the version.""",
    "bot": """usage: {program} telegram [flags]  answer messages on Telegram
Give either -h or --help to list its flags. --version prints the version.""",
}


class Command(NamedTuple):
    """A command by names within this package, which are imported when the command runs.

    flags: its command line. function: runs it with its settings, and may return a code. parser: of the arguments, where
    it is not that of the command line.
    """

    flags: str
    function: str
    parser: str | None = None

    @property
    def line(self) -> CommandLine[Any]:
        """The flags."""
        line: CommandLine[Any] = _imported(self.flags)
        return line

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the settings. Raises UserError."""
        return (_imported(self.parser) if self.parser else self.line.parse)(arguments)


def _imported(name: str) -> Any:
    module, _, member = name.rpartition(".")
    return getattr(import_module(f"chatbot.{module}"), member)


# By name. Some are commands of a command, such as `data inspect`.
COMMANDS = {
    "train": Command("config.training.TRAIN", "training.start.start", "attempts.settings.train_settings"),
    "chat": Command("config.chat.CHAT", "chat.start.start"),
    "ask": Command("config.chat.ASK", "chat.start.start", "config.chat.ask_settings"),
    "serve": Command("config.chat.SERVE", "chat.start.start", "config.chat.serve_settings"),
    "data inspect": Command("config.corpus.INSPECT", "corpus.start.inspect"),
    "data pairs": Command("config.corpus.PAIRS", "corpus.start.write"),
    "data encode": Command("config.corpus.ENCODE", "corpus.start.encode"),
    "data prune": Command("config.corpus.PRUNE", "pretrained.pruning.prune"),
    "evaluate": Command("config.evaluation.EVALUATE", "evaluation.start.start"),
    "attempts": Command("config.attempts.LIST", "attempts.table.print_table"),
    "attempts compare": Command("config.attempts.COMPARE", "attempts.compare.compare"),
    "attempts rename": Command("config.attempts.RENAME", "attempts.folders.rename"),
    "attempts index": Command("config.attempts.INDEX", "training.reindexing.index"),
    "attempts delete": Command("config.attempts.DELETE", "attempts.folders.delete"),
    "export": Command("config.export.EXPORT", "export.start.start"),
    "bot telegram": Command("config.bots.TELEGRAM", "chat.bots.start.telegram"),
    "init-config": Command("config.template.INIT_CONFIG", "config.template.init_config"),
    "completion": Command("config.completion.COMPLETION", "completion.print_script"),
}
# Commands of earlier versions: what replaces them.
REMOVED = {
    "bot webhook": "POST to /v1/chat/completions of `duida serve` with a key of --api-key-file; see docs/bots.md",
}


def names_within(command: str) -> list[str]:
    """Return the names that may follow a command: ["inspect", "pairs", "encode", "prune"] for "data"."""
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
        return _imported(COMMANDS[command].function)(settings) or 0
    name = words[0] if words else "--help"
    called = f"{command} {name}".strip()
    if name in within:
        return run(called, words[1:])
    if called in REMOVED:
        raise UserError(f"{called} was removed: {REMOVED[called]}")
    if name not in ("-h", "--help", "--version"):
        *others, last = within
        choices = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f"{name}: no such command; choose {choices}")
    print(VERSION if name == "--version" else USAGES[command].format(program=program(command)))
    return 0
