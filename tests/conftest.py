"""Fixtures for all tests, their order, and four logical CPU devices, created before TensorFlow is used."""

import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from chatbot.quiet import import_tensorflow
from chatbot.training.devices.towers import Tower
from tests.gpu.process import ALL, VISIBLE_GPUS

# Examples have no deadline, because the first one of a test can load a dictionary. pytest-timeout ends hanging tests.
slow = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("fast", slow, max_examples=25, stateful_step_count=30)
hypothesis.settings.register_profile("all", slow, max_examples=200, stateful_step_count=50)

# The graphs of many tests stay in memory as millions of objects. The default thresholds would collect them repeatedly.
gc.set_threshold(50_000, 20, 50)

os.environ.setdefault(VISIBLE_GPUS, os.environ.get("CUDA_VISIBLE_DEVICES", ALL))  # for tests/gpu
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # as chat.py on two cores; several tests run at once
import_tensorflow()
tf_config = importlib.import_module("tensorflow").config

CPUS = [f"/CPU:{i}" for i in range(4)]
tf_config.set_logical_device_configuration(
    tf_config.list_physical_devices("CPU")[0], [tf_config.LogicalDeviceConfiguration()] * len(CPUS)
)


ROOT = Path(__file__).parents[1]
# Commands in processes of their own find the package wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# Folders of the user of the checkout, who may have trained in it.
USER_FOLDERS = tuple(str(ROOT / name) for name in ("checkpoints", "data", "tensorboard", "exports"))

TRACKED_FILES = ("README.md", ".gitkeep")
AUDITED_EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


@pytest.fixture(scope="session", autouse=True)
def elsewhere() -> Iterator[None]:
    """Run tests in an empty directory by default, and keep them from accessing the folders of the user."""
    before, is_running = Path.cwd(), True

    def guard(event: str, arguments: tuple[object, ...]) -> None:
        path = arguments[0] if is_running and event in AUDITED_EVENTS and arguments else None
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.abspath(os.fsdecode(path))
            if place.startswith(USER_FOLDERS) and not place.endswith(TRACKED_FILES):
                raise RuntimeError(f"a test must not access {place}, which can be the user's")

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.addaudithook(guard)
        yield
        is_running = False  # the hook stays, and pytest removes folders by relative names
        os.chdir(before)


SLOW_FOLDERS = {"training", "export"}  # their tests take most of the time
MARKS = "slow", "gpu", "system"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all."""
    parser.addoption("--all", action="store_true", help="also run the tests marked slow, gpu or system, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    """Without --all, run fewer examples and disable TensorFlow's graph optimiser.

    The optimiser takes a fifth of the time of tests, because their graphs run only a few times. Commands in other
    processes use it.
    """
    hypothesis.settings.load_profile("all" if config.getoption("--all") else "fast")
    if not config.getoption("--all"):
        tf_config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests with one of MARKS, unless --all or -m is given or each argument names a test.

    Files with such tests run first, then SLOW_FOLDERS. A slow file at the end would keep one process busy alone.
    """
    long = [item for item in items if any(map(item.get_closest_marker, MARKS))]
    named = all("::" in argument for argument in config.args)
    if not (config.getoption("--all") or config.getoption("-m") or named):
        deselected = set(long)
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=long)
    files = {item.path for item in long}
    items.sort(key=lambda item: (item.path not in files, SLOW_FOLDERS.isdisjoint(item.path.parts)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail tests that are skipped because they "need" a program, if ALL_PROGRAMS says that all are installed."""
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and reason.startswith("Skipped: needs ") and os.environ.get("ALL_PROGRAMS"):
        report.outcome, report.longrepr = "failed", f"{reason}, which is not installed"
    return report


@pytest.fixture
def cpus() -> list[Tower]:
    """One tower for each logical device."""
    return [Tower(f"cpu_{i}", device, "CPU", None) for i, device in enumerate(CPUS)]


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, where checkpoints/ and tensorboard/ may be written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def chat_file() -> Path:
    """200 question-answer pairs of everyday Chinese, written for these tests."""
    return Path(__file__).parent / "data/chat.tsv"
