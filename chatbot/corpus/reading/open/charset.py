"""Charsets: of a text, from its first bytes; text that was saved in a wrong one.

Such text is "æ\\x99\\x9a" or "鏅\ufffd" for 晚, "锟斤拷" for any.
"""

import codecs
import contextlib
import functools
import math
import re
from collections import Counter
from dataclasses import dataclass

# Of chat, simplified and traditional.
CHAT = (
    "的一是不了我你他她们在有这那个人来到说要就会着没看好自己去过想知道什么为都吗吧呢啊哦得上下大小里生日天时地出能对子"
    "也和可以还很真多少谁怎样点做给让吃喜欢爱谢见早晚安今明后年月工作学家心事话起问回再把被从前老师朋友高兴开关中国"
    "們這個來說會著沒過麼為嗎裡時對還樣點給讓歡愛謝見後學話問從師興開關國覺買賣聽讀寫電無現號錢請幾誰長當嘿哈，。？！"
)
HANGUL = (
    "이다는을에가의하고지를은한로사기아리어나들도대시인그자서라수해만게일정보스상제전있면부장주구여조원안네요없거것내"
    "너우와오저무뭐야왜좋말생각니까세습죠데과으마음려러씨녕감반갑잘먹었했겠같못모두또더때간년월동성화소관신위경국계공"
    "중문학연미바진비선적발영실체입행단개분용당물통재치등명방회교"
)


BYTE_ORDER_MARKS = (  # UTF-32 before UTF-16, whose mark is a prefix of it
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with BOM"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 LE"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 BE"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 LE"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 BE"),
)
# The escape sequences with which a text of seven bits begins its characters of two bytes.
ESCAPES = (
    (b"\x1b$B", "iso2022_jp", "ISO-2022-JP"),
    (b"\x1b$@", "iso2022_jp", "ISO-2022-JP"),
    (b"\x1b$)C", "iso2022_kr", "ISO-2022-KR"),
)
CONTROL = bytes(range(9)) + bytes(range(14, 27)) + bytes(range(28, 32)) + b"\x7f"  # in no text
# Bytes that are compared in the candidate charsets.
COMPARED = 32 * 2**10
# Log-probabilities of an ASCII character, the same in every charset, and of a byte that cannot be decoded.
ASCII, UNDECODABLE = math.log(1 / 64), -15.0


@dataclass(frozen=True)
class Candidate:
    """A charset, with the log-probabilities of the characters beyond ASCII in the language that is written in it."""

    codec: str
    known: dict[str, float]
    other: float  # of any other character
    prior: float = 0.0  # log-probability of the charset, up to a constant
    unusual: str = "(?!)"  # sequences of characters that hardly occur in the language
    required: frozenset[str] = frozenset()  # a text without any of these characters is not in this charset
    name: str = ""  # for messages, if it is not the codec


def detect_charset(sample: bytes) -> tuple[str, str]:
    """Return (Python's codec, displayed name) for a text that begins with these bytes.

    The sample may end inside a character. A text that is not Unicode gets the charset under which its characters are
    most probable, each by itself.
    """
    for mark, codec, name in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return codec, name
    for escape, codec, name in ESCAPES:
        if escape in sample and sample.isascii():
            return codec, name
    if sample.endswith(bytes(4)):
        sample = sample.rstrip(b"\0")  # the rest of a block that was not filled
    if b"\0" in sample:
        for codec, name in (("utf-16-le", "UTF-16 LE"), ("utf-16-be", "UTF-16 BE")):
            if _has_line_ends(sample, codec):
                return codec, name
    *complete, last = sample.split(b"\n")
    lines = [line for line in (*complete, last) if not line.isascii()]
    compared = b"\n".join((*lines, b""))[:COMPARED]
    binary = len(compared.translate(None, CONTROL)) < 0.9 * len(compared)
    decodable = sum(_decodes(line, whole=True) for line in complete if not line.isascii())
    decodable += not last.isascii() and _decodes(last, whole=False)
    if binary or decodable * 2 >= len(lines):
        return "utf-8", "UTF-8"
    best = max(_candidates(), key=lambda candidate: _log_probability(compared, candidate))
    return best.codec, best.name or best.codec


def _has_line_ends(sample: bytes, codec: str) -> bool:
    # UTF-8 with a stray NUL also has line ends, but rarely next to a NUL. In UTF-16 the bytes of tab and line feed
    # also occur inside characters (上 is 4E 0A), so not all of them have to be line ends.
    decoded = sample.decode(codec, "ignore")
    ends = decoded.count("\n") + decoded.count("\t")
    return ends > 0 and ends * 8 >= sample.count(b"\n") + sample.count(b"\t")


def _decodes(line: bytes, whole: bool) -> bool:
    """Return whether a line is UTF-8. whole: False for the sample's last line, which may end inside a character."""
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(line, whole)
        return True
    return False


def _log_probability(sample: bytes, candidate: Candidate) -> float:
    text = codecs.getincrementaldecoder(candidate.codec)("replace").decode(sample)
    counts = Counter(text)
    if candidate.required and not candidate.required & counts.keys():
        return -math.inf
    total = candidate.prior + UNDECODABLE * sum(1 for _ in re.finditer(candidate.unusual, text))
    for character, count in counts.items():
        if character.isascii():
            total += count * ASCII
        elif character == "\ufffd" or "\ue000" <= character <= "\uf8ff":  # private: no character of any language
            total += count * UNDECODABLE
        else:
            total += count * candidate.known.get(character, candidate.other)
    return total


@functools.cache
def _candidates() -> tuple[Candidate, ...]:
    hiragana, katakana = _rows("euc_jp", 0xA4, 0xA4), _rows("euc_jp", 0xA5, 0xA5) + "ー"
    kana = frozenset(hiragana + katakana)
    simplified = _known(
        (0.4, CHAT),
        (0.47, _rows("gb2312", 0xB0, 0xD7)),  # ordered by pronunciation: the 3,755 characters of common use
        (0.09, _rows("gb2312", 0xA1, 0xA3)),  # punctuation and full-width forms
        (0.02, _rows("gb2312", 0xD8, 0xF7)),
        (0.01, hiragana + katakana),
    )
    traditional = _known(
        (0.4, CHAT),
        (0.47, _rows("big5", 0xA4, 0xC6)),  # the 5,401 characters of common use
        (0.09, _rows("big5", 0xA1, 0xA3)),
        (0.03, _rows("big5", 0xC9, 0xF9)),
    )
    cantonese = dict.fromkeys("佢喺嘅咗哋啲嚟唔咁啩㗎嗰冇揾乜嘢畀", math.log(0.1 / 17))  # most are in HKSCS alone
    japanese = _known(
        (0.5, hiragana),
        (0.14, katakana),
        (0.08, _rows("euc_jp", 0xA1, 0xA3)),
        (0.26, _rows("euc_jp", 0xB0, 0xCF)),
        (0.01, _rows("euc_jp", 0xD0, 0xF4)),
    )
    korean = _known(
        (0.75, HANGUL),
        (0.2, _rows("euc_kr", 0xB0, 0xC8)),
        (0.03, _rows("euc_kr", 0xA1, 0xA3)),
        (0.01, _rows("euc_kr", 0xCA, 0xFD)),  # Chinese characters
    )
    russian = _known(
        (0.65, "оеаинтсрвлкм"),
        (0.28, "дпуяыьгзбчйхжшюцщэфъё"),
        (0.05, "АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЫЭЮЯЁ"),
        (0.01, "«»—–…№“”’"),
    )
    western = _known((0.6, "éèàçêäöüßñóíáãúå"), (0.2, "ùâîôûõÉÀÄÖÜ¿¡’“”–…«»"), (0.15, "ÁÂÃÇÈÊÍÎÓÔÕÑÙÚÅØæëïìòøÿœŒ‘„—€°"))
    central = _known(
        (0.9, "ąćęłńóśźżáčďéěíňřšťúůýžôľĺäöüőű"),
        (0.08, "ĄĆĘŁŃÓŚŹŻÁČĎÉĚÍŇŘŠŤÚŮÝŽÖÜŐŰ„”“’–"),
    )
    turkish = _known((0.75, "ışğ"), (0.2, "çöüİŞĞ"), (0.04, "âîÇÖÜ“”’–"))
    greek = _known((0.7, "αεηιορσςντπκλμυω"), (0.2, "άέήίόύώβγδζθξφχψ"), (0.08, "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΆΈΉΊΌΎΏ·«»’"))
    hebrew = _known((0.75, "יוהלאמתרבשנ"), (0.23, "גדזחטךכםןסעףפץצק"), (0.01, "־״׳₪–"))
    arabic = _known((0.75, "اليمنرتبوهةدس"), (0.22, "عحقفكأجشصطخذزضغثىإءآئؤظ"), (0.02, "،؟؛ـًٌٍَُِّْ"))
    thai = _known((0.55, "านรอกเงมยลวดทสต"), (0.35, "ะัาำิีึืุู็่้๊๋์โใไแๆ"), (0.09, "ขคจชซฐณบปผฝพฟภศษหฬธถญฎฏฑฒฆฉฌฮฃฅฤ"))
    slavic = frozenset("ąćęłńśźżčďěňřťůľĺőűĄĆĘŁŃŚŹŻČĎĚŇŘŤŮŐŰ")  # others are at the same place in cp1252
    mixed = "[A-Za-z][а-яё]|[а-яё][A-Za-zА-ЯЁ]|[бвгджзйклмнпрстфхцчшщ]{5}"
    below = "[^ก-ฮ][ัิ-ฺ]|[^ก-ฮัิ-ฺำ][็-๎]|[เแโใไ][^ก-ฮ]"  # a vowel or a tone without its consonant
    # The codecs are supersets: GBK and GB2312 in GB18030, Shift JIS in cp932, EUC-KR in cp949. The priors of those of
    # single bytes for one alphabet or a few languages are low: nearly every text in GBK is some text in them, too.
    return (
        Candidate("gb18030", simplified, -13.5, 3.0, name="GB18030"),
        Candidate("cp950", traditional, -13.5, 2.0, name="Big5"),
        Candidate("big5hkscs", traditional | cantonese, -13.5, -6.0, name="Big5-HKSCS"),
        Candidate("utf-8", simplified | traditional, -12.0, name="UTF-8"),  # with most of its lines damaged
        Candidate("cp932", japanese, -11.0, required=kana, name="shift_jis"),
        Candidate("euc_jp", japanese, -13.0, required=kana),
        Candidate("cp949", korean, -12.5, name="euc_kr"),
        Candidate("cp1251", russian, -9.0, 0.0, mixed),
        Candidate("koi8_r", russian, -9.0, 0.0, mixed),
        Candidate("cp1252", western, -8.0, 0.0, "[À-ÿ]{3}"),
        Candidate("cp1250", central, -9.0, -2.0, "[À-ž]{4}", slavic),
        Candidate("iso8859_2", central, -9.5, -3.0, "[À-ž]{4}|[\x80-\x9f]", slavic),
        Candidate("cp1254", turkish, -9.0, -4.0, "[À-ž]{3}", frozenset("ışğİŞĞ")),
        Candidate("cp1253", greek, -10.0, -4.0, "[A-Za-z][ά-ώ]|[ά-ώ][A-Za-z]|[ά-ώ][Α-Ω]"),
        Candidate("cp1255", hebrew, -12.0, -4.0, "[A-Za-z][א-ת]|[ךםןףץ][א-ת]"),
        Candidate("cp1256", arabic, -11.0, -6.0, "[A-Za-z][ء-ي]|ة[ء-ي]|ى[ء-ي]"),
        Candidate("cp874", thai, -10.0, -8.0, below),
    )


def _known(*classes: tuple[float, str]) -> dict[str, float]:
    """Return the log-probability of each character of these classes: (share of the class in a text, its characters).

    A character in several classes belongs to the first.
    """
    known: dict[str, float] = {}
    for share, characters in classes:
        probability = math.log(share / len(characters))
        for character in characters:
            known.setdefault(character, probability)
    return known


def _rows(codec: str, first: int, last: int) -> str:
    """Return the characters of two bytes whose first byte is in this range."""
    trails = range(0x40 if codec == "big5" else 0xA1, 0xFF)
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in trails)
    return "".join(pair.decode(codec, "ignore") for pair in pairs)


REPAIRED = 0.8  # of the lines beyond ASCII become UTF-8 again: mojibake_cp1252.tsv lost a few bytes
FREQUENT = 0.6  # of the repaired characters are frequent Chinese ones: mojibake_gbk.tsv
LOST = 0.5  # of the lines have characters that were replaced: lost_characters.tsv

_REPLACED = ("\ufffd".encode(), "锟斤".encode(), "斤拷".encode())  # Chinese: the bytes of two U+FFFD, read as GBK
# The bytes of Latin-1, and of cp1252 where it has another character.
_BYTES = {chr(byte): byte for byte in range(256)}
_BYTES |= {bytes([byte]).decode("cp1252"): byte for byte in range(256) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


@functools.cache
def _frequent() -> frozenset[str]:
    return frozenset(_rows("gb2312", 0xB0, 0xD7) + _rows("big5", 0xA4, 0xC6))


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
    characters = [character for line in from_gbk for character in line if not character.isascii()]
    if len(characters) >= 8 and sum(character in _frequent() for character in characters) >= FREQUENT * len(characters):
        return _message("GB18030", beyond[0], from_gbk[0])
    # In the text, bytes that cannot be decoded are U+FFFD as well: such lines are in another charset.
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


def _message(charset: str, line: str, repaired: str) -> str:
    return (
        f"UTF-8 that was opened as {charset} and saved again, so that {repaired[:8]!r} became "
        f"{line[:16]!r}; save the original file again as UTF-8"
    )
