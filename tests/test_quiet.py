"""Less output of C++ code, which writes to file descriptor 2."""

import os

import pytest

from chatbot.quiet import without_info_lines


def test_info_lines_are_discarded_and_errors_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with without_info_lines():
        os.write(2, b"INFO: created\nERROR: of the model\n")
    assert capfd.readouterr().err == "ERROR: of the model\n"

    def fail() -> None:
        with without_info_lines():
            os.write(2, b"INFO: created\n")
            raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        fail()
    assert capfd.readouterr().err == "INFO: created\n"
