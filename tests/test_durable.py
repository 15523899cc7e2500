"""Files that are replaced as a whole."""

import os
import stat
from pathlib import Path

import pytest

from chatbot.durable import remove_unfinished, replacing, unused_name, write_file


def test_a_file_keeps_its_mode_and_no_other_file_is_touched(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "file.part"
    other.write_bytes(b"of the user")
    for mode in (0o600, 0o640, 0o400):
        file.write_bytes(b"old")
        file.chmod(mode)
        write_file(file, b"new")
        assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", mode)
        file.unlink()
    write_file(file, b"new")
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)  # that of a new file
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file.part"]
    assert other.read_bytes() == b"of the user"


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("file", "file.part", ".notes.part")]
    for path in (*others, unused_name(tmp_path / "file")):
        path.touch()
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_file_that_nobody_else_may_read_is_written_as_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o600)
    with replacing(file) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        assert file.read_bytes() == b""
        part.write_bytes(b"new")
    assert file.read_bytes() == b"new"


def test_a_symbolic_link_and_the_longest_name_stay(tmp_path: Path) -> None:
    file, link = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX")), tmp_path / "link"
    link.symlink_to(file.name)
    write_file(link, b"new")
    assert (file.read_bytes(), link.is_symlink()) == (b"new", True)


def test_after_a_failure_the_old_file_is_there_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def fail() -> None:
        with replacing(file) as part:
            part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"old"
