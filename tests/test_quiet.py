"""Less output of C++ code, which writes to file descriptor 2."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chatbot.quiet import LOG_LINE, without_log_lines
from tests.commands import ENVIRONMENT

LINE = "I0000 00:00:1767322800.123456    4567 port.cc:153] oneDNN custom operations are on.\n"


def test_log_lines_are_discarded_and_errors_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with without_log_lines():
        os.write(2, f"{LINE}ERROR: of the model\nof another thread\n".encode())
    assert capfd.readouterr().err == "ERROR: of the model\nof another thread\n"


@pytest.mark.parametrize(
    ("line", "discarded"),
    [
        (b"2026-01-02 03:04:05.678901: I external/local_xla/xla/cudart_stub.cc:31] Could not find cuda drivers", True),
        (b"I0000 00:00:1767322800.123456    4567 port.cc:153] oneDNN custom operations are on.", True),
        (b"E0000 00:00:1767322800.123456    4567 cuda_dnn.cc:8454] Unable to register cuDNN factory", True),
        (b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", True),
        (b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow", True),
        (b"2026-01-02 03:04:05.678901: F tensorflow/core/platform/cpu_feature_guard.cc:78] compiled to use AVX", False),
        (b"2026-01-02 03:04:05,678 INFO of the user's logger", False),
        (b"WARNING: of the user", False),
    ],
)
def test_only_log_lines_of_tensorflow_are_discarded(line: bytes, discarded: bool) -> None:
    assert bool(re.match(LOG_LINE.encode(), line)) == discarded


ABORT = """
import os, signal, sys
from chatbot.quiet import import_tensorflow

class Aborts:
    # In place of TensorFlow, on a CPU without AVX.
    def find_spec(self, name, *_):
        if name == "tensorflow":
            os.write(2, b"I0000 00:00:1767322800.123456 4567 port.cc:153] oneDNN\\nF compiled to use AVX\\n")
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Aborts())
import_tensorflow()
"""


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGILL, signal.SIGKILL])
def test_last_words_of_a_process_reach_standard_error(number: signal.Signals) -> None:
    command = [sys.executable, "-c", ABORT.format(number=int(number))]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=30, check=False)
    assert (process.returncode, process.stderr) == (-number, b"F compiled to use AVX\n")


LOAD = """
import os, sys, threading
import chatbot
os.write(2, b"before\\n")
try:
    chatbot.load("empty")
except chatbot.UserError as error:
    print(error, file=sys.stderr)
import tensorflow as tf
tf.constant(1) + 1
os.write(2, b"after\\n")
"""


def test_library_prints_no_log_lines_of_tensorflow(tmp_path: Path) -> None:
    """Nor does it swallow what the script prints."""
    (tmp_path / "empty").mkdir()
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    process = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=True
    )
    before, *error, after = process.stderr.decode().splitlines()
    assert (before, after, process.stdout) == ("before", "after", b"")
    assert len(error) == 1
    assert "/empty/last: missing" in error[0]
