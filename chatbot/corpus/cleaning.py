"""Cleaning of utterances before tokenisation, by named rules whose changes are counted."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection

from chatbot.config.corpus import TEXT_RULES
from chatbot.display import CHINESE
from chatbot.errors import UserError

# An utterance is cut into words if spaces are at this share of the places between its Chinese characters, no word is
# longer, and one is a single character: words have 1.6 characters on average. In other text, spaces separate clauses or
# keywords.
FEWEST_CHARACTERS = 6
LEAST_SHARE = 0.4
LONGEST_WORD = 6
# A corpus is cut into words if at least this many of its first utterances are, and this share of them: in some corpora
# only the questions are.
FEWEST_UTTERANCES = 5
LEAST_UTTERANCES = 0.4
EXAMINED = 50_000  # characters of a text

_CHINESE = re.compile(f"[{CHINESE}]+")
_SPACED = re.compile(f"(?<=[{CHINESE}]) +(?=[{CHINESE}])")

# White space, lone surrogates, which UTF-8 cannot encode, and U+2581, which stands for a space in tokens.
_SPACES = re.compile("[\\s\u2581\ud800-\udfff]+")
_SPACE_NEXT_TO_CHINESE = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\s+|(?<!\s)\s+(?=[\u3000-\u9fff\uff00-\uffef])")
_URL = re.compile(r"(?:https?://|www\.)[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.IGNORECASE)
# A name ends at punctuation, at a space or at the next name. What ends with the text may be a name and words
# ("@张三你好啊"): it stays, unless it is in ASCII or stands after a space. E-mail addresses do not match.
_NAME = re.compile(
    r"(?://\s*)?(?:回复|回覆|RT\s*)?(?<![A-Za-z0-9._])"
    r"(?:@[\w\-·]{1,30}(?:[:：，,、]|(?=[@/。！!？?；;…~～）)】\]]|\s+\S))"
    r"|(?:(?<=\S\s)@[\w\-·]{1,30}|@[A-Za-z0-9_\-]{1,30})(?=\s*$))+"
)
_REPEATED = re.compile(r"([!！?？。，,、;；：~～·])\1+")  # not of names such as C++, __init__ and std::string
# What `_without_markup` looks at: most texts have none of these characters.
_MAY_BE_MARKUP = re.compile(r"[&<*\\]|_comma_|^\s*\d")
_INLINE = "abbr|b|big|cite|code|del|em|font|i|ins|kbd|mark|small|span|strike|strong|sub|sup|u"
_BLOCK = (
    "blockquote|br|center|dd|details|div|dl|dt|figure|h[1-6]|hr|img|li|ol|p|pre|section|summary|"
    "table|tbody|td|th|thead|tr|ul"
)
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE})(?:\s[^<>]{{0,500}})?>|<a\s[^<>]{{1,500}}>|</a>", re.IGNORECASE)
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCK})(?:\s[^<>]{{0,500}})?/?>|<!--.{{0,500}}?-->", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_BOLD = re.compile(r"(?<![*A-Za-z0-9_])\*\*(?=[^\s*])([^*]{0,500}[^\s*])\*\*(?![*A-Za-z0-9_])")
# Not in a formula: \neq.
_LINE_END = re.compile(r"(?<!\\)(?:\\r)?\\n(?![a-z])|(?<=[.!?。！？,，;；])(?:\\r)?\\n")
_ITEM = re.compile(rf"\s*\d{{1,4}}(?:[.．)]\s+|、\s*)(?=[{CHINESE}]|\S.*\?\s*$)")  # not of "1. FC Köln"
_OTHER_ITEM = re.compile(r"\S\s*\d{1,4}(?:[.．)]\s|、)")
_LONG_RUN = re.compile(r"…{3,}|—{3,}|([-.:*#=_+^|])\1{3,}")  # shortened to "……", "——" and "...", "---", "===", ...


def tidy(text: str) -> str:
    """Replace runs of white space by one space and strip the ends, as every later step requires."""
    if text.isprintable() and "  " not in text and "\u2581" not in text:
        return text.strip()  # the usual case: no other white space is printable
    return _SPACES.sub(" ", text).strip()


def removed_characters() -> frozenset[str]:
    """Return the characters below U+10000 that `tidy` and the rule "control" never keep, lone surrogates included."""
    doubtful = [c for c in map(chr, range(0x10000)) if not c.isprintable() or c in " \u2581"]
    return frozenset(c for c in doubtful if tidy(_without_control(c)) != c and c != "\u200d")


def cleaner(rules: Collection[str], changed: Counter[str] | None = None) -> Callable[[str], str]:
    """Return the function that applies these rules in the order of TEXT_RULES, and then `tidy`.

    changed: incremented for each rule that changes an utterance.
    Raises UserError when the library of a rule is not installed.
    """
    functions: dict[str, Callable[[str], str]] = {
        "markup": _without_markup,
        "nfkc": lambda text: unicodedata.normalize("NFKC", text),
        "control": _without_control,
        "spaces": lambda text: _SPACE_NEXT_TO_CHINESE.sub("", text),
        "simplified": _simplified() if "simplified" in rules else tidy,
        "urls": lambda text: _URL.sub(" ", text),
        "names": lambda text: _NAME.sub(" ", text),
        "punctuation": lambda text: _LONG_RUN.sub(_shortest, _REPEATED.sub(r"\1", text)),
    }
    steps = [(name, functions[name]) for name in TEXT_RULES if name in rules]
    counts: Counter[str] = Counter() if changed is None else changed

    def clean(text: str) -> str:
        for name, function in steps:
            cleaned = function(text)
            if cleaned != text:
                counts[name] += 1
                text = cleaned
        return tidy(text)

    return clean


def is_cut_into_words(text: str) -> bool:
    """Return whether spaces separate the Chinese words of a text with an utterance in each line."""
    cut = whole = 0
    for utterance in text[:EXAMINED].splitlines():
        lengths = [len(run) for run in _CHINESE.findall(utterance)]
        if sum(lengths) >= FEWEST_CHARACTERS:
            spaces = len(_SPACED.findall(utterance))
            is_cut = spaces >= LEAST_SHARE * (sum(lengths) - 1) and max(lengths) <= LONGEST_WORD and min(lengths) == 1
            cut = cut + is_cut
            whole = whole + (not is_cut)
    return cut >= FEWEST_UTTERANCES and cut >= LEAST_UTTERANCES * (cut + whole)


def _without_markup(text: str) -> str:
    """Replace what programs and authors write for a layout; text that merely looks like it stays."""
    if _MAY_BE_MARKUP.search(text) is None:
        return text
    if "<" in text:
        text = _BLOCK_TAG.sub(" ", _INLINE_TAG.sub("", text))
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    if "\\n" in text and ":\\" not in text:
        text = _LINE_END.sub(" ", text)
    text = text.replace("_comma_", ",")
    if (item := _ITEM.match(text)) and _OTHER_ITEM.search(text, item.end()) is None:
        text = text[item.end() :]
    return text


def _character(entity: "re.Match[str]") -> str:
    character = html.unescape(entity.group())
    return " " if "\ufffd" in character else character


def _without_control(text: str) -> str:
    """Replace control characters by spaces, and delete format characters, such as soft hyphens."""
    if text.isprintable():
        return text
    kept = ""
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        if category == "Cc" and not character.isspace():
            kept += " "
        elif category != "Cf" or _in_emoji(kept[-1:], character, text[index + 1 : index + 2]):
            kept += character
    return kept


def _in_emoji(before: str, character: str, after: str) -> bool:
    """Return whether a format character is part of an emoji: U+200D between two, or the tags of a flag."""
    if character == "\u200d":
        return _is_symbol(before) and _is_symbol(after)
    return "\U000e0020" <= character <= "\U000e007f" and (before == "🏴" or "\U000e0020" <= before <= "\U000e007f")


def _is_symbol(character: str) -> bool:
    # Sk: skin tones. Sm: arrows. U+FE0F asks for the picture of the character before it.
    return character == "\ufe0f" or (character != "" and unicodedata.category(character) in ("So", "Sk", "Sm"))


def _shortest(match: "re.Match[str]") -> str:
    return match.group()[: 2 if match.group()[0] in "…—" else 3]


def _simplified() -> Callable[[str], str]:
    try:
        import opencc
    except ModuleNotFoundError:
        raise UserError("--clean simplified: OpenCC is not installed; run `.venv/bin/pip install opencc`") from None
    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert
