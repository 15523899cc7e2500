"""Precision: chosen by the CPU and the size of the layers, kept by an attempt; gradients at each precision."""

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batch
from chatbot.durable import write_json
from chatbot.flags import compose, replace
from chatbot.training.devices import towers
from chatbot.training.gradients import gradient_function
from chatbot.training.new_model import build_model
from chatbot.training.run import choose_precision
from tests.commands import ENVIRONMENT, ROOT
from tests.model.small_transformer import TRANSFORMER
from tests.training.attempts import saved_step, weights
from tests.training.dense_gradients import dense_gradients, single_groups
from tests.training.small_run import train_small

SETTINGS = compose(Settings, rnn_size=16, embedding_size=12, keep_prob=1.0, attempt="x")
BATCH = Batch(
    source=np.array([[5, 6, 7], [8, 9, 0]]),
    target_in=np.array([[1, 5], [1, 6]]),
    target_out=np.array([[5, 2], [6, 2]]),
    weights=np.ones([2, 2], np.float32),
)


@pytest.fixture
def cpuinfo(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which Linux describes the CPU."""
    monkeypatch.setattr(towers, "CPU_INFO", Path("cpuinfo"))
    return Path("cpuinfo")


@pytest.mark.parametrize(
    ("text", "model", "line"),
    [
        (
            "model name : EPYC\nflags\t\t: fpu avx512f avx512_bf16\n",
            {"rnn_size": 512},
            "bfloat16, .* with 512 or more units",
        ),
        ("flags : avx512_bf16\n", {"rnn_size": 510}, "float32; .* not been measured"),
        ("flags : avx512_bf16\n", TRANSFORMER | {"embedding_size": 256}, "bfloat16, .* with 256 or more units"),
        ("Features\t: fp asimd bf16\n", {"rnn_size": 512}, "float32; .* not been measured"),
        ("model name : avx512_bf16\nflags\t\t: fpu avx2\n", {"rnn_size": 512}, None),
        (None, {"rnn_size": 512}, None),
    ],
)
def test_auto_precision_depends_on_the_cpu_and_the_layers(
    text: str | None, model: dict[str, Any], line: str | None, cpuinfo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        cpuinfo.write_text(text)
    settings = compose(Settings, attempt="x", **model)
    assert choose_precision(settings, "/GPU:1") == "float32"
    assert choose_precision(replace(settings, asynchronous=True), "/CPU:0") == "float32"
    assert choose_precision(replace(settings, precision="float16"), "/CPU:0") == "float16"
    assert not capsys.readouterr().out
    chosen = choose_precision(settings, "/CPU:0")
    printed = capsys.readouterr().out
    assert re.match(rf"Precision: {line}", printed) if line else printed == ""
    assert chosen == ("bfloat16" if line and line.startswith("bfloat16") else "float32")


def test_resumed_attempt_keeps_its_precision(cpuinfo: Path) -> None:
    """Also on another CPU."""
    SETTINGS.run.directory.mkdir(parents=True)
    for name in ("last", "config.json"):
        write_json(SETTINGS.run.directory / name, {"precision": "bfloat16"})
    assert choose_precision(SETTINGS, "/CPU:0") == "bfloat16"


def largest_difference(one: list[tf.Tensor], other: list[tf.Tensor]) -> float:
    """The largest difference of a gradient, relative to its norm."""
    pairs = zip(one, other, strict=True)
    return max(float(tf.norm(a - b) / tf.maximum(tf.norm(a), 1e-3)) for a, b in pairs)


@pytest.mark.parametrize(("cell", "precision", "tolerance"), [("lstm", "bfloat16", 0.05), ("gru", "float16", 0.01)])
def test_precisions_have_similar_gradients(cell: str, precision: str, tolerance: float) -> None:
    exact, rounded = (
        dense_gradients(build_model(replace(SETTINGS, cell=cell).model, 10, 1, kind), BATCH)[1]
        for kind in ("float32", precision)
    )
    assert 0 < largest_difference(exact, rounded) < tolerance


def test_loss_scale_keeps_gradients_within_float16() -> None:
    """The weights of targets are so large that the gradients of the loss sum exceed float16. The loss is unscaled."""
    batch, scale = BATCH._replace(weights=1e6 * BATCH.weights), 2.0**-8
    models = [build_model(SETTINGS.model, 10, 1, precision) for precision in ("float32", "float16")]
    exact_sums, exact = dense_gradients(models[0], batch)
    function = gradient_function(models[1], single_groups(models[1]))
    _, overflowing = dense_gradients(models[1], batch, function=function, loss_scale=1.0)
    sums, gradients = dense_gradients(models[1], batch, function=function, loss_scale=scale)
    assert not all(np.isfinite(gradient).all() for gradient in overflowing)
    assert largest_difference(exact, [gradient / scale for gradient in gradients]) < 0.01
    assert float(sums.weight) == scale * float(exact_sums.weight)
    assert float(sums.loss) == pytest.approx(float(exact_sums.loss), rel=0.01)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_memory_is_reused_without_page_faults() -> None:
    """In a new process: memory that was freed and is allocated again causes no page faults."""
    program = """
import ctypes, resource, sys
from chatbot.memory import keep_freed_memory
assert keep_freed_memory() or sys.argv[1:] == ["may be refused"]
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for number in range(9):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(ctypes.c_size_t(30 << 20))
    ctypes.memset(block, 1, 30 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

    def page_faults(environment: dict[str, str], *arguments: str) -> int:
        command = [sys.executable, "-c", program, *arguments]
        completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return int(completed.stdout)

    user_settings = {"MALLOC_TRIM_THRESHOLD_": "1", "MALLOC_MMAP_THRESHOLD_": "100000"}
    assert page_faults(ENVIRONMENT) < 10 < 1000 < page_faults({**ENVIRONMENT, **user_settings}, "may be refused")


def test_attempt_with_staged_variables_goes_on_in_another_precision(pairs_file: Path) -> None:
    """With the gradients that wait for the next step: other ones would end in other weights."""
    flags = {"data": ("pairs.tsv",), "staged_variables": True, "report_to": "none", "optimizer": "sgd"}
    for steps, precision in ((3, "float32"), (5, "float16"), (7, "float32")):
        train_small(1, **flags, steps=steps, precision=precision, attempt="changed")
        assert saved_step("changed") == steps
    train_small(1, **flags, steps=7, attempt="whole")
    for a, b in zip(weights("changed"), weights("whole"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
