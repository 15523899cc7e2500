"""Files of words that the user writes, one a line: dictionaries and block lists."""

import codecs
from pathlib import Path

from chatbot.corpus.reading.files.charset import detect_encoding
from chatbot.corpus.reading.files.lines import UNDECODABLE
from chatbot.errors import UserError


def read_word_list(path: str, kind: str) -> tuple[str, str]:
    """Return (the text of the file, the displayed name of its encoding), which is detected as that of data.

    kind: for messages, such as "block list". Raises UserError when the file cannot be read or decoded.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {kind} cannot be read ({error.strerror})") from None
    codec, name = detect_encoding(content)
    text = codecs.decode(content, codec, "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if UNDECODABLE in line:
            raise UserError(
                f"{path}: {kind} read as {name}, but line {number} is not; save it as UTF-8, one word a line"
            )
    return text, name
