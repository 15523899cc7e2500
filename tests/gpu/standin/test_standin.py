"""The stand-in GPU itself: late results, memory, faults, counts, which memory of the host alone would not show."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu import standin
from tests.gpu.process import ROOT, on_standins
from tests.gpu.standin import behaviour

pytestmark = pytest.mark.gpu


def test_results_are_late_and_memory_is_freed_after_what_was_queued(tmp_path: Path) -> None:
    found = on_standins(behaviour.memory_over_time, tmp_path, delay=5000)
    assert np.isnan(found["early"]).any()
    assert set(found["late"]) == {2.0}
    assert 2.0 in found["unfreed"]
    assert np.isnan(found["freed"]).all()


def test_copies_are_counted(tmp_path: Path) -> None:
    found = on_standins(behaviour.copies, tmp_path)
    product = found["product"]
    assert (product.host_to_device, product.host_to_device_bytes) == (1, 4 * behaviour.SIZE**2)
    assert (product.device_to_host, product.device_to_host_bytes) == (1, 4 * behaviour.SIZE**2)
    assert product.kernels == 1
    # Ten sums on the device: a loop over floats reads each condition, one over int32 sends each number.
    assert found["float loop"].device_to_host >= 10
    assert found["int loop"].device_to_host == 1
    assert found["int loop"].host_to_device >= 10
    # The host computes it: the matrix crosses twice.
    scatter = found["scatter"]
    assert (scatter.device_to_host, scatter.host_to_device) == (3, 1)
    assert min(scatter.device_to_host_bytes, scatter.host_to_device_bytes) >= 4 * behaviour.SIZE**2


@pytest.mark.parametrize(
    "variables", [{"memory": 100}, {"faults": "memory bytes=100000000"}, {"faults": "memory number=30"}]
)
def test_memory_runs_out(tmp_path: Path, variables: dict[str, Any]) -> None:
    found = on_standins(behaviour.shortage, tmp_path, **variables)
    assert "OOM when allocating tensor with shape[1048576] and type float on" in found["message"]
    assert "device:GPU:0 by allocator GPU_0_bfc" in found["message"]
    assert found["after"]["current"] <= found["before"]["current"] + 1024
    assert found["after"]["peak"] > 20_000_000


def test_gpus_that_cuda_visible_devices_selects(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tests.gpu.standin.behaviour import devices; print(len(devices()) - 1)"]
    counts = {}
    for visible in ("0,1", "3", "2,9,1", "-1", "", "GPU-00000002-0000-0000-0000-000000000000"):
        environment = {**standin.environment(4), "CUDA_VISIBLE_DEVICES": visible}
        counts[visible] = int(subprocess.check_output(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL))
    assert list(counts.values()) == [2, 1, 1, 0, 0, 1]


def test_slow_gpu(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert on_standins(behaviour.many_products, tmp_path, 2, trace=trace, faults="slow gpu=1 factor=500", delay=0)
    times: dict[str, list[int]] = {"0": [], "1": []}
    for line in trace.read_text().splitlines():
        gpu, operation, begin, end = line.split()
        if operation == "MatMul":
            times[gpu].append(int(end) - int(begin))
    assert len(times["0"]) == len(times["1"]) == 5
    assert min(times["1"]) >= 10_000 > np.median(times["0"])


def test_lost_gpu_ends_the_process_as_a_real_one_does(tmp_path: Path) -> None:
    environment = standin.environment(2, faults="lost gpu=1 operation=MatMul number=3")
    completed = subprocess.run(
        [sys.executable, "-c", "from tests.gpu.standin.behaviour import many_products; print(many_products())"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert completed.returncode != 0
    assert "CUDA_ERROR_LAUNCH_FAILED" in completed.stderr or "Unexpected Event status" in completed.stderr


def test_silent_gpu(tmp_path: Path) -> None:
    environment = standin.environment(2, faults="silent gpu=1 operation=MatMul number=3", trace=tmp_path / "trace")
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.gpu.standin.behaviour import many_products; print(many_products())"],
        env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (tmp_path / "trace").exists():
            time.sleep(0.1)
        time.sleep(1)
        assert process.poll() is None
        process.kill()
    products = [line.split()[0] for line in (tmp_path / "trace").read_text().splitlines() if " MatMul " in line]
    assert (products.count("0"), products.count("1")) == (3, 2)


def test_compiler_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho no such header >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(standin, "CACHE", tmp_path / "cache")
    with pytest.raises(RuntimeError, match="no such header"):
        standin.build.__wrapped__()
    assert not [folder for folder in (tmp_path / "cache").iterdir() if folder.is_dir() and not folder.suffix]
