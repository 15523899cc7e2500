"""A process that has imported TensorFlow and the project, and runs commands in forks of itself.

Importing takes longer than most of what these commands do. What a command starts by multiprocessing is a fork, too;
tests/test_api.py and test_processes.py start processes in the way of the product. TensorFlow begins to use devices
after the fork only.
"""

import importlib
import multiprocessing
import os
import pickle
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from chatbot.quiet import import_tensorflow
from tests.commands import ENVIRONMENT, ROOT

MODULES = "chatbot.commands", "chatbot.training.loop", "chatbot.training.asynchronous"


class Process:
    """A command in the background, with the part of the interface of `subprocess.Popen` that the tests use.

    script: train.py, or the name of a module. log: a file for standard output and standard error.
    """

    _server: ClassVar[Any] = None

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        if Process._server is None:
            Process._server = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=ROOT,  # not that of a test, whose processes are killed
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        self.pid: int = self._ask([script, *arguments], os.getcwd(), log)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code of the process, a negative signal if one has killed it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._ask(self.pid)
        return self.returncode

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process. Raises TimeoutExpired after so many seconds."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.01)

    def kill(self) -> None:
        """Send SIGKILL to the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ask(self, *request: Any) -> Any:
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return pickle.load(self._server.stdout)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Start commands, and say whether they have ended. Returns when there are no more requests, and in each fork."""
    import_tensorflow()
    for module in MODULES:
        importlib.import_module(module)
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        if isinstance(request[0], int):
            pid, status = os.waitpid(request[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                answers.close()
                run_command(*request)
        pickle.dump(answer, answers)
        answers.flush()


def run_command(arguments: list[str], folder: str, log: Path) -> None:
    """Become the process of a command. Raises what the command raises, SystemExit included."""
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
    sys.exit()


def forget_signals() -> None:
    """Leave the handlers of the process that has forked to that process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # What is printed on standard output while modules are imported must not be taken for an answer.
    serve(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
