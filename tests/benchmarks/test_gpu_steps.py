"""Training steps in one process, with and without XLA, on the CPU."""

import gc
import math
import threading
import weakref
from typing import Any

import pytest
import tensorflow as tf

from benchmarks import gpu_steps
from benchmarks.gpu_steps import Case, median_rate, steps_worker
from benchmarks.opened_step import OpenedStep, SizeFlags, plain, with_architecture
from benchmarks.tokenised import TokenisedPairs
from chatbot.config.model import TRANSFORMER
from chatbot.flags import replace

WORDS = [f"w{i}" for i in range(20)]
PAIRS = TokenisedPairs([(WORDS[: 1 + i % 5], WORDS[i % 7 : i % 7 + 1 + i % 6]) for i in range(40)], WORDS)
FLAGS = SizeFlags(embedding_size=8, num_layers=1, max_length=8, batch_size=4, vocabulary_size=300)
SETTINGS = replace(plain(with_architecture(FLAGS.settings, TRANSFORMER)), precision="float32")
CASE = Case("transformer", SETTINGS)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[OpenedStep]:
    """The models that a worker trains."""
    opened: list[OpenedStep] = []

    class Recorded(OpenedStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    monkeypatch.setattr(gpu_steps, "OpenedStep", Recorded)
    monkeypatch.setattr(gpu_steps, "TURN_SECONDS", math.inf)
    return opened


def test_speed_is_the_median_of_the_second_half_of_the_turns(
    trained: list[OpenedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    resets: list[str] = []
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", resets.append)
    measure = steps_worker(PAIRS)
    row = measure(CASE, 25)
    assert row["result"] == f"{median_rate(row['rates']):,.0f} tokens/s"
    assert median_rate([9.0, 9.0, 1.0, 2.0, 3.0]) == 2
    assert (row["steps"], len(row["rates"])) == (20, 10)
    assert row["start_s"] > 0
    assert trained[0].update.traces == 1
    first = weakref.ref(trained.pop().update)
    monkeypatch.setattr(gpu_steps, "TURN_SECONDS", 0.0)
    gc.disable()
    row = measure(CASE, 25)
    gc.enable()
    assert first() is None  # its memory is free for the next model
    assert (row["steps"], len(row["rates"])) == (8, 4)  # a slow model has fewer turns
    assert resets == ["/CPU:0"] * 2
    assert [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")] == []


@pytest.mark.slow
def test_xla_is_compared_on_one_batch(trained: list[OpenedStep]) -> None:
    row = steps_worker(PAIRS)(CASE._replace(with_xla=True), 8)
    assert row["steps"] == 4
    without = float(row["without_xla"].removesuffix(" tokens/s").replace(",", ""))
    assert row["speed_up"] == pytest.approx(median_rate(row["rates"]) / without, rel=0.01)
    assert len(trained) == 2
    for opened in trained:
        one, other = next(opened.stream), next(opened.stream)
        assert one is other
        batches = opened.batches.from_step(0, 1)
        tokens = sorted(int(next(batches).shares[0].weights.sum()) for _ in range(15))
        assert int(one.shares[0].weights.sum()) == tokens[7]
    plain_result, xla_result = (opened.update.gradient_functions[0] for opened in trained)
    assert "jit_compile=True" not in repr(plain_result)
    assert xla_result._jit_compile


def test_error_is_a_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Graph execution error:\n\nDetected at node\n\nptxas was not found\n\t [[{{node x}}]]"

    def fail(*_: object) -> None:
        raise tf.errors.InternalError(None, None, text)

    monkeypatch.setattr(gpu_steps, "OpenedStep", fail)
    error = "InternalError: ptxas was not found"
    assert steps_worker(PAIRS)(CASE, 4) == {"result": error}
    assert steps_worker(PAIRS)(CASE._replace(with_xla=True), 4) == {"result": error, "without_xla": error}
    assert "Detected at node" in capsys.readouterr().err
