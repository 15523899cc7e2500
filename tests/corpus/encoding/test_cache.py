"""Folders that are computed once: whole or not there, checked before use, made by one process at a time."""

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatbot.corpus.encoding.cache import MANIFEST, cached, content_key, key_of
from chatbot.errors import UserError
from tests.commands import ENVIRONMENT


def builder(calls: list[Path], content: bytes = b"abc") -> Callable[[Path], dict[str, Any]]:
    """Writes one file, and notes that it was asked to."""

    def build(folder: Path) -> dict[str, Any]:
        calls.append(folder)
        (folder / "file").write_bytes(content)
        return {"bytes": len(content)}

    return build


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    for _ in range(3):
        folder, said = cached(tmp_path / "cache", "name", builder(calls))
        assert (folder, said) == (tmp_path / "cache/name", {"bytes": 3})
    assert len(calls) == 1
    assert (folder / "file").read_bytes() == b"abc"


@pytest.mark.parametrize("harm", ["change", "cut", "remove", "manifest", "no manifest"])
def test_a_damaged_folder_is_built_anew(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Path] = []
    folder, _ = cached(tmp_path, "name", builder(calls))
    file, manifest = folder / "file", folder / MANIFEST
    harms: dict[str, Callable[[], object]] = {
        "change": lambda: file.write_bytes(b"abd"),
        "cut": lambda: file.write_bytes(b"ab"),
        "remove": file.unlink,
        "manifest": lambda: manifest.write_text("[]"),
        "no manifest": manifest.unlink,
    }
    harms[harm]()
    folder, said = cached(tmp_path, "name", builder(calls))
    assert said == {"bytes": 3}
    assert len(calls) == 2
    assert file.read_bytes() == b"abc"
    assert "damaged; made anew" in capsys.readouterr().out


def test_what_fails_leaves_nothing_behind_and_the_old_folder_as_it_was(tmp_path: Path) -> None:
    old, _ = cached(tmp_path, "old", builder([]))

    def failing(folder: Path) -> dict[str, Any]:
        (folder / "half").write_bytes(b"a" * 1000)
        raise UserError("no pairs")

    with pytest.raises(UserError, match="no pairs"):
        cached(tmp_path, "new", failing)
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"old"}
    assert (old / "file").read_bytes() == b"abc"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from chatbot.corpus.encoding.cache import cached
from chatbot.errors import exit_code_of

def build(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk does: an error from write, not a signal
    (folder / "file").write_bytes(b"a" * 100_000)
    return {}

sys.exit(exit_code_of(lambda: cached(Path("cache"), "name", build) and 0))
"""


def test_a_full_disk_is_one_line_and_nothing_half_written_stays(workplace: Path) -> None:
    old, _ = cached(Path("cache"), "old", builder([]))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "encoded pairs cannot be kept there" in done.stderr
    assert "--cache" in done.stderr
    assert {p.name for p in Path("cache").iterdir() if p.is_dir()} == {"old"}
    assert (old / "file").read_bytes() == b"abc"


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="encoded pairs cannot be kept there"):
        cached(tmp_path / "file", "name", builder([]))


def test_a_folder_that_is_there_needs_no_permission_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, "name", builder([]))
    monkeypatch.setattr("filelock.FileLock.acquire", None)  # who is root may write anywhere
    assert cached(tmp_path, "name", builder([]))[1] == {"bytes": 3}


INTERRUPTED = """
import sys, time
from pathlib import Path
from chatbot.corpus.encoding.cache import cached
from chatbot.errors import exit_code_of

def build(folder):
    (folder / "file").write_text("half")
    print("building", flush=True)
    time.sleep(60)

sys.exit(exit_code_of(lambda: cached(Path("cache"), "name", build) and 0))
"""


def test_ctrl_c_leaves_nothing_behind(workplace: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"building\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdout.close()
    assert [path.name for path in Path("cache").iterdir()] == ["name.lock"]


def _slow_build(folder: Path) -> dict[str, Any]:
    with (folder.parent / "calls").open("a") as file:
        file.write("x")
    time.sleep(0.5)
    (folder / "file").write_text("abc")
    return {}


def _cached_slowly(root: Path) -> None:
    cached(root, "name", _slow_build)


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_cached_slowly, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "calls").read_text() == "x"


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "name.part-x"
    left.mkdir()
    (left / "file").write_text("half")
    cached(tmp_path, "name", builder([]))
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"name"}


def test_keys_tell_contents_apart_and_not_names(tmp_path: Path) -> None:
    for name, content in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (content_key(tmp_path / name) for name in "abc")
    assert a == b != c
    assert key_of(x=1, y=[2]) == key_of(y=[2], x=1) != key_of(x=1, y=[3])
