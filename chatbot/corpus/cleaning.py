"""Cleaning of utterances before tokenisation. The number of utterances that each rule changes is counted."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection

from chatbot.config.corpus import TEXT_RULES
from chatbot.display import CHINESE
from chatbot.errors import UserError

# Some corpora have spaces between Chinese words. An utterance of at least MIN_CHARACTERS Chinese characters counts as
# segmented if at least MIN_SPACE_FRACTION of the gaps between characters contain a space, no word is longer than
# MAX_WORD_LENGTH, and at least one word is a single character.
MIN_CHARACTERS = 6
MIN_SPACE_FRACTION = 0.4
MAX_WORD_LENGTH = 6
# A corpus counts as segmented if at least this number and this fraction of its first utterances are segmented. The
# fraction is less than one half, because some corpora segment only the questions.
MIN_SEGMENTED = 5
MIN_SEGMENTED_FRACTION = 0.4
MAX_EXAMINED = 50_000  # maximum number of characters to examine per text

_CHINESE = re.compile(f"[{CHINESE}]+")
_SPACED = re.compile(f"(?<=[{CHINESE}]) +(?=[{CHINESE}])")

# Matches whitespace, lone surrogates (which UTF-8 cannot encode), and U+2581, which represents a space in tokens.
_SPACES = re.compile("[\\s\u2581\ud800-\udfff]+")
_SPACE_NEXT_TO_CHINESE = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\s+|(?<!\s)\s+(?=[\u3000-\u9fff\uff00-\uffef])")
_URL = re.compile(r"(?:https?://|www\.)[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.IGNORECASE)
# Matches names such as "@张三", but not e-mail addresses. At the end of a text, a name must be ASCII or follow a space,
# because it could include other words, as in "@张三你好啊".
_NAME = re.compile(
    r"(?://\s*)?(?:回复|回覆|RT\s*)?(?<![A-Za-z0-9._])"
    r"(?:@[\w\-·]{1,30}(?:[:：，,、]|(?=[@/。！!？?；;…~～）)】\]]|\s+\S))"
    r"|(?:(?<=\S\s)@[\w\-·]{1,30}|@[A-Za-z0-9_\-]{1,30})(?=\s*$))+"
)
_REPEATED = re.compile(
    r"([!！?？。，,、;；：~～·])\1+"
)  # not "+" and "_", which are repeated in names such as C++ and __init__
# Matches characters that can be part of markup. Most texts contain none, so `_remove_markup` can return early.
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
# Matches an escaped line end, such as \n, but not LaTeX commands such as \neq.
_LINE_END = re.compile(r"(?<!\\)(?:\\r)?\\n(?![a-z])|(?<=[.!?。！？,，;；])(?:\\r)?\\n")
_ITEM = re.compile(rf"\s*\d{{1,4}}(?:[.．)]\s+|、\s*)(?=[{CHINESE}]|\S.*\?\s*$)")  # excludes "1. FC Köln"
_OTHER_ITEM = re.compile(r"\S\s*\d{1,4}(?:[.．)]\s|、)")
_LONG_RUN = re.compile(r"…{3,}|—{3,}|([-.:*#=_+^|])\1{3,}")  # shortened to "……", "——" and "...", "---", "===", ...


def tidy(text: str) -> str:
    """Collapse runs of whitespace into single spaces, and strip both ends. All later steps require this."""
    if text.isprintable() and "  " not in text and "\u2581" not in text:
        return text.strip()  # a fast path, because printable texts contain no other whitespace than spaces
    return _SPACES.sub(" ", text).strip()


def removed_characters() -> frozenset[str]:
    """Return the characters below U+10000 that `tidy` and the rule "control" always remove."""
    candidates = [c for c in map(chr, range(0x10000)) if not c.isprintable() or c in " \u2581"]
    return frozenset(c for c in candidates if tidy(_remove_control(c)) != c and c != "\u200d")


def cleaner(rules: Collection[str], changed: Counter[str] | None = None) -> Callable[[str], str]:
    """Return a function that cleans a text with these rules, in the order of TEXT_RULES, and then calls `tidy`.

    Args:
        rules: Names of cleaning rules; rules that drop pairs are ignored.
        changed: Counter that is increased by one for each utterance that a rule changes, by rule.

    Raises:
        UserError: If a rule requires a library that is not installed.
    """
    functions: dict[str, Callable[[str], str]] = {
        "markup": _remove_markup,
        "nfkc": lambda text: unicodedata.normalize("NFKC", text),
        "control": _remove_control,
        "spaces": lambda text: _SPACE_NEXT_TO_CHINESE.sub("", text),
        "simplified": _simplifier() if "simplified" in rules else tidy,
        "urls": lambda text: _URL.sub(" ", text),
        "names": lambda text: _NAME.sub(" ", text),
        "punctuation": lambda text: _LONG_RUN.sub(_shorten_run, _REPEATED.sub(r"\1", text)),
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


def is_segmented(text: str) -> bool:
    """Return whether a text has spaces between its Chinese words. Each line of the text is an utterance."""
    segmented = unsegmented = 0
    for utterance in text[:MAX_EXAMINED].splitlines():
        lengths = [len(run) for run in _CHINESE.findall(utterance)]
        if sum(lengths) >= MIN_CHARACTERS:
            spaces = len(_SPACED.findall(utterance))
            is_segmented_line = (
                spaces >= MIN_SPACE_FRACTION * (sum(lengths) - 1)
                and max(lengths) <= MAX_WORD_LENGTH
                and min(lengths) == 1
            )
            segmented += is_segmented_line
            unsegmented += not is_segmented_line
    return segmented >= MIN_SEGMENTED and segmented >= MIN_SEGMENTED_FRACTION * (segmented + unsegmented)


def _remove_markup(text: str) -> str:
    """Remove HTML, Markdown, escapes and item numbers, but not text that merely resembles markup."""
    if _MAY_BE_MARKUP.search(text) is None:
        return text
    if "<" in text:
        text = _BLOCK_TAG.sub(" ", _INLINE_TAG.sub("", text))
    if "&" in text:
        text = _ENTITY.sub(_unescape, text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    if "\\n" in text and ":\\" not in text:
        text = _LINE_END.sub(" ", text)
    text = text.replace("_comma_", ",")
    if (item := _ITEM.match(text)) and _OTHER_ITEM.search(text, item.end()) is None:
        text = text[item.end() :]
    return text


def _unescape(entity: "re.Match[str]") -> str:
    character = html.unescape(entity.group())
    return " " if "\ufffd" in character else character


def _remove_control(text: str) -> str:
    """Replace control characters with spaces and delete format characters, such as soft hyphens."""
    if text.isprintable():
        return text
    result = ""
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        if category == "Cc" and not character.isspace():
            result += " "
        elif category != "Cf" or _in_emoji(result[-1:], character, text[index + 1 : index + 2]):
            result += character
    return result


def _in_emoji(before: str, character: str, after: str) -> bool:
    """Return whether an invisible format character is part of an emoji, such as a joiner between two symbols."""
    if character == "\u200d":
        return _is_symbol(before) and _is_symbol(after)
    return "\U000e0020" <= character <= "\U000e007f" and (before == "🏴" or "\U000e0020" <= before <= "\U000e007f")


def _is_symbol(character: str) -> bool:
    # Skin tones have the category Sk, and some arrows have Sm. U+FE0F turns the previous character into an emoji.
    return character == "\ufe0f" or (character != "" and unicodedata.category(character) in ("So", "Sk", "Sm"))


def _shorten_run(match: "re.Match[str]") -> str:
    return match.group()[: 2 if match.group()[0] in "…—" else 3]


def _simplifier() -> Callable[[str], str]:
    try:
        import opencc
    except ModuleNotFoundError:
        raise UserError("--clean simplified: OpenCC is not installed; run `.venv/bin/pip install opencc`") from None
    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert
