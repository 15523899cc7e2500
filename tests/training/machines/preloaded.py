"""Commands in forks of a process that has imported TensorFlow and the project, which takes longer than most of them.

What a command starts by multiprocessing is a fork, too; tests/test_api.py and test_processes.py start processes as the
product does. TensorFlow begins to use devices after the fork only.
"""

import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from chatbot.quiet import import_tensorflow
from tests.commands import ROOT

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

import_tensorflow()
for name in ("chatbot.commands", "chatbot.training.loop", "chatbot.training.asynchronous"):
    importlib.import_module(name)


class Process(FORKS.Process):  # type: ignore[name-defined]
    """A command in the background, with the part of the interface of `subprocess.Popen` that the tests use.

    script: train.py, or the name of a module. log: a file for standard output and standard error.
    """

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        super().__init__(target=run_command, args=([script, *arguments], os.getcwd(), log))
        self.start()

    def poll(self) -> int | None:
        """Return the exit code of the process, a negative signal if one has killed it; None while it runs."""
        return self.exitcode

    @property
    def returncode(self) -> int | None:
        """The exit code of the process."""
        return self.exitcode

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process, or for this time."""
        self.join(seconds)


def run_command(arguments: list[str], folder: str, log: Path) -> None:
    """Become the process of a command. Raises what the command raises, SystemExit included."""
    warnings.simplefilter("ignore")
    os.setsid()
    os.chdir(folder)
    for descriptor, path in enumerate((os.devnull, str(log), str(log))):
        file = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    os.register_at_fork(after_in_child=forget_signals)
    sys.argv = arguments
    if arguments[0].endswith(".py"):
        runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    else:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def forget_signals() -> None:
    """Leave the handlers of the process that has forked to that process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
