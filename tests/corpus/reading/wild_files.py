"""The files of `wild`: each folder or file as its family describes it.

A family is a file of YAML; each of its cases has the name of a file, an input and an expectation (see `test_wild`). The
input is one of:

    text       what is in the file; "encoding" is Python's name of its charset, UTF-8 if it is missing, and
               "line_ends: crlf" stands for \\r\\n at the end of every line
    bytes      the same where it has no charset: <FF> is the byte 255
    members    of an archive: names and texts, or names and inputs; of a tar, "format" and the charset of "names"
    files      of a folder, likewise
    (none)     the file or the folder of that name in `wild/binary`

The end of a name says how a file is packed and compressed: .zip, .tar, .gz, .bz2, .xz, .zst.
"""

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.corpus.reading.sample_files import COMPRESSORS, tarred, zipped

FOLDER = Path(__file__).parent / "wild"
FAMILIES = sorted(FOLDER.glob("*.yaml"))
BINARY = FOLDER / "binary"
INPUTS = {"text", "bytes", "members", "files"}


@functools.cache
def cases() -> dict[str, dict[str, Any]]:
    """The case of each name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be installed without its C extension
    families = [yaml.load_all(path.read_bytes(), Loader=loader) for path in FAMILIES]
    return {name: case for family in families for part in family for name, case in part.items()}


def write(name: str, folder: Path) -> Path:
    """Write the file or the folder of a case."""
    case = cases()[name]
    path = folder / name
    if "files" in case:
        for inner, described in case["files"].items():
            (path / inner).parent.mkdir(parents=True, exist_ok=True)
            (path / inner).write_bytes(content(inner, described))
    elif (BINARY / name).is_dir():
        shutil.copytree(BINARY / name, path)
    else:
        path.write_bytes(content(name, case) if case.keys() & INPUTS else (BINARY / name).read_bytes())
    return path


def content(name: str, described: str | dict[str, Any]) -> bytes:
    """The bytes of a file with this name."""
    if isinstance(described, str):
        described = {"text": described}
    stem, _, suffix = name.rpartition(".")
    if suffix in COMPRESSORS and suffix != "zip":
        return COMPRESSORS[suffix](content(stem, described))
    if "members" in described:
        members = {member: content(member, inner) for member, inner in described["members"].items()}
        if suffix == "zip":
            return zipped(members)
        return tarred(members, form=described.get("format", "pax"), names=described.get("names", "utf-8"))
    if "bytes" in described:
        marked = described["bytes"].encode()
        return re.sub(rb"<([0-9A-F]{2})>", lambda found: bytes.fromhex(found[1].decode()), marked)
    text = described["text"]
    if described.get("line_ends") == "crlf":
        text = text.replace("\n", "\r\n")
    encoded: bytes = text.encode(described.get("encoding", "utf-8"))
    return encoded
