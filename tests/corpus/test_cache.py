"""Folders that are computed once: complete or absent, verified before use, written by one process at a time."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.corpus import cache
from chatbot.corpus.cache import MANIFEST, content_key, is_complete, key_of, make_once
from tests.commands import ENVIRONMENT


def make(folder: Path, content: bytes = b"abc") -> bool:
    """Make a folder of one file. Returns False if it existed."""
    with make_once(folder) as part:
        if part:
            (part / "file").write_bytes(content)
    return part is not None


def test_folder_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache/name"
    assert [make(folder) for _ in range(3)] == [True, False, False]
    assert (folder / "file").read_bytes() == b"abc"
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("damage", ["change", "cut", "remove", "manifest", "no manifest"])
def test_damaged_folder_is_rebuilt(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "name"
    make(folder)
    file, manifest = folder / "file", folder / MANIFEST
    damages: dict[str, Callable[[], object]] = {
        "change": lambda: file.write_bytes(b"abd"),
        "cut": lambda: file.write_bytes(b"ab"),
        "remove": file.unlink,
        "manifest": lambda: manifest.write_text("[]"),
        "no manifest": manifest.unlink,
    }
    damages[damage]()
    assert not is_complete(folder)
    assert make(folder)
    assert is_complete(folder)
    assert file.read_bytes() == b"abc"
    assert "damaged; made again" in capsys.readouterr().out


def make_and_fail(folder: Path) -> None:
    """Raise an exception after a file was written."""
    with make_once(folder) as part:
        assert part is not None
        (part / "half").write_bytes(b"a" * 1000)
        raise ZeroDivisionError


def test_error_removes_partial_folder_and_keeps_existing_one(tmp_path: Path) -> None:
    folder = tmp_path / "name"
    make(folder)
    (folder / "file").write_bytes(b"abd")
    with pytest.raises(ZeroDivisionError):
        make_and_fail(folder)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["name"]
    assert (folder / "file").read_bytes() == b"abd"


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from chatbot.corpus.cache import make_once
from chatbot.errors import exit_code_of

def main():
    with make_once(Path("cache/name")) as part:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write raises an error, as with a full disk
        (part / "file").write_bytes(b"a" * 100_000)

sys.exit(exit_code_of(main))
"""


def test_full_disk_is_a_one_line_error_and_removes_partial_folder(work_dir: Path) -> None:
    make(Path("cache/old"))
    completed = subprocess.run(
        [sys.executable, "-c", FULL_DISK], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1
    assert "encoded pairs cannot be written" in completed.stderr
    assert "--cache" in completed.stderr
    assert [path.name for path in Path("cache").iterdir() if path.is_dir()] == ["old"]
    assert not make(Path("cache/old"))


def test_unusable_cache_path_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"{tmp_path / 'file'}"):
        make(tmp_path / "file/name")


def test_complete_folder_needs_no_write_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "name")
    monkeypatch.setattr("filelock.FileLock.acquire", None)  # root may write anywhere
    assert not make(tmp_path / "name")


INTERRUPTED = """
import sys, time
from pathlib import Path
from chatbot.corpus.cache import make_once
from chatbot.errors import exit_code_of

def main():
    with make_once(Path("cache/name")) as part:
        (part / "file").write_text("half")
        print("writing", flush=True)
        time.sleep(60)

sys.exit(exit_code_of(main))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_removes_partial_folder(work_dir: Path, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(number)
    assert process.wait(30) == code
    process.stdout.close()
    assert [path.name for path in Path("cache").iterdir()] == ["name.lock"]


def _make_slowly(folder: Path) -> None:
    with make_once(folder) as part:
        if part:
            with (folder.parent / "calls").open("a") as file:
                file.write("x")
            time.sleep(0.5)
            (part / "file").write_text("abc")


def test_one_process_makes_the_folder_while_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_make_slowly, args=(tmp_path / "name",)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "calls").read_text() == "x"


def test_waiting_for_another_process_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "name"
    with make_once(folder) as part:
        assert part is not None
        waiting = multiprocessing.get_context("spawn").Process(target=_make_slowly, args=(folder,))
        waiting.start()
        printed, deadline = "", time.monotonic() + 30
        while "\n" not in printed and time.monotonic() < deadline:
            time.sleep(0.05)
            printed += capfd.readouterr().out
        (part / "file").write_text("abc")
    waiting.join(60)
    assert printed == f"Waiting for another process that is writing {folder} ...\n"
    assert not (tmp_path / "calls").exists()


def test_leftovers_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    killed_name, running_name, new = (f"encoded-{key_of(name=name)}" for name in ("killed", "running", "new"))
    started = []
    for name in (killed_name, running_name):
        command = [sys.executable, "-c", INTERRUPTED.replace("cache/name", str(tmp_path / name))]
        started.append(subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE))
    (tmp_path / "of-the-user.part-1").mkdir()
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.stdout.close()
    killed, running = started
    killed.kill()
    killed.wait(30)
    make(tmp_path / new)
    left = {path.name.partition(".part-")[0] for path in tmp_path.iterdir() if path.is_dir()}
    running.kill()
    running.wait(30)
    assert left == {"of-the-user", running_name, new}
    make(tmp_path / running_name)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"of-the-user.part-1", running_name, new}


def long_ago(path: Path, days: float = 91) -> None:
    """Set the time of its last change."""
    os.utime(path, (time.time() - days * 86_400,) * 2)


def entries(folder: Path, days: dict[str, float]) -> list[Path]:
    """Folders of a cache that were last used so many days ago."""
    paths = []
    for name, age in days.items():
        paths.append(folder / f"encoded-{key_of(name=name)}")
        make(paths[-1], b"a" * 1000)
        long_ago(paths[-1] / MANIFEST, age)
    return paths


def test_folders_that_were_not_used_for_long_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, recent, used = entries(tmp_path, {"old": 91, "recent": 89, "used": 91})
    (tmp_path / "of-the-user").mkdir()
    assert not make(used)
    entries(tmp_path, {"new": 0})
    assert [path.exists() for path in (old, recent, used, tmp_path / "of-the-user")] == [False, True, True, True]
    assert capsys.readouterr().out == f"{old}: removed, not used for 91 days\n"


def test_least_recently_used_folders_beyond_the_size_are_removed_but_none_used_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = entries(tmp_path, {"a": 4, "b": 3, "c": 2, "d": 0.9})
    cache.note_use(paths[0])
    monkeypatch.setattr(cache, "MOST_BYTES", 1)
    (new,) = entries(tmp_path, {"new": 2})
    assert [path.exists() for path in (*paths, new)] == [True, False, False, True, True]
    monkeypatch.setattr(cache, "MOST_BYTES", 4500)
    long_ago(paths[0] / MANIFEST, 3)
    entries(tmp_path, {"newest": 0})
    assert [path.exists() for path in (*paths, new)] == [False, False, False, True, True]


def test_a_file_that_disappears_is_no_full_disk(tmp_path: Path) -> None:
    def read_a_missing_file() -> None:
        with make_once(tmp_path / "cache" / "name"):
            (tmp_path / "pairs.tsv").stat()

    with pytest.raises(FileNotFoundError, match=r"pairs\.tsv"):
        read_a_missing_file()


def test_keys_depend_on_content_only(tmp_path: Path) -> None:
    for name, content in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (content_key(tmp_path / name) for name in "abc")
    assert a == b != c
    assert key_of(x=1, y=[2]) == key_of(y=[2], x=1) != key_of(x=1, y=[3])
