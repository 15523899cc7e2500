r"""Detection of charsets and of mojibake: text that was decoded with the wrong charset and saved again.

A text is decoded with each candidate charset and compared with the letters of the languages that use the charset. If
one charset is far more probable than the others, it is used. Otherwise, the user is asked.

Examples of mojibake: 晚 becomes "æ\x99\x9a" or "鏅\ufffd", and any character can become "锟斤拷".
"""

import codecs
import functools
import math
import re
from collections import Counter
from typing import NamedTuple

from chatbot.display import one_line
from chatbot.errors import UserError

BYTE_ORDER_MARKS = (  # UTF-32 must come first, because its mark begins with the mark of UTF-16.
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with BOM"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 LE"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 BE"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 LE"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 BE"),
)
# Escape sequences of the ISO 2022 charsets, which use only ASCII bytes.
ESCAPES = {b"\x1b$B": "ISO-2022-JP", b"\x1b$@": "ISO-2022-JP", b"\x1b$)C": "ISO-2022-KR"}
# Control characters that do not occur in text.
CONTROL = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32)) + b"\x7f"
COMPARED = 16 * 2**10  # maximum number of bytes decoded with each candidate charset

# Fractions of frequent, other and rare characters that are expected among the non-ASCII characters of a text.
SHARES = (0.6, 0.38, 0.02)
REQUIRED = 0.2  # minimum fraction of frequent characters among the non-ASCII characters
FOREIGN = 0.05  # maximum fraction of foreign characters (not used in the language) among the non-ASCII characters
ASCII, UNKNOWN = math.log(1 / 64), -14.0  # log-probabilities of an ASCII character and a foreign character
MARGIN = 5.0  # minimum difference of the log-probabilities (natural) of the best and the second-best charset

LATIN = "latin"  # LATIN and OTHER are keys in charsets.yaml.
OTHER = "other_alphabets"
PUNCTUATION = "’“”‘„–—…«»·°§€№×²\xa0"  # shared by all alphabets
# Signs of a wrong charset: words that mix two alphabets, quotes inside words, and GB18030's four-byte sequences.
_MIXED = re.compile("[A-Za-z]X|X[A-Za-z]".replace("X", f"[^\0-\x7f{PUNCTUATION}]"))
_BROKEN = re.compile("[A-Za-z][“”„«»][A-Za-z]|[^\0-\x7f][0-9][^\0-\x7f][0-9]")


class Candidate(NamedTuple):
    """A charset, and the non-ASCII characters of one language that uses it."""

    name: str
    codec: str  # Python codec; for a family of charsets, the largest, e.g. GB18030 for GBK and GB2312
    required: frozenset[str]  # frequent characters, some of which must occur in a text
    known: dict[str, float]  # log-probabilities of all characters of the language
    alphabet: str = ""  # LATIN or OTHER


@functools.cache
def _candidates() -> tuple[Candidate, ...]:
    from chatbot.corpus.reading.names import load_table  # Imported lazily, because Unicode texts do not need it.

    table = load_table("charsets.yaml")
    chinese, cantonese, hangul = table["frequent"].values()
    kana = _two_byte_characters("euc_jp", 0xA4, 0xA5) + "ー"
    common = _two_byte_characters("gb2312", 0xA1, 0xA3) + _two_byte_characters("gb2312", 0xB0, 0xD7)
    simplified = _log_probabilities(
        chinese, common, _two_byte_characters("gb2312", 0xD8, 0xF7) + _two_byte_characters("big5", 0xA4, 0xC6)
    )
    traditional = _log_probabilities(
        chinese + cantonese,
        _two_byte_characters("big5", 0xA1, 0xA3) + _two_byte_characters("big5", 0xA4, 0xC6),
        _two_byte_characters("big5", 0xC9, 0xF9),
    )
    japanese = _log_probabilities(
        kana,
        _two_byte_characters("euc_jp", 0xA1, 0xA3) + _two_byte_characters("euc_jp", 0xB0, 0xCF),
        _two_byte_characters("euc_jp", 0xD0, 0xF4),
    )
    korean = _log_probabilities(
        hangul, _two_byte_characters("euc_kr", 0xA1, 0xA4) + _two_byte_characters("euc_kr", 0xB0, 0xC8)
    )
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
                known = _log_probabilities(frequent, others + (frequent + others).upper() + PUNCTUATION)
                candidates.append(Candidate(codec, codec, frozenset(frequent + frequent.upper()), known, alphabet))
    return tuple(candidates)


def _log_probabilities(*classes: str) -> dict[str, float]:
    """Return the log-probability of each character.

    `classes` contains the frequent, the other and the rare characters of a language.
    """
    known: dict[str, float] = {}
    for share, characters in zip(SHARES, classes, strict=False):
        for character in characters:
            known.setdefault(character, math.log(share / len(characters)))
    return known


@functools.cache
def _common_characters() -> frozenset[str]:
    """Return the 3,755 simplified and 5,401 traditional Chinese characters in common use."""
    return frozenset(_two_byte_characters("gb2312", 0xB0, 0xD7) + _two_byte_characters("big5", 0xA4, 0xC6))


def _two_byte_characters(codec: str, first: int, last: int) -> str:
    """Return a codec's two-byte characters whose first byte is between `first` and `last`."""
    trails = range(0x40 if codec == "big5" else 0xA1, 0xFF)
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in trails)
    return "".join(pair.decode(codec, "ignore") for pair in pairs)


def detect_charset(sample: bytes, place: str = "text") -> tuple[str, str]:
    """Detect the charset of a text from a sample. The sample may end with an incomplete character.

    Returns:
        The Python codec and the display name of the charset.

    Raises:
        UserError: If several charsets, or none, fit. The error shows a line of the text decoded with each charset.
    """
    if known := _unicode_charset(sample):
        return known
    matches = sorted(_matching_candidates(sample), key=lambda match: -match[0])
    probable = [charset for probability, charset in matches if probability > matches[0][0] - MARGIN]
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
    """Decode the name of an archive member. If its charset is uncertain, the first matching one is used."""
    known = _unicode_charset(name) or [charset.codec for _, charset in _matching_candidates(name)] or ["gb18030"]
    return name.decode(known[0], "replace")


def _unicode_charset(sample: bytes) -> tuple[str, str] | None:
    """Return the charset of a Unicode or ISO 2022 text, or None for other charsets. Binary data counts as UTF-8."""
    for mark, codec, name in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return codec, name
    for escape, name in ESCAPES.items():
        if escape in sample and sample.isascii():
            return name.lower(), name
    if sample.endswith(bytes(4)):
        sample = sample.rstrip(b"\0")  # Some programs pad files with NUL bytes.
    if b"\0" in sample:
        for codec, name in (("utf-16-le", "UTF-16 LE"), ("utf-16-be", "UTF-16 BE")):
            # In UTF-16, many line feed and tab bytes are next to a NUL byte. In UTF-8 with stray NULs, few are. An
            # eighth is enough, because these bytes also occur inside other UTF-16 characters (上 is 4E 0A).
            decoded = sample.decode(codec, "ignore")
            separators = decoded.count("\n") + decoded.count("\t")
            if separators and separators * 8 >= sample.count(b"\n") + sample.count(b"\t"):
                return codec, name
    lines = _non_ascii_lines(sample)
    compared = b"".join(lines)[:COMPARED]
    is_binary = len(compared.translate(None, CONTROL)) < 0.9 * len(compared)
    return ("utf-8", "UTF-8") if is_binary or sum(map(_is_utf_8, lines)) * 2 >= len(lines) else None


def _non_ascii_lines(sample: bytes) -> list[bytes]:
    return [line for line in sample.splitlines(keepends=True) if not line.isascii()]


def _is_utf_8(line: bytes) -> bool:
    """Return whether a line is valid UTF-8. An incomplete character at the end is allowed."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(line)
    except UnicodeDecodeError:
        return False
    return True


def _matching_candidates(sample: bytes) -> list[tuple[float, Candidate]]:
    """Return each candidate whose language fits the decoded sample, with the log-probability of the sample.

    If several candidates decode the sample to the same text, only the first is returned.
    """
    compared = b"".join(_non_ascii_lines(sample))[:COMPARED]
    found: dict[str, tuple[float, Candidate]] = {}
    for candidate in _candidates():
        text = codecs.getincrementaldecoder(candidate.codec)("replace").decode(compared)
        counts = {character: count for character, count in Counter(text).items() if not character.isascii()}
        total = sum(counts.values())
        foreign = sum(count for character, count in counts.items() if character not in candidate.known)
        if candidate.alphabet:
            foreign += len(_BROKEN.findall(text)) + len(_MIXED.findall(text)) * (candidate.alphabet == OTHER)
        required = sum(count for character, count in counts.items() if character in candidate.required)
        if required >= REQUIRED * total and foreign <= FOREIGN * total:
            probability = ASCII * (len(text) - total)
            probability += sum(count * candidate.known.get(character, UNKNOWN) for character, count in counts.items())
            best, first = found.get(text, (probability, candidate))
            found[text] = max(best, probability), first
    return list(found.values())


# A text counts as damaged if one of these fractions is reached.
REPAIRED = 0.8  # fraction of non-ASCII lines that can be repaired to UTF-8
COMMON = 0.6  # fraction of common Chinese characters after the repair
LOST = 0.5  # fraction of lines with replacement characters
_REPLACED = re.compile("\ufffd|锟斤|斤拷")  # Two U+FFFD saved as UTF-8 and opened as GBK become 锟斤拷.
_LATIN_1 = str.maketrans({bytes([byte]).decode("cp1252", "replace"): chr(byte) for byte in range(0x80, 0xA0)})


def detect_damage(text: str) -> str:
    """Return a message that describes how a text was damaged before it was saved, or an empty string.

    Args:
        text: The beginning of the file, without undecodable bytes.
    """
    lines = [line.strip("\r\t ") for line in text[:COMPARED].split("\n") if line.strip()]
    non_ascii = [line for line in lines if not line.isascii()]
    from_latin = [(line, repaired) for line in non_ascii if (repaired := _undo_latin_1(line))]
    if len(from_latin) >= REPAIRED * len(non_ascii) > 0:
        return _damage_message("Latin-1", *from_latin[0])
    from_gbk = [line.encode("gb18030", "replace").decode("utf-8", "replace") for line in non_ascii]
    characters = [character for line in from_gbk for character in line if not character.isascii()]
    if len(characters) >= 8 and sum(character in _common_characters() for character in characters) >= COMMON * len(
        characters
    ):
        return _damage_message("GB18030", non_ascii[0], from_gbk[0])
    if sum(map(bool, map(_REPLACED.search, lines))) >= LOST * len(lines) > 0:
        return (
            "characters are lost: a program replaced them with \ufffd or 锟斤拷; save the original file again as UTF-8"
        )
    return ""


def _undo_latin_1(line: str) -> str:
    """Repair a UTF-8 line that was decoded as Latin-1 or cp1252. Returns "" if the line is not of this kind."""
    try:
        return line.translate(_LATIN_1).encode("latin-1").decode()
    except UnicodeError:
        return ""


def _damage_message(charset: str, line: str, repaired: str) -> str:
    return (
        f"UTF-8 that was opened as {charset} and saved again, so that {repaired[:8]!r} became "
        f"{line[:16]!r}; save the original file again as UTF-8"
    )
