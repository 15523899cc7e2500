"""Text that a program saved after reading it in the wrong encoding: "æ\x99\x9a" or "鏅�" for 晚, "锟斤拷" for any."""

from chatbot.corpus.reading.files.frequent_characters import CHAT, CHINESE

COMPARED = 32 * 2**10  # characters
REPAIRED = 0.8  # of the lines beyond ASCII become UTF-8 again: mojibake_cp1252.tsv lost a few bytes
FREQUENT = 0.6  # of the repaired characters are frequent Chinese ones: mojibake_gbk.tsv
LOST = 0.5  # of the lines have characters that were replaced: lost_characters.tsv

_REPLACED = ("\ufffd".encode(), "锟斤".encode(), "斤拷".encode())  # Chinese: the bytes of two U+FFFD, read as GBK
_FREQUENT = frozenset(CHAT + CHINESE)
# The bytes of Latin-1, and of cp1252 where it has another character.
_BYTES = {chr(byte): byte for byte in range(256)}
_BYTES |= {bytes([byte]).decode("cp1252"): byte for byte in range(256) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def damage_of(text: str, content: bytes) -> str:
    """Return what has happened to a text and the remedy, "" if nothing has.

    text: its beginning, decoded from this content as UTF-8.
    """
    beyond = [line.strip("\r\t ") for line in text[:COMPARED].split("\n") if not line.isascii()]
    if not beyond:
        return ""
    from_latin = [(line, repaired) for line in beyond if (repaired := _from_latin(line)) is not None]
    if len(from_latin) >= REPAIRED * len(beyond):
        return _message("Latin-1", *from_latin[0])
    from_gbk = [line.encode("gb18030", "replace").decode("utf-8", "replace") for line in beyond]
    kept = [character for line in from_gbk for character in line if not character.isascii()]
    if len(kept) >= 8 and sum(character in _FREQUENT for character in kept) >= FREQUENT * len(kept):
        return _message("GB18030", beyond[0], from_gbk[0])
    # In the text, bytes that cannot be decoded are U+FFFD as well: such lines are in another encoding.
    written = [line for line in content[:COMPARED].split(b"\n") if line.strip()]
    if sum(any(mark in line for mark in _REPLACED) for line in written) >= LOST * len(written):
        return "characters are lost, which a program saved as \ufffd or 锟斤拷; save the original file again as UTF-8"
    return ""


def _from_latin(line: str) -> str | None:
    """Return the UTF-8 text whose bytes are the characters of this line, None if they are none."""
    try:
        return bytes(_BYTES[character] for character in line).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None


def _message(encoding: str, line: str, repaired: str) -> str:
    return (
        f"UTF-8 that was opened as {encoding} and saved again, so that {repaired[:8]!r} became "
        f"{line[:16]!r}; save the original file again as UTF-8"
    )
