"""What the name or the first bytes of a file say: a part of a corpus, no data, or no text and what to do with it."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

ZIP = (b"PK\3\4", b"PK\5\6")
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office documents of before 2007
ZSTANDARD = b"\x28\xb5\x2f\xfd"
PARQUET, ARROW, ARROW_STREAM = b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff"

UNPACK = "which is not unpacked here; unpack it and give what it contains"
_PICTURE = "a picture; give a text file"
_SOUND = "a recording; give a text of what is said in it"
# (offset, the bytes there, what the file is and what to do)
KINDS: tuple[tuple[int, bytes, str], ...] = (
    *((0, magic, f"a zip file, {UNPACK}") for magic in ZIP),
    (0, b"\x1f\x8b", f"a gzip file, {UNPACK}"),
    (0, b"BZh", f"a bzip2 file, {UNPACK}"),
    (0, b"\xfd7zXZ\0", f"a xz file, {UNPACK}"),
    (0, ZSTANDARD, f"a Zstandard file, {UNPACK}"),
    (0, PARQUET, f"a Parquet file, {UNPACK}"),
    (0, ARROW, f"an Arrow file, {UNPACK}"),
    (0, ARROW_STREAM, f"an Arrow file, {UNPACK}"),
    (0, b"FEA1", "a Feather file of version 1; write it again with version 2"),
    (0, b"7z\xbc\xaf\x27\x1c", f"a 7z file, {UNPACK}"),
    (0, b"Rar!\x1a\x07", f"a rar file, {UNPACK}"),
    (0, b"\x04\x22\x4d\x18", f"an LZ4 file, {UNPACK}"),
    (0, b"\x1f\x9d", f"a file of compress, {UNPACK}"),
    (0, b"LZIP", f"an lzip file, {UNPACK}"),
    (0, b"%PDF-", "a PDF document; save its text"),
    (0, b"{\\rtf", "a document of a word processor; save it as plain text"),
    (0, OLE, "an Office document of before 2007; save its table as CSV (UTF-8), or its text"),
    (0, b"SQLite format 3\0", "an SQLite database; export the table as CSV"),
    (4, b"Standard Jet DB", "an Access database; export the table as CSV"),
    (4, b"Standard ACE DB", "an Access database; export the table as CSV"),
    *((0, b"\x80" + bytes([v]), "a pickle file, which may run any program; write it as JSON") for v in (2, 3, 4, 5)),
    (0, b"(lp0\n", "a pickle file, which may run any program; write it as JSON"),
    (0, b"(dp0\n", "a pickle file, which may run any program; write it as JSON"),
    (0, b"\x93NUMPY", "an array of NumPy; write the texts as JSON"),
    (0, b"\x89HDF\r\n", "an HDF5 file; write the texts as Parquet or JSON"),
    (0, b"Obj\x01", "an Avro file; write it as Parquet or JSON"),
    (0, b"\x89PNG", _PICTURE),
    (0, b"\xff\xd8\xff", _PICTURE),
    (0, b"GIF87a", _PICTURE),
    (0, b"GIF89a", _PICTURE),
    (8, b"WEBP", _PICTURE),
    (0, b"II*\0", _PICTURE),
    (0, b"MM\0*", _PICTURE),
    (8, b"WAVE", _SOUND),
    (0, b"ID3", _SOUND),
    (0, b"OggS", _SOUND),
    (0, b"fLaC", _SOUND),
    (4, b"ftyp", "a film or a recording; give a text of what is said in it"),
    (0, b"\x7fELF", "a program; give a text file"),
    (0, b"GGUF", "a model; give a text file"),
    (0, b"bplist00", "a property list of Apple; convert it to JSON with plutil"),
)
_PAGES = "save it as plain text"
# The beginnings of names in a zip file that is a document.
_DOCUMENTS = (
    ("word/", f"a Word document; {_PAGES}"),
    ("ppt/", f"a presentation; {_PAGES}"),
    ("xl/", "an Office document; save the table as CSV (UTF-8) and give that file"),
    ("META-INF/container.xml", f"an e-book; {_PAGES}"),
    ("META-INF/manifest.xml", "a document of LibreOffice; save a table as .xlsx or CSV, a text as plain text"),
)


def kind_of(head: bytes) -> str:
    """Return what a file is that begins with these bytes, and what to do; "" for a text."""
    for offset, magic, kind in KINDS:
        if head.startswith(magic, offset):
            return kind
    return ""


def kind_of_zip(names: Iterable[str]) -> str:
    """Return what a zip file is that has these members, and what to do; "" for an archive."""
    members = set(names)
    for start, kind in _DOCUMENTS:
        if any(member.startswith(start) for member in members):
            return kind if "[Content_Types].xml" in members or start.startswith("META") else ""
    if members and all(member.endswith(".npy") for member in members):
        return "arrays of NumPy; write the texts as JSON"
    if any(member.endswith("data.pkl") for member in members):
        return "a file of PyTorch, which may run any program; write the texts as JSON"
    return ""


TRAINING, VALIDATION, TEST = "training", "validation", "test"
WORDS = {
    **dict.fromkeys(("train", "training"), TRAINING),
    **dict.fromkeys(("valid", "validation", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval"), TEST),
}
CHINESE_WORDS = {
    **dict.fromkeys(("训练集", "訓練集"), TRAINING),
    **dict.fromkeys(("验证集", "驗證集", "开发集", "開發集"), VALIDATION),
    **dict.fromkeys(("测试集", "測試集"), TEST),
}
WORD = re.compile("|".join(["[A-Z]?[a-z]+", "[A-Z]+", *CHINESE_WORDS]))

MARKUP = ("md", "markdown", "org", "adoc", "rst")  # endings of names whose headings may be questions

# A folder with this file is a cache, of this program or of another one (https://bford.info/cachedir/).
CACHE_TAG = "CACHEDIR.TAG"

NO_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|citation|authors)(\W.*)?"
    r"|dataset_(infos?|dict)\.json|state\.json|cache-[0-9a-f]+\.arrow"  # of a saved folder of `datasets`
    r"|(users|channels|groups|dms|mpims|integration_logs|canvases)\.json"  # of an export of Slack
    r"|(movie_(titles|characters)_metadata|raw_script_urls)\.txt|chameleons\.pdf"  # beside Cornell's pairs
    r"|.*\.(md|rst|html?|pdf|docx?|pptx?|png|jpe?g|gif|svg|webp|bmp|mp[34]|wav|py|ipynb|sh|js|css)",
    re.IGNORECASE,
)


def part_of(name: str) -> str | None:
    """Return the part of a corpus that a file or its folders are named for, None if they are not.

    A part is a word of the name: LCCC-base_train.json, data/dev/a.csv, trainPairs.tsv, 测试集.txt, but not latest.tsv.
    The file's own name comes first, then its folders from the innermost.
    """
    for step in reversed(PurePosixPath(name).parts):
        words = WORD.findall(step)
        found = {part for word in words if (part := WORDS.get(word.casefold()) or CHINESE_WORDS.get(word))}
        if found == {VALIDATION, TEST}:  # such as dev-test
            return TEST
        if len(found) == 1:
            return found.pop()
    return None


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder of this relative path is hidden, or written by macOS beside another."""
    return any(step.startswith(".") or step == "__MACOSX" for step in PurePosixPath(name).parts or (".",))


def is_no_data(name: str) -> bool:
    """Return whether the file's name says that it is documentation, a picture or a program."""
    return NO_DATA.fullmatch(PurePosixPath(name).name) is not None
