"""The memory of a process: its peak, and the allocator, which is changed where that is possible and not the user's."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from chatbot import memory


def test_peak_is_known_where_the_kernel_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = memory.peak_memory()
    assert peak is None or 2**20 < peak < 2**50
    for content, expected in ((b"Name:\t\xff\nVmHWM:\t     1000 kB\n", 1_024_000), (b"Name:\ta\n", None)):
        monkeypatch.setattr(Path, "read_bytes", lambda path, content=content: content)
        assert memory.peak_memory() == expected
    monkeypatch.undo()
    monkeypatch.setattr(memory, "Path", lambda name: Path("/none"))
    assert memory.peak_memory() is None


@pytest.mark.parametrize(
    ("variable", "platform", "mallopt", "expected"),
    [
        ("LC_ALL", "linux", lambda *_: 1, True),
        ("LC_ALL", "linux", lambda *_: 0, False),
        ("LC_ALL", "linux", None, False),
        ("LC_ALL", "darwin", lambda *_: 1, False),
        ("MALLOC_ARENA_MAX", "linux", lambda *_: 1, False),
        ("GLIBC_TUNABLES", "linux", lambda *_: 1, False),
    ],
)
def test_allocator_of_glibc_is_left_as_the_user_sets_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, platform: str, mallopt: object, expected: bool
) -> None:
    monkeypatch.setattr(memory.os, "environ", {variable: "C"})
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(**({"mallopt": mallopt} if mallopt else {})))
    assert memory.keep_freed_memory() == expected
    assert {*memory.MALLOPT_VALUES} == {-1, -2, -3}  # in malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD


def test_every_gpu_is_shared_with_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    grown: list[tuple[str, bool]] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", {"GPU": ["gpu_0", "gpu_1"]}.get)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *given: grown.append(given))
    memory.let_gpu_memory_grow()
    assert grown == [("gpu_0", True), ("gpu_1", True)]
    monkeypatch.undo()
    memory.let_gpu_memory_grow()  # too late in this process, which is no error
