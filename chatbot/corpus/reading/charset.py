"""Detection of a text's encoding from its first bytes."""

import codecs
import contextlib
import logging

import charset_normalizer

BYTE_ORDER_MARKS = (  # UTF-32 before UTF-16, whose mark is a prefix of it
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with BOM"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32 LE"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32 BE"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16 LE"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16 BE"),
)
CHINESE = (("gb18030", "GB18030"), ("cp950", "Big5"))
OTHERS = ["shift_jis", "euc_jp", "euc_kr", "cp1251", "koi8_r", "cp1252"]
# The most frequent characters of chat, simplified and traditional. Chinese decoded with the wrong one of the two
# encodings gives rare characters instead.
COMMON = frozenset(
    "的一是不了我你他她们在有这那个人来到说要就会着没看好自己去过想知道什么为都吗吧呢啊哦得上下大小里生日天时地出能对子"
    "也和可以还很真多少谁怎样点做给让吃喜欢爱谢见早晚安今明后年月工作学家心事话起问回再把被从前老师朋友高兴开关中国"
    "們這個來說會著沒過麼為嗎裡時對還樣點給讓歡愛謝見後學話問從師興開關國覺買賣聽讀寫電無現號錢請幾誰長當嘿哈，。？！"
)
COMMON_SHARE = (
    0.25  # of the characters beyond ASCII: more than half in Chinese, a tenth in other languages (even Korean)
)

logging.getLogger("charset_normalizer").addHandler(logging.NullHandler())


def detect_encoding(sample: bytes) -> tuple[str, str]:
    """Return (Python's codec, displayed name) for a text that begins with these bytes.

    The sample may end inside a character.
    """
    for mark, codec, name in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return codec, name
    if b"\0" in sample:
        for codec, name in (("utf-16-le", "UTF-16 LE"), ("utf-16-be", "UTF-16 BE")):
            if _has_line_ends(sample, codec):
                return codec, name
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    if sum(_decodes(line) for line in lines) * 2 >= len(lines):
        return "utf-8", "UTF-8"
    share, codec, name = max((_common_share(sample, codec), codec, name) for codec, name in CHINESE)
    if share >= COMMON_SHARE:
        return codec, name
    match = charset_normalizer.from_bytes(b"\n".join(lines), cp_isolation=OTHERS).best()
    if match is not None:
        return match.encoding, match.encoding
    return (codec, name) if share else ("utf-8", "UTF-8")


def _has_line_ends(sample: bytes, codec: str) -> bool:
    # UTF-8 with a stray NUL also has line ends, but rarely next to a NUL. In UTF-16 the bytes of tab and line feed
    # also occur inside characters (上 is 4E 0A), so not all of them have to be line ends.
    decoded = sample.decode(codec, "ignore")
    ends = decoded.count("\n") + decoded.count("\t")
    return ends > 0 and ends * 8 >= sample.count(b"\n") + sample.count(b"\t")


def _decodes(line: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(line)  # incremental: the sample's last character may be cut
        return True
    return False


def _common_share(sample: bytes, codec: str) -> float:
    wide = [character for character in sample.decode(codec, "replace") if not character.isascii()]
    return sum(character in COMMON for character in wide) / max(1, len(wide))
