"""The clients of python -m benchmarks serve."""

from typing import Any

import pytest

from benchmarks.closed_loop import closed_loop


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_clients_ask_each_question_once_and_never_more_at_once(clients: int) -> None:
    questions = [str(number) for number in range(10)]
    waiting: list[Any] = []
    asked: list[str] = []

    def ask(text: str, done: Any) -> None:
        asked.append(text)
        waiting.append(done)
        assert len(waiting) <= clients
        if len(waiting) == clients or len(asked) == len(questions):
            while waiting:
                waiting.pop()(None)

    found = closed_loop(ask, questions, clients)
    assert asked == questions
    assert len(found.latencies) == len(questions)
    assert found.percentile_ms(0) <= found.median_ms <= found.percentile_ms(0.99)
