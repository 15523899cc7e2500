"""Folders that are computed once: complete or absent, verified before use, written by one process at a time."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chatbot.corpus import cache
from chatbot.corpus.cache import CACHE_TAG, DAY, MANIFEST, is_complete, key_of, make_once
from chatbot.errors import UserError
from tests.commands import ENVIRONMENT

CONTENT = b"abc" * 10_000
DAMAGES: dict[str, Callable[[Path], object]] = {
    "change": lambda folder: (folder / "file").write_bytes(CONTENT[:-1] + b"d"),
    "cut": lambda folder: (folder / "file").write_bytes(CONTENT[:-1]),
    "manifest": lambda folder: (folder / MANIFEST).write_text("[]"),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(missing_ok=True),
}


def make(folder: Path) -> bool:
    """Make a folder of one file. Returns False if it existed."""
    with make_once(folder) as part:
        if part:
            assert part.name.startswith(f"{folder.name}.part-")
            assert (part / CACHE_TAG).exists()  # so that nobody reads its files as pairs
            (part / "file").write_bytes(CONTENT)
    return part is not None


def make_and_fail(folder: Path, error: Exception) -> None:
    """Raise an error after a file was written."""
    with make_once(folder) as part:
        assert part is not None
        (part / "half").write_bytes(b"a" * 1000)
        raise error


MOST = 3  # folders
NAMES = st.sampled_from([f"encoded-{key_of(name=name)}" for name in range(6)])


class CacheMachine(RuleBasedStateMachine):
    """Folders that are made, used, damaged and forgotten, beside a model of which there are and their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.days: dict[str, float] = {}  # since the last use, in the order of the last use
        self.moment = 0  # of the last use, in nanoseconds
        self.broken: set[str] = set()
        self.without_date: set[str] = set()  # which are not found to be old
        self.left: set[str] = set()  # temporary folders of processes that were killed
        self.running: dict[str, filelock.BaseFileLock] = {}  # other processes that make a folder
        (self.folder / "of-the-user").mkdir()
        (self.folder / "of-the-user.part-1").mkdir()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cache, "MAX_BYTES", MOST * len(CONTENT) + len(CONTENT) // 2)

    def teardown(self) -> None:
        for lock in self.running.values():
            lock.release()
        self.patch.undo()
        self.temporary.cleanup()

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        if name in self.running:
            return
        is_there = name in self.days and name not in self.broken
        assert make(self.folder / name) == (not is_there)
        assert (self.folder / name / "file").read_bytes() == CONTENT
        manifest = self.folder / name / MANIFEST
        assert time.time() - manifest.stat().st_mtime < DAY / 2
        # Clocks of files tick every few milliseconds; two uses within one would have no order.
        self.moment = max(time.time_ns(), self.moment + 10**6)
        os.utime(manifest, ns=(self.moment, self.moment))
        self.days.pop(name, None)
        self.days[name] = 0
        self.broken.discard(name)
        self.without_date.discard(name)
        if not is_there:
            self.left.clear()
            self.remove_unused()

    def remove_unused(self) -> None:
        """What is old goes, and then the least recently used ones beyond the size, unless they were used today."""
        dated = [name for name in self.days if name not in self.without_date]
        old = [name for name in dated if self.days[name] > 90]
        kept = [name for name in dated if name not in old]
        while len(kept) > MOST and self.days[kept[0]] > 1:
            old.append(kept.pop(0))
        for name in old:
            del self.days[name]
            self.broken.discard(name)

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        if name in self.running or (name in self.days and name not in self.broken):
            return
        with pytest.raises(ZeroDivisionError):
            make_and_fail(self.folder / name, ZeroDivisionError())
        self.left.clear()

    @rule(name=NAMES, damage=st.sampled_from([*DAMAGES]))
    def damage(self, name: str, damage: str) -> None:
        manifest = self.folder / name / MANIFEST
        if name in self.days and name not in self.without_date:
            status = manifest.stat()
            DAMAGES[damage](self.folder / name)
            self.broken.add(name)
            if damage == "no manifest":
                self.without_date.add(name)
            else:
                os.utime(manifest, ns=(status.st_atime_ns, status.st_mtime_ns))

    @rule(days=st.sampled_from([0.6, 2.01, 50.3]))
    def wait(self, days: float) -> None:
        for name in self.days:
            self.days[name] += days
            if name not in self.without_date:
                manifest = self.folder / name / MANIFEST
                os.utime(manifest, ns=(manifest.stat().st_mtime_ns - int(days * DAY * 10**9),) * 2)

    @precondition(lambda self: not self.running)
    @rule(name=NAMES)
    def begin(self, name: str) -> None:
        """Another process begins to make a folder."""
        self.running[name] = filelock.FileLock(self.folder / f".{name}.lock")
        self.running[name].acquire()
        (self.folder / f"{name}.part-running").mkdir(exist_ok=True)

    @precondition(lambda self: self.running)
    @rule()
    def kill(self) -> None:
        name, lock = self.running.popitem()
        lock.release()
        self.left.add(f"{name}.part-running")

    @invariant()
    def folders_are_those_of_the_model(self) -> None:
        others = {"of-the-user", "of-the-user.part-1", *self.left, *(f"{name}.part-running" for name in self.running)}
        assert {path.name for path in self.folder.iterdir() if path.is_dir()} == self.days.keys() | others
        for name in self.days:
            assert is_complete(self.folder / name) == (name not in self.broken)
            assert (self.folder / name).stat().st_mode & 0o777 == 0o755


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_what_is_made_again_or_removed_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is complete is used without a line, and without permission to write."""
    old, new = (tmp_path / f"encoded-{key_of(name=name)}" for name in ("old", "new"))
    make(old)
    DAMAGES["change"](old)
    make(old)
    os.utime(old / MANIFEST, (time.time() - 91 * DAY,) * 2)
    make(new)
    monkeypatch.setattr("filelock.FileLock.acquire", None)  # root may write anywhere
    assert not make(new)
    assert capsys.readouterr().out == f"{old}: damaged; created again\n{old}: removed, not used for 91 days\n"


def test_full_disk_is_a_one_line_error_and_removes_partial_folder(tmp_path: Path) -> None:
    """An error about a file is none of the disk."""
    make(tmp_path / "cache/old")
    message = "cache: encoded pairs cannot be written .*No space left on device.*--cache"
    with pytest.raises(UserError, match=message) as error:
        make_and_fail(tmp_path / "cache/name", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"pairs\.tsv"):
        make_and_fail(tmp_path / "cache/name", FileNotFoundError(errno.ENOENT, "No such file", "pairs.tsv"))
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == ["old"]
    assert not make(tmp_path / "cache/old")


INTERRUPTED = """
import sys, time
from pathlib import Path
from chatbot.corpus.cache import make_once
from chatbot.errors import exit_code_of

def main():
    with make_once(Path("cache/name")) as part:
        (part / "file").write_text("half")
        print("writing", flush=True)
        time.sleep(600)

sys.exit(exit_code_of(main))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_removes_partial_folder(work_dir: Path, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(number)
    assert process.wait(240) == code
    process.stdout.close()
    assert [path.name for path in Path("cache").iterdir()] == [".name.lock"]


def test_folder_is_made_in_a_thread(tmp_path: Path) -> None:
    """Which cannot handle signals."""
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(make, tmp_path / "name").result() for _ in range(2)] == [True, False]


def test_waiting_for_another_process_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And what that process has made is used."""
    folder = tmp_path / "name"
    with make_once(folder) as part:
        assert part is not None
        waiting = multiprocessing.get_context("spawn").Process(target=make, args=(folder,))
        waiting.start()
        printed, deadline = "", time.monotonic() + 240
        while "\n" not in printed and time.monotonic() < deadline:
            time.sleep(0.05)
            printed += capfd.readouterr().out
        (part / "file").write_text("abc")
    waiting.join(240)
    assert (waiting.exitcode, (folder / "file").read_text()) == (0, "abc")
    assert printed == f"Waiting for another process that is writing {folder} ...\n"
