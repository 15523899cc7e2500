"""The parts of a corpus as keys of one JSON object: {"train": [...], "valid": [...], "test": [...]}, as LCCC has it."""

import io
import re

from chatbot.corpus.reading.files.file_names import TRAINING, WORDS

SCALAR = rb'(?:"(?:[^"\\]|\\.)*"|[-+.\w]+)'
KEY = rb'"((?:[^"\\]|\\.)*)"\s*:\s*'
# The first key whose value is a list or an object, after others such as a version.
FIRST = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*\{\s*(?:" + KEY.replace(b"((", b"(?:(") + SCALAR + rb"\s*,\s*)*" + KEY + rb"[\[{]"
)
# A key after the end of a list or an object; within a text its quotes would be escaped.
NEXT = re.compile(rb"[\]}]\s*,\s*" + KEY + rb"[\[{]")
HEAD, BLOCK, OVERLAP = 4096, 2**20, 256


def part_keys(stream: io.BufferedReader) -> list[str]:
    """Return the keys of a JSON object that name parts of a corpus, [] if it begins with no such key.

    Reads the whole stream, though only if its first key names a part.
    """
    first = FIRST.match(stream.peek()[:HEAD])
    if first is None or _word(first[1]) is None:
        return []
    keys = [first[1].decode()]
    rest = b""
    while block := stream.read(BLOCK):
        text = rest + block
        if b'":' in text or b'" :' in text:  # in lists of lists, no key is left
            keys += [match[1].decode() for match in NEXT.finditer(text) if _word(match[1])]
        rest = text[-OVERLAP:]
    return list(dict.fromkeys(keys))


def part_of_object(value: object, part: str | None) -> object:
    """Return the lists and objects of one part. Keys that name no part belong to training."""
    if part is None or not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if isinstance(item, list | dict) and part_of_key(key) == part}


def part_of_key(key: object) -> str:
    """Return the part that a key of an object belongs to."""
    return WORDS.get(str(key).casefold(), TRAINING)


def _word(key: bytes) -> str | None:
    return WORDS.get(key.decode("ascii", "replace").casefold())
