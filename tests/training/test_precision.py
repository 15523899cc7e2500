"""Precision: measured before it is chosen, kept by an attempt; float16 gradients stay within range."""

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import Batch
from chatbot.durable import write_json
from chatbot.flags import compose, replace
from chatbot.memory import keep_freed_memory
from chatbot.model.new_model import built_model
from chatbot.training import precision
from chatbot.training.precision import chosen_precision, measured_gain, products
from tests.commands import ENVIRONMENT, ROOT
from tests.training.dense_gradients import dense_gradients

SETTINGS = compose(Settings, rnn_size=16, embedding_size=12, keep_prob=1.0, attempt="x")
SIZES = [[512, 12, 20], [512, 8, 32]]
BATCH = Batch(
    source=np.array([[5, 6, 7], [8, 9, 0]]),
    target_in=np.array([[1, 5], [1, 6]]),
    target_out=np.array([[5, 2], [6, 2]]),
    weights=np.ones([2, 2], np.float32),
)


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


class Gpus:
    """Stub of tf.config: GPUs of these compute capabilities."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
        self.tf32 = True
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(capabilities))
        monkeypatch.setattr(
            tf.config.experimental,
            "get_device_details",
            lambda capability: {"device_name": f"GPU of {capability}", "compute_capability": capability},
        )
        monkeypatch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: self.tf32)


@pytest.mark.parametrize(
    ("capability", "enabled", "gain", "line"),
    [
        ((8, 0), True, 1.9, "Precision: float16; on this device, float16 products of this model's sizes take 53% of"),
        ((8, 0), True, 1.0, "Precision: float32 (TF32); on this device, float16 products"),
        ((8, 6), False, 1.0, "Precision: float32; on this device, float16 products"),
        ((7, 5), True, 1.0, "Precision: float32; on this device, float16 products"),
    ],
)
def test_gpu_chooses_between_float32_and_float16(
    capability: tuple[int, int],
    enabled: bool,
    gain: float,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    work_dir: Path,
) -> None:
    """The second GPU. The stored measurement is that of its own name and kind of float32."""
    gpus = Gpus(monkeypatch, (5, 0), capability)
    gpus.tf32 = enabled
    measured: list[str] = []

    def measure(name: str, *_: object) -> float:
        measured.append(name)
        return gain

    monkeypatch.setattr(precision, "measured_gain", measure)
    expected = "float16" if gain > 1.2 else "float32"
    assert [chosen_precision(SETTINGS, 20, "/GPU:1") for _ in range(2)] == [expected] * 2
    assert line in capsys.readouterr().out
    assert measured == ["float16"]
    gpus.tf32 = not enabled
    chosen_precision(SETTINGS, 20, "/GPU:1")
    assert measured == ["float16"] * (2 if capability >= (8, 0) else 1)


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

    def computation(name: str, *_: object) -> Callable[[], None]:
        def compute() -> None:
            now[0] += 100 if calls[name] == 0 else seconds[name] * (10 if calls[name] in slow[name] else 1)
            calls[name] += 1

        return compute

    monkeypatch.setattr(precision, "_computation", computation)
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert measured_gain("bfloat16", SIZES, "/CPU:0") == pytest.approx(float32_s / bfloat16_s)


def test_all_products_of_a_round_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several times, although TensorFlow computes equal operations without side effects once where it can."""
    computed: list[int] = []

    def recorded(a: tf.Tensor, b: tf.Tensor, _: str) -> tf.Tensor:
        def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            computed.append(b.shape[1])
            return a @ b

        return tf.ensure_shape(tf.numpy_function(product, [a, b], tf.float32, stateful=False), [None, None])

    monkeypatch.setattr(precision, "matmul", recorded)
    factors = [(tf.ones([m, k]), tf.ones([k, n])) for m, k, n in SIZES]
    precision._computation("bfloat16", factors, 3)()
    assert sorted(computed) == [20] * 3 + [32] * 3


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
    plain = replace(SETTINGS, fast=("none",))
    assert largest_difference(gradients_at(), gradients_at(settings=plain)) < 1e-5


def test_gradients_beyond_float16_are_computed_again_scaled_down() -> None:
    """The weights of targets are so large that the gradients of the loss sum exceed float16."""
    batch = BATCH._replace(weights=1e6 * BATCH.weights)
    gradients, exact = (gradients_at(precision=precision, batch=batch) for precision in ("float16", "float32"))
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert largest_difference(exact, gradients) < 0.01
    largest = max(float(tf.reduce_max(tf.abs(gradient))) for gradient in exact)
    assert largest > float(np.finfo(np.float16).max)


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
