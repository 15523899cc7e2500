"""Less output of C++ code, which writes to file descriptor 2."""

import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from chatbot.quiet import LOG_LINE, import_tensorflow, original_stdout, progress_bars_disabled, quiet
from tests.commands import ENVIRONMENT, ROOT, python


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


FAKE = """
import os
os.write(2, b"I0000 00:00:1767322800.123456 4567 port.cc:153] oneDNN\\nlast words\\n")
if {number}:
    os.kill(os.getpid(), {number})

class config:
    def list_physical_devices():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
"""


@pytest.mark.parametrize("number", [0, signal.SIGABRT, signal.SIGKILL])
def test_the_import_prints_errors_alone_also_where_the_process_is_aborted(tmp_path: Path, number: int) -> None:
    """By a module in place of TensorFlow, on a CPU without AVX."""
    (tmp_path / "tensorflow.py").write_text(FAKE.format(number=int(number)))
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    program = "import os; from chatbot.quiet import import_tensorflow; import_tensorflow()"
    after = "To enable the following instructions: not of TensorFlow, so it is shown\n"
    program += f"; os.write(2, {after!r}.encode()); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    process = python(program, environment=environment)
    assert (process.returncode, process.stderr) == (-number, "last words\n" + ("" if number else after))
    assert process.stdout == ("" if number else "2\n")


@pytest.mark.parametrize(
    ("machine", "given", "expected"), [("x86_64", None, "1"), ("x86_64", "0", "0"), ("aarch64", None, None)]
)
def test_tensorflow_uses_onednn_on_every_x86_cpu_unless_the_user_says_otherwise(
    machine: str, given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", given or "")
    if given is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=Mock()))
    import_tensorflow()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == expected


def test_quiet_discards_output_and_bars_until_its_own_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with quiet(False):
        print("a", file=original_stdout())
        assert progress_bars_disabled() is None
    for _ in range(2):
        with quiet(True):
            with quiet(True):
                print("of the inner block")
            print("of the outer block")
            print("b", file=original_stdout())
            assert progress_bars_disabled()
        assert progress_bars_disabled() is None
        print("c", file=original_stdout())
    with pytest.raises(ValueError, match="d"), quiet(True):
        raise ValueError("d")
    print("e")
    assert capsys.readouterr().out == "a\nb\nc\nb\nc\ne\n"
    monkeypatch.setenv("TERM", "dumb")
    assert progress_bars_disabled()


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


@pytest.mark.slow
def test_library_prints_no_log_lines_of_tensorflow(work_dir: Path) -> None:
    """Nor does it swallow what the script prints."""
    Path("empty").mkdir()
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    process = python(LOAD, environment=environment)
    before, *error, after = process.stderr.splitlines()
    assert (before, after, process.stdout) == ("before", "after", "")
    assert len(error) == 1
    assert "/empty/last: missing" in error[0]
