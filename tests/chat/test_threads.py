"""Threads of TensorFlow in a process that chats."""

import pytest

from chatbot.chat import threads


@pytest.mark.parametrize(
    ("cores", "given", "expected"), [(1, None, "1"), (2, None, "1"), (9, None, "4"), (9, "6", "6")]
)
def test_half_of_the_cores_unless_the_environment_says_otherwise(
    cores: int, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {} if given is None else {threads.VARIABLE: given}
    monkeypatch.setattr(threads.os, "environ", environment)
    monkeypatch.setattr(threads, "cores", lambda: cores)
    threads.limit_threads()
    assert environment[threads.VARIABLE] == expected
