"""The commands. Each function parses the flags before it imports TensorFlow, and returns the exit code.

`train.py` and `chat.py` call `train` and `chat`. The installed command `duida`, which is `python -m chatbot` in a
checkout, runs all of them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from chatbot.command_line import CommandLine, program, run_command
from chatbot.config.attempts import COMPARE, DELETE, LIST, PRUNE, RENAME
from chatbot.config.bots import TELEGRAM, WEBHOOK
from chatbot.config.chat import ASK, CHAT, SERVE, ChatSettings, ask_settings, serve_settings
from chatbot.config.corpus import ENCODE, INSPECT, PAIRS
from chatbot.config.evaluation import EVALUATE
from chatbot.config.export import EXPORT
from chatbot.config.stored import train_settings
from chatbot.config.training import TRAIN
from chatbot.errors import UserError, exit_code_of

USAGE = """usage: {program} COMMAND [flags]

Train a chatbot on question-answer pairs, on one or many GPUs, and talk to it.

  train        train a chatbot, or resume the training
  chat         talk to a trained chatbot, in a terminal or through a pipe
  ask          print the reply to one question
  serve        serve a trained chatbot: OpenAI's API, and a page for browsers
  data         inspect, write or encode the pairs of files
  evaluate     measure a trained chatbot on held-out pairs
  attempts     list training runs; or compare, prune, rename, delete
  export       write a trained chatbot as ONNX or SavedModel
  bot          answer on Telegram, or behind a webhook
  init-config  write a commented file of all settings, for train --config FILE
  completion   print the completion script of bash or zsh

COMMAND -h lists the flags that people use, COMMAND --help all of them.
--version prints the version.

Example: {program} train --data pairs.tsv --attempt weibo
         {program} chat --attempt weibo"""


def duida() -> int:
    """Run the command that the first argument names."""
    return exit_code_of(lambda: run_command(USAGE.format(program=program("-m chatbot")), COMMANDS, None))


def train() -> int:
    """Train a chatbot on question-answer pairs."""
    return exit_code_of(lambda: _train(sys.argv[1:]))


def chat() -> int:
    """Talk to a trained chatbot."""
    return exit_code_of(lambda: _chat(CHAT.parse()))


def _train(arguments: Sequence[str]) -> int:
    settings = train_settings(arguments)
    from chatbot.training.start import start

    return start(settings)


def _chat(settings: ChatSettings) -> int:
    from chatbot.chat.loading import limit_threads, load_chosen

    limit_threads()
    if settings.server.serve is not None:
        return _serve(settings)
    from chatbot.chat.terminal.start import ask, chat

    model = load_chosen(settings.attempt, settings.export)
    settings.turns_of(model.turns)  # or UserError
    return ask(model, settings) if settings.question else chat(model, settings)


def _serve(settings: ChatSettings) -> int:
    try:
        from chatbot.chat.server.run import serve
    except ModuleNotFoundError as error:
        raise UserError(f'--serve: {error}; run `make serve`, or pip install "duida[serve]"') from error

    return serve(settings)


def _later(module: str, function: str = "main") -> Callable[[Sequence[str]], int]:
    """Return a function that imports a module of this package and calls its function."""
    return lambda arguments: getattr(import_module(f"chatbot.{module}"), function)(arguments)


def _completion(arguments: Sequence[str]) -> None:
    from chatbot.completion import COMPLETION, script

    print(script(COMPLETION.parse(arguments).shell, COMMANDS, COMMAND_LINES))


COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "train": _train,
    "chat": lambda arguments: _chat(CHAT.parse(arguments)),
    "ask": lambda arguments: _chat(ask_settings(arguments)),
    "serve": lambda arguments: _chat(serve_settings(arguments)),
    "data": _later("corpus.__main__"),
    "evaluate": _later("evaluation.__main__"),
    "attempts": _later("attempts.__main__"),
    "export": _later("export.__main__"),
    "bot": _later("chat.bots.__main__"),
    "init-config": _later("config.template", "init_config"),
    "completion": _completion,
}
# The commands that have flags. Some are commands of a command, such as `data inspect`.
COMMAND_LINES: list[CommandLine[Any]] = [
    *(TRAIN, CHAT, ASK, SERVE, INSPECT, PAIRS, ENCODE, EVALUATE),
    *(LIST, COMPARE, PRUNE, RENAME, DELETE, EXPORT, TELEGRAM, WEBHOOK),
]
