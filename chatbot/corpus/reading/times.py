"""Times of messages, in the form that a file has: one form for all of them.

epoch     seconds, milliseconds or microseconds since 1970
days      the number of days since 1900, as Excel stores a date
compact   20240102090000
ymd, dmy, mdy    a date in this order and a clock, in any spelling: 2023/8/2 9:05, 10/6/2023 12:37 AM, Jan 05, 2023
"""

import datetime
import functools
import re
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

from chatbot.corpus.reading.names import any_of, expression

PAUSE = 3 * 60 * 60  # seconds without a message, after which the next one begins a conversation
DAY = 24 * 60 * 60

_AFTERNOON = ("下午", "晚上", "오후", "午後", "中午", "หลัง", "م", "p")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WORD = re.compile(r"\d+|[A-Za-z]{3}")
_HALF = re.compile(any_of("half"))
_NUMBER = re.compile(r"\d{1,16}(?:\.\d+)?")
_NO_YEAR = re.compile(r"(?:\d\d-|[A-Z][a-z]{2} )\d\d \d\d:\d\d:\d\d")  # of chatlog and HexChat, within a year
# A clock without a date tells no pause.
_CLOCK = re.compile(expression(r"\D{0,4}\d{1,2}:\d{2}(?::\d{2})?\s?(?:<half>)?"))
_COMPACT = re.compile(r"(?:19|20)\d{2}[01]\d[0-3]\d(?:[0-2]\d[0-5]\d(?:[0-5]\d)?)?")
_EXCEL = datetime.datetime(1899, 12, 30, tzinfo=datetime.timezone.utc).timestamp()
ORDERS = ("ymd", "dmy", "mdy")


def form_of(times: Iterable[str], order: str | None = None) -> tuple[str, str, bool]:
    """Return the form that all of these times have, "" if they have none, and what is not known of them.

    At last, whether the day as well as the month may come first; then something is not known if it matters.
    order: dmy or mdy, for such times. Empty times are left out.
    """
    texts = [text.strip() for text in times if text.strip()]
    if not texts or all(map(_CLOCK.fullmatch, texts)):
        return "", "", False
    fitting = [
        form for form in ("compact", "epoch", "days", *ORDERS) if all(seconds(t, form) is not None for t in texts)
    ]
    if not fitting:
        unread = next((t for t in texts if all(seconds(t, form) is None for form in ORDERS)), texts[0])
        return "", f"times such as {unread[:30]!r} are not understood, so that no pause ends a conversation", False
    if fitting == ["dmy", "mdy"] and order is None:
        matters = _divided(texts, "dmy") != _divided(texts, "mdy")
        return "dmy", f"times such as {texts[0][:30]!r} may begin with the day or the month" if matters else "", True
    form = order if order in fitting else fitting[0]
    late = max(texts, key=lambda text: seconds(text, form) or 0)
    is_late = (seconds(late, form) or 0) > time.time() + DAY
    unknown = f"times such as {late[:30]!r} lie in the future; pauses that are not real may end conversations"
    return form, unknown if is_late else "", False


def _divided(texts: Sequence[str], form: str) -> tuple[list[bool], bool]:
    """Return what times decide: after which ones a pause is, and whether the newest comes first."""
    known = [value for text in texts if (value := seconds(text, form)) is not None]
    steps = [after - before for before, after in pairwise(known)]
    return [abs(step) > PAUSE for step in steps], all(step <= 0 for step in steps)


@functools.lru_cache(maxsize=4096)  # many messages have the same minute
def seconds(text: str, form: str) -> float | None:
    """Return the seconds of a time in this form; None for any other text."""
    text = text.strip()
    text = f"2000-{text}" if _NO_YEAR.fullmatch(text) else text
    try:
        if form in ORDERS:
            return None if _NUMBER.fullmatch(text) else _date(_numbers(text), form, _HALF.search(text))
        if not _NUMBER.fullmatch(text):
            return None
        if form == "compact":
            parts = [text[:4], *(text[place : place + 2] for place in range(4, len(text), 2))]
            return _date([*map(int, parts)], "ymd", None) if _COMPACT.fullmatch(text) else None
        digits = len(text.partition(".")[0])
        if form == "epoch":
            return float(text) / 1000 ** max(0, (digits - 9) // 3) if digits > 8 else None
        return _EXCEL + float(text) * DAY if digits == 5 else None
    except (ValueError, OverflowError):
        return None


def _numbers(text: str) -> list[int]:
    """Return the numbers of a date and a clock, in their order; months may be words."""
    words = (word.lower() for word in _WORD.findall(text))
    return [
        MONTHS.index(word) + 1 if word in MONTHS else int(word) for word in words if word in MONTHS or word.isdecimal()
    ]


def _date(numbers: Sequence[int], order: str, half: "re.Match[str] | None") -> float:
    """Raises ValueError for numbers that are no date in this order."""
    if len(numbers) < 3:
        raise ValueError("no date")
    date = dict(zip(order, numbers, strict=False))
    hour, minute, second = [*numbers[3:6], 0, 0, 0][:3]
    if half:
        hour = hour % 12 + 12 * half[0].casefold().startswith(_AFTERNOON)
    if order == "ymd" and date["y"] < 32:
        raise ValueError("a day or a month comes first")
    year = date["y"] + 2000 if date["y"] < 100 else date["y"]
    second = second if second < 60 else 0  # of a text without seconds, another number
    return datetime.datetime(year, date["m"], date["d"], hour, minute, second, tzinfo=datetime.timezone.utc).timestamp()
