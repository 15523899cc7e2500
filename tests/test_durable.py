"""Files that are replaced as a whole."""

import errno
import os
import stat
from pathlib import Path

import pytest

from chatbot import durable
from chatbot.durable import read_json, remove_unfinished, replacing, unused_name, write_file, write_json


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the process is killed, the old file or the new one is complete."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"old")
    other.hardlink_to(file)
    synced: list[tuple[str, int, bytes]] = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        synced.append((kind, status.st_ino if kind == "folder" else status.st_size, file.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(file, b"whole")
    assert synced == [("file", 5, b"old"), ("folder", tmp_path.stat().st_ino, b"whole")]
    assert other.read_bytes() == b"old"  # it was replaced, not written into


@pytest.mark.parametrize(
    ("of_folder", "number", "fails"),
    [(True, errno.EINVAL, False), (True, errno.EIO, True), (False, errno.EINVAL, True), (False, errno.EIO, True)],
)
def test_only_folders_may_lack_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_folder: bool, number: int, fails: bool
) -> None:
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == of_folder:
            raise OSError(number, "cannot be synced")

    monkeypatch.setattr(os, "fsync", fsync)
    if fails:
        with pytest.raises(OSError, match="cannot be synced"):
            write_file(tmp_path / "file", b"new")
    else:
        write_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == (["file"] if of_folder else [])


def test_json_is_written_as_text_and_read_with_care(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"问": [1, "甲"]})
    assert file.read_text(encoding="utf-8") == '{\n "问": [\n  1,\n  "甲"\n ]\n}\n'
    assert read_json(file) == {"问": [1, "甲"]}
    for content, message in ((b"{", "Expecting"), (b"\xff", "decode"), (b"[" * 100_000, "nested too deeply")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_json(file)
    monkeypatch.setattr(durable, "MAX_BYTES", 4)
    file.write_bytes(b"[12]")
    assert read_json(file) == [12]
    file.write_bytes(b"[12] ")
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_json(file)


def test_a_file_keeps_its_mode_and_no_other_file_is_touched(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "file.part"
    other.write_bytes(b"of the user")
    for mode in (0o600, 0o640, 0o400):
        file.write_bytes(b"old")
        file.chmod(mode)
        with replacing(file) as part:
            assert stat.S_IMODE(part.stat().st_mode) == 0o600  # nobody else may read it before
            part.write_bytes(b"new")
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
