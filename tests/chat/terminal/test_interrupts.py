"""Ctrl-C while a reply is computed."""

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from chatbot.chat.terminal.interrupts import raised_again


class Interrupted:
    """Ctrl-C arrives in its destructor."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """As in a chat. A command in another test may have left the handler of the system, which ends the process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
@pytest.mark.parametrize("more_work", [500, 0], ids=["a moment later", "at the end"])
def test_interrupt_in_a_destructor_is_raised_again(capfd: pytest.CaptureFixture[str], more_work: int) -> None:
    def work() -> None:
        with raised_again():
            Interrupted()
            for _ in range(more_work):
                time.sleep(0.01)

    before = sys.unraisablehook
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - start < 4
    assert sys.unraisablehook is before
    time.sleep(0.1)  # and not once more
    assert capfd.readouterr().err == ""


def test_other_errors_of_destructors_are_shown() -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError("of a destructor")

    shown: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda unraisable: shown.append(unraisable.exc_type))
        with raised_again():
            Faulty()
    assert shown == [ValueError]
