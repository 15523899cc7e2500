"""Charsets: of a text, from its first bytes beyond ASCII; text that was saved in a wrong one.

A charset is known, or asked for. It is known if the text is then in a language that is written in it, and in any other
charset in none, or in one whose characters would be far less usual. Text that was saved in a wrong charset is
"æ\\x99\\x9a" or "鏅\ufffd" for 晚, "锟斤拷" for any.
"""

import codecs
import functools
import math
import re
from collections import Counter
from typing import NamedTuple

from chatbot.display import one_line
from chatbot.errors import UserError

BYTE_ORDER_MARKS = (  # UTF-32 before UTF-16, whose mark is a prefix of it
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with BOM"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 LE"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 BE"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 LE"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 BE"),
)
# With these, a text of seven bits begins its characters of two bytes.
ESCAPES = {b"\x1b$B": "ISO-2022-JP", b"\x1b$@": "ISO-2022-JP", b"\x1b$)C": "ISO-2022-KR"}
CONTROL = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32)) + b"\x7f"  # in no text
COMPARED = 16 * 2**10  # bytes that are compared in the candidate charsets

# Of the characters beyond ASCII of a text, more than half are the frequent ones of its language, most others its other
# ones, a few its rare ones, and at most 1 in 20 is foreign to it. Any text has some of the frequent ones.
SHARES = (0.6, 0.38, 0.02)
REQUIRED = 0.2
FOREIGN = 0.05
ASCII, UNKNOWN = math.log(1 / 64), -14.0  # log-probabilities of one character, the same in every language
MARGIN = 5.0  # between the log-probabilities of a known charset and of any other, which is less probable by 150 times

LATIN = "latin"  # a key of charsets.yaml
OTHER = "other_alphabets"
PUNCTUATION = "’“”‘„–—…«»·°§€№×²\xa0"  # of all alphabets
# What no text of such a language has: letters of two alphabets in a word, quotes inside one, GB18030's four bytes.
_MIXED = re.compile("[A-Za-z]X|X[A-Za-z]".replace("X", f"[^\0-\x7f{PUNCTUATION}]"))
_BROKEN = re.compile("[A-Za-z][“”„«»][A-Za-z]|[^\0-\x7f][0-9][^\0-\x7f][0-9]")


class Candidate(NamedTuple):
    """A charset, with the characters beyond ASCII of a language that is written in it."""

    name: str
    codec: str  # the largest superset: GBK and GB2312 are in GB18030, Shift JIS in cp932, EUC-KR in cp949
    required: frozenset[str]  # of which a text has some
    known: dict[str, float]  # log-probabilities of all
    alphabet: str = ""  # LATIN or OTHER


@functools.cache
def _candidates() -> tuple[Candidate, ...]:
    from chatbot.corpus.reading.names import table_of  # for a text that is not in Unicode

    table = table_of("charsets.yaml")
    chinese, cantonese, hangul = table["frequent"].values()
    kana = _rows("euc_jp", 0xA4, 0xA5) + "ー"
    common = _rows("gb2312", 0xA1, 0xA3) + _rows("gb2312", 0xB0, 0xD7)
    simplified = _known(chinese, common, _rows("gb2312", 0xD8, 0xF7) + _rows("big5", 0xA4, 0xC6))
    written = chinese + cantonese
    traditional = _known(written, _rows("big5", 0xA1, 0xA3) + _rows("big5", 0xA4, 0xC6), _rows("big5", 0xC9, 0xF9))
    japanese = _known(kana, _rows("euc_jp", 0xA1, 0xA3) + _rows("euc_jp", 0xB0, 0xCF), _rows("euc_jp", 0xD0, 0xF4))
    korean = _known(hangul, _rows("euc_kr", 0xA1, 0xA4) + _rows("euc_kr", 0xB0, 0xC8))
    candidates = [
        Candidate("GB18030", "gb18030", frozenset(chinese + common), simplified),
        Candidate("Big5", "cp950", frozenset(traditional), traditional),
        Candidate("Big5-HKSCS", "big5hkscs", frozenset(traditional), traditional),
        Candidate("shift_jis", "cp932", frozenset(kana), japanese),
        Candidate("euc_jp", "euc_jp", frozenset(kana), japanese),
        Candidate("euc_kr", "cp949", frozenset(hangul), korean),
    ]
    for alphabet in (LATIN, OTHER):
        for codec, languages in table[alphabet].items():
            for frequent, _, others in (letters.partition("|") for letters in languages):
                known = _known(frequent, others + (frequent + others).upper() + PUNCTUATION)
                candidates.append(Candidate(codec, codec, frozenset(frequent + frequent.upper()), known, alphabet))
    return tuple(candidates)


def _known(*classes: str) -> dict[str, float]:
    """Return the log-probabilities of the frequent characters, the others and the rare ones."""
    known: dict[str, float] = {}
    for share, characters in zip(SHARES, classes, strict=False):
        for character in characters:
            known.setdefault(character, math.log(share / len(characters)))
    return known


@functools.cache
def _common() -> frozenset[str]:
    """Return the characters in common use, 3,755 simplified and 5,401 traditional ones."""
    return frozenset(_rows("gb2312", 0xB0, 0xD7) + _rows("big5", 0xA4, 0xC6))


def _rows(codec: str, first: int, last: int) -> str:
    """Return the characters of two bytes whose first byte is in this range."""
    trails = range(0x40 if codec == "big5" else 0xA1, 0xFF)
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in trails)
    return "".join(pair.decode(codec, "ignore") for pair in pairs)


def detect_charset(sample: bytes, place: str = "text") -> tuple[str, str]:
    """Return (Python's codec, displayed name) for a text that begins with these bytes, and may end inside a character.

    place: for the UserError about a text that may be in several charsets, which shows a line in each.
    """
    if known := _unicode_charset(sample):
        return known
    fitting = sorted(_fitting(sample), key=lambda each: -each[0])
    probable = [charset for probability, charset in fitting if probability > fitting[0][0] - MARGIN]
    if len(probable) == 1:
        return probable[0].codec, probable[0].name
    line = next(line for line in sample.splitlines() if not line.isascii()).replace(b"\t", b" ")
    shown = {line.decode(each.codec, "replace"): each.name for each in reversed(probable or _candidates())}
    names = " or ".join(charset.name for charset in probable[:3]) or "an unknown encoding"
    raise UserError(
        f"{place}: in {names}; name it with --encoding NAME, or save the file as UTF-8",
        [f"  {name}: {one_line(text, 60)}" for text, name in shown.items() if probable or "\ufffd" not in text][::-1],
    )


def name_of(name: bytes) -> str:
    """Decode a name in an archive, in the first charset that it may be in: nobody is asked for that."""
    known = _unicode_charset(name) or [charset.codec for _, charset in _fitting(name)] or ["gb18030"]
    return name.decode(known[0], "replace")


def _unicode_charset(sample: bytes) -> tuple[str, str] | None:
    """Return the charset of a text in Unicode, or in the seven bits of ISO 2022; of no text, UTF-8; of others, None."""
    for mark, codec, name in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return codec, name
    for escape, name in ESCAPES.items():
        if escape in sample and sample.isascii():
            return name.lower(), name
    if sample.endswith(bytes(4)):
        sample = sample.rstrip(b"\0")  # the rest of a block that was not filled
    if b"\0" in sample:
        for codec, name in (("utf-16-le", "UTF-16 LE"), ("utf-16-be", "UTF-16 BE")):
            # UTF-8 with a stray NUL also has line ends, but rarely next to a NUL. In UTF-16 the bytes of tab and line
            # feed also occur inside characters (上 is 4E 0A), so not all of them have to be line ends.
            decoded = sample.decode(codec, "ignore")
            ends = decoded.count("\n") + decoded.count("\t")
            if ends and ends * 8 >= sample.count(b"\n") + sample.count(b"\t"):
                return codec, name
    lines = _lines_beyond_ascii(sample)
    compared = b"".join(lines)[:COMPARED]
    is_binary = len(compared.translate(None, CONTROL)) < 0.9 * len(compared)
    return ("utf-8", "UTF-8") if is_binary or sum(map(_is_utf_8, lines)) * 2 >= len(lines) else None


def _lines_beyond_ascii(sample: bytes) -> list[bytes]:
    return [line for line in sample.splitlines(keepends=True) if not line.isascii()]


def _is_utf_8(line: bytes) -> bool:
    """Return whether a line is UTF-8. Without a line end, as at the end of a sample, it may end inside a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(line)
    except UnicodeDecodeError:
        return False
    return True


def _fitting(sample: bytes) -> list[tuple[float, Candidate]]:
    """Return the candidates of whose language the text is, with its log-probabilities.

    Of candidates that give the same text, the first is returned, with the highest log-probability of them.
    """
    compared = b"".join(_lines_beyond_ascii(sample))[:COMPARED]
    found: dict[str, tuple[float, Candidate]] = {}
    for candidate in _candidates():
        text = codecs.getincrementaldecoder(candidate.codec)("replace").decode(compared)
        beyond = {character: count for character, count in Counter(text).items() if not character.isascii()}
        total = sum(beyond.values())
        foreign = sum(count for character, count in beyond.items() if character not in candidate.known)
        if candidate.alphabet:
            foreign += len(_BROKEN.findall(text)) + len(_MIXED.findall(text)) * (candidate.alphabet == OTHER)
        required = sum(count for character, count in beyond.items() if character in candidate.required)
        if required >= REQUIRED * total and foreign <= FOREIGN * total:
            probability = ASCII * (len(text) - total)
            probability += sum(count * candidate.known.get(character, UNKNOWN) for character, count in beyond.items())
            best, first = found.get(text, (probability, candidate))
            found[text] = max(best, probability), first
    return list(found.values())


REPAIRED = 0.8  # of the lines beyond ASCII become UTF-8 again: mojibake_cp1252.tsv lost a few bytes
COMMON = 0.6  # of the repaired characters are common Chinese ones: mojibake_gbk.tsv
LOST = 0.5  # of the lines have characters that were replaced: lost_characters.tsv
_REPLACED = re.compile("\ufffd|锟斤|斤拷")  # Chinese: the bytes of two U+FFFD, read as GBK
_LATIN_1 = str.maketrans({bytes([byte]).decode("cp1252", "replace"): chr(byte) for byte in range(0x80, 0xA0)})


def damage_of(text: str) -> str:
    """Return what has happened to a text and the remedy, "" if nothing has.

    text: its beginning, without the bytes that cannot be decoded, which are no damage but another charset.
    """
    written = [line.strip("\r\t ") for line in text[:COMPARED].split("\n") if line.strip()]
    beyond = [line for line in written if not line.isascii()]
    from_latin = [(line, repaired) for line in beyond if (repaired := _from_latin(line))]
    if len(from_latin) >= REPAIRED * len(beyond) > 0:
        return _message("Latin-1", *from_latin[0])
    from_gbk = [line.encode("gb18030", "replace").decode("utf-8", "replace") for line in beyond]
    characters = [character for line in from_gbk for character in line if not character.isascii()]
    if len(characters) >= 8 and sum(character in _common() for character in characters) >= COMMON * len(characters):
        return _message("GB18030", beyond[0], from_gbk[0])
    if sum(map(bool, map(_REPLACED.search, written))) >= LOST * len(written) > 0:
        return "characters are lost, which a program saved as \ufffd or 锟斤拷; save the original file again as UTF-8"
    return ""


def _from_latin(line: str) -> str:
    """Return the UTF-8 text whose bytes are the characters of this line, in Latin-1 or cp1252; "" if they are none."""
    try:
        return line.translate(_LATIN_1).encode("latin-1").decode()
    except UnicodeError:
        return ""


def _message(charset: str, line: str, repaired: str) -> str:
    return (
        f"UTF-8 that was opened as {charset} and saved again, so that {repaired[:8]!r} became "
        f"{line[:16]!r}; save the original file again as UTF-8"
    )
