"""Precision: measured before it is chosen, kept by an attempt; gradients at each precision."""

import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batch
from chatbot.durable import write_json
from chatbot.flags import compose, replace
from chatbot.memory import keep_freed_memory
from chatbot.model.new_model import built_model
from chatbot.training import precision
from chatbot.training.gradients import gradient_function
from chatbot.training.precision import chosen_precision, measured_gain, products
from tests.commands import ENVIRONMENT, ROOT
from tests.training.dense_gradients import dense_gradients, single_groups

SETTINGS = compose(Settings, rnn_size=16, embedding_size=12, keep_prob=1.0, attempt="x")
SIZES = [[512, 12, 20], [512, 8, 32]]
BATCH = Batch(
    source=np.array([[5, 6, 7], [8, 9, 0]]),
    target_in=np.array([[1, 5], [1, 6]]),
    target_out=np.array([[5, 2], [6, 2]]),
    weights=np.ones([2, 2], np.float32),
)


@pytest.fixture(autouse=True)
def _cpu_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any machine is taken to have instructions for bfloat16."""
    monkeypatch.setattr(precision, "CPU_INFO", Path("no such file"))


@pytest.mark.parametrize(("gain", "expected"), [(1.9, "bfloat16"), (1.0, "float32"), (0.1, "float32")])
def test_auto_chooses_the_faster_precision(
    gain: float, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], work_dir: Path
) -> None:
    monkeypatch.setattr(precision, "measured_gain", lambda *_: gain)
    assert chosen_precision(SETTINGS, 20, "/CPU:0") == expected
    assert f"Precision: {expected}" in capsys.readouterr().out


def test_verdict_is_kept_for_the_machine_and_the_sizes(monkeypatch: pytest.MonkeyPatch, work_dir: Path) -> None:
    """Measurements on both sides of the threshold: other attempts keep the first, other conditions measure again."""
    gains = iter([1.21, 1.19, 1.9, 1.1, 1.0, 1.8])
    monkeypatch.setattr(precision, "measured_gain", lambda *_: next(gains))
    other_attempt = replace(SETTINGS, attempt="y", data=("other.tsv",), seed=7)
    assert [chosen_precision(s, 20, "/CPU:0") for s in (SETTINGS, other_attempt)] == ["bfloat16"] * 2
    assert chosen_precision(SETTINGS, 30, "/CPU:0") == "float32"  # another vocabulary
    assert chosen_precision(replace(SETTINGS, batch_size=32), 20, "/CPU:0") == "bfloat16"
    assert chosen_precision(SETTINGS, 20, "/CPU:0", towers=3) == "float32"
    with monkeypatch.context() as patched:
        patched.setattr(precision, "cpu_name", lambda: "another machine")
        assert chosen_precision(SETTINGS, 20, "/CPU:0") == "float32"
    (damaged, *_) = sorted(Path("data/cache").glob("precision-*.json"), key=lambda path: path.stat().st_mtime_ns)
    damaged.write_text("{")
    assert chosen_precision(SETTINGS, 20, "/CPU:0") == "bfloat16"
    assert chosen_precision(SETTINGS, 20, "/CPU:0") == "bfloat16"


def test_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, work_dir: Path) -> None:
    gains = iter([1.9, 1.0])
    monkeypatch.setattr(precision, "measured_gain", lambda *_: next(gains))
    Path("file").touch()
    settings = replace(SETTINGS, cache="file/cache")
    assert [chosen_precision(settings, 20, "/CPU:0") for _ in range(2)] == ["bfloat16", "float32"]


def test_gpu_computes_in_float32_without_a_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], work_dir: Path
) -> None:
    monkeypatch.setattr(precision, "measured_gain", None)
    assert chosen_precision(SETTINGS, 20, "/GPU:1") == "float32"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("model name : EPYC\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("model name : Xeon\nflags\t\t: fpu avx512f amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\nmodel name : bf16\n", True),
        ("model name : bf16\nflags\t\t: fpu avx2\n", False),
        ("model name : EPYC\n", True),
        (None, True),
    ],
)
def test_cpu_is_measured_unless_it_has_no_instructions(
    text: str | None, measured: bool, monkeypatch: pytest.MonkeyPatch, work_dir: Path
) -> None:
    """A system that does not list its instructions may have them."""
    if text is not None:
        Path("cpuinfo").write_text(text)
    monkeypatch.setattr(precision, "CPU_INFO", Path("cpuinfo"))
    monkeypatch.setattr(precision, "measured_gain", lambda *_: 9.0)
    assert chosen_precision(SETTINGS, 20, "/CPU:0") == ("bfloat16" if measured else "float32")


def test_products_are_those_of_a_towers_share() -> None:
    """8 tokens a pair; units of one direction; the columns of a sampled softmax."""
    assert products(SETTINGS, 20, 1) == [[512, 12, 20], [512, 8, 32]]
    assert products(SETTINGS, 20, 4) == [[128, 12, 20], [128, 8, 32]]
    assert products(replace(SETTINGS, batch_tokens=10, bidirectional=False), 20, 4) == [[3, 12, 20], [3, 16, 64]]
    assert products(replace(SETTINGS, sampled_softmax=7), 20, 1)[0] == [512, 12, 7]


@pytest.mark.parametrize(("float32_s", "bfloat16_s"), [(4.0, 1.0), (0.01, 0.02)])
def test_gain_is_the_median_ratio_of_times(
    float32_s: float, bfloat16_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that only products advance. The first call of each precision also compiles its kernels.

    Two of the seven rounds of each precision that are measured at least are ten times slower.
    """
    seconds = {"float32": float32_s, "bfloat16": bfloat16_s}
    now = [0.0]
    calls = {"float32": 0, "bfloat16": 0}
    slow = {"float32": (2, 4), "bfloat16": (3, 5)}

    def multiplied(factors: object, name: str) -> list[tf.Tensor]:
        now[0] += 100 if calls[name] == 0 else seconds[name] * (10 if calls[name] in slow[name] else 1)
        calls[name] += 1
        return []

    monkeypatch.setattr(precision, "_multiplied", multiplied)
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measured_gain(SIZES, "/CPU:0") == pytest.approx(float32_s / bfloat16_s)


def test_requested_precision_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "measured_gain", None)
    settings = replace(SETTINGS, precision="float16")
    assert chosen_precision(settings, 20, "/CPU:0") == "float16"


def test_resumed_attempt_keeps_its_precision(monkeypatch: pytest.MonkeyPatch, work_dir: Path) -> None:
    monkeypatch.setattr(precision, "measured_gain", None)
    SETTINGS.run.directory.mkdir(parents=True)
    for name in ("last", "config.json"):
        write_json(SETTINGS.run.directory / name, {"precision": "bfloat16"})
    assert chosen_precision(SETTINGS, 20, "/CPU:0") == "bfloat16"


def gradients_at(settings: Settings = SETTINGS, precision: str = "float32", batch: Batch = BATCH) -> list[tf.Tensor]:
    model = built_model(settings.model, 10, settings.learning.seed, precision)
    return dense_gradients(model, batch)[1]


def largest_difference(one: list[tf.Tensor], other: list[tf.Tensor]) -> float:
    """The largest difference of a gradient, relative to its norm."""
    pairs = zip(one, other, strict=True)
    return max(float(tf.norm(a - b) / tf.maximum(tf.norm(a), 1e-3)) for a, b in pairs)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_precisions_have_similar_gradients(cell: str) -> None:
    settings = replace(SETTINGS, cell=cell)
    exact = gradients_at(settings=settings)
    assert largest_difference(exact, gradients_at(settings=settings, precision="bfloat16")) < 0.05
    assert largest_difference(exact, gradients_at(settings=settings, precision="float16")) < 0.01


def test_plain_model_has_the_same_gradients() -> None:
    plain = replace(SETTINGS, plain_layers=True)
    assert largest_difference(gradients_at(), gradients_at(settings=plain)) < 1e-5


def test_loss_scale_keeps_gradients_within_float16() -> None:
    """The weights of targets are so large that the gradients of the loss sum exceed float16. The loss is unscaled."""
    batch, scale = BATCH._replace(weights=1e6 * BATCH.weights), 2.0**-8
    models = [built_model(SETTINGS.model, 10, 1, precision) for precision in ("float32", "float16")]
    exact_sums, exact = dense_gradients(models[0], batch)
    function = gradient_function(models[1], single_groups(models[1]), "/CPU:0")
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


def test_allocator_settings_of_the_user_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "1")
            assert not keep_freed_memory()
