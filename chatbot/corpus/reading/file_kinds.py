"""What the name or the first bytes of a file say: a part of a corpus, no data, no text."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

ZIP = (b"PK\3\4", b"PK\5\6")
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Office documents of before 2007
ZSTANDARD = b"\x28\xb5\x2f\xfd"
PARQUET, ARROW, ARROW_STREAM = b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff"

# The beginnings of files that are no text: archives, columnar files, documents, databases, pickles, pictures.
NO_TEXT = (
    *(*ZIP, b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", ZSTANDARD, b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
    *(PARQUET, ARROW, ARROW_STREAM, b"%PDF-", b"{\\rtf", OLE, b"SQLite format 3\0", b"\x89PNG", b"\xff\xd8\xff"),
    *(bytes((0x80, version)) for version in range(2, 6)),
)
CONVERT = "which is not read here; unpack it, or save it as text, CSV or JSON"
# A member of a zip file that is a document of Microsoft's, an e-book or a document of LibreOffice.
_DOCUMENTS = frozenset(("[Content_Types].xml", "META-INF/container.xml", "META-INF/manifest.xml"))


def is_document(names: Iterable[str]) -> bool:
    """Return whether a zip file that has these members is a document of an office program."""
    return not _DOCUMENTS.isdisjoint(names)


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
        parts = {part for word in words if (part := WORDS.get(word.casefold()) or CHINESE_WORDS.get(word))}
        if parts == {VALIDATION, TEST}:  # such as dev-test
            return TEST
        if len(parts) == 1:
            return parts.pop()
    return None


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder of this relative path is hidden, or written by macOS beside another."""
    return any(step.startswith(".") or step == "__MACOSX" for step in PurePosixPath(name).parts or (".",))


def is_no_data(name: str) -> bool:
    """Return whether the file's name says that it is documentation, a picture or a program."""
    return NO_DATA.fullmatch(PurePosixPath(name).name) is not None
