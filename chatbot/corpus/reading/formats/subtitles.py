"""Subtitles: SubRip and WebVTT (.srt, .vtt), SubStation Alpha (.ass, .ssa).

Adjacent cues are turns of a conversation, which ends with a pause. A cue that continues a sentence belongs to the cue
before it. Two lines with dashes are turns of two people. Of cues in two languages, one of them Chinese, the Chinese
lines are used. Styles, drawings, music and descriptions of sounds are removed.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair, Turn, pairs_of_turns
from chatbot.corpus.reading.display import CHINESE
from chatbot.corpus.reading.formats.chat import MAX_TURN, joined
from chatbot.corpus.reading.formats.chat_logs import speakers_of
from chatbot.corpus.reading.open.text_file import TextFile, lines
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

PAUSE = 8.0  # seconds between two cues, after which the second begins a conversation
MAX_LINES = 20  # of a cue
NO_SPEECH = "cues without speech"
ROLLING = 0.3  # of the cues begin with the last line of the one before: youtube.vtt
BILINGUAL = 0.5  # of the cues have lines with and without Chinese

_CLOCK = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_TIMES = re.compile(rf"\s*{_CLOCK}\s*-->\s*{_CLOCK}(?:\s.*)?")
_ASS_CLOCK = re.compile(r"\s*(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.:,](\d{1,3})\s*")
_ASS_FIELDS = ("Layer", "Start", "End", "Style", "Name", "MarginL", "MarginR", "MarginV", "Effect", "Text")

_STYLES = re.compile(r"\{[^{}]*\}|</?[A-Za-z][^<>]*>|<[\d:.]+>")
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
_SOUNDS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|（[^（）]*）|【[^【】]*】|[♪♫][^♪♫]*[♪♫]|[♪♫]")
_SPEAKER = re.compile(r"[A-Z][A-Z .'-]{1,30}:\s+")
_DASH = re.compile(r"[-–—－]\s*")
_CHINESE = re.compile(f"[{CHINESE}]")
_CONTINUED = re.compile(r"[,，、;；:：]$")  # the end of a cue whose sentence goes on
_ENDED = re.compile(r"(?:[!?。！？\"'”’」)]|(?<!\.)\.)$")


class _Cue(NamedTuple):
    start: float  # seconds
    end: float
    lines: list[str]


def is_srt(text: TextFile) -> bool:
    """Return whether the lines are those of an .srt or .vtt file: times with an arrow."""
    filled = [line for line in text.first_lines if line.strip()]
    times = [number for number, line in enumerate(filled) if _TIMES.fullmatch(line.rstrip("\r\n"))]
    is_vtt = filled[0].startswith("WEBVTT")
    return bool(times) and (is_vtt or (times[0] <= 3 and len(times) >= 0.15 * len(filled)))


def is_ass(text: TextFile) -> bool:
    """Return whether the lines are those of an .ass or .ssa file."""
    starts = [line.strip().casefold() for line in text.first_lines if line.strip()]
    return starts[0].startswith("[script info]") or (
        "[events]" in starts and any(line.startswith("dialogue:") for line in starts)
    )


def read_srt(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of an .srt or .vtt file. Raises UserError for captions that repeat lines while they scroll."""
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(text.first_lines, start=1))
    sample = [cue for cue in _srt_cues(numbered, text.place, Report()) if cue]
    cues = _srt_cues(lines(text, report), text.place, report)
    if _is_rolling(sample):
        raise UserError(f"{text.place}: captions that repeat lines while they scroll; give subtitles that do not")
    speakers = speakers_of([shown[0] for cue in sample if (shown := _plain(cue.lines))])
    return pairs_of_turns(_turns(cues, _is_bilingual(sample), report, text.place, speakers))


def read_ass(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of an .ass or .ssa file."""
    cues = sorted(_ass_cues(text, report), key=lambda cue: cue.start)
    together = [
        _Cue(start, max(cue.end for cue in same), list(dict.fromkeys(line for cue in same for line in cue.lines)))
        for start, group in groupby(cues, lambda cue: cue.start)
        if (same := list(group))
    ]
    return pairs_of_turns(_turns(together, _is_bilingual(together), report, text.place))


def _srt_cues(numbered: Iterable[tuple[int, str | None]], place: str, report: Report) -> Iterator[_Cue | None]:
    """Yield the cues, and None where a line is missing."""
    cue: _Cue | None = None
    is_open = False  # whether the next line belongs to the cue: a blank line ends it
    for number, line in numbered:
        if line is not None and "-->" in line:
            if cue is not None:
                yield cue
            cue, is_open = None, True
            if match := _TIMES.fullmatch(line):
                cue = _Cue(_seconds(match.groups()[:4]), _seconds(match.groups()[4:]), [])
            else:
                report.drop("cues without a time", f"{place}, line {number}")
                yield None
        elif line is None:
            cue = None
            yield None
        elif not line.strip():
            is_open = is_open and line != "" and cue is not None and not cue.lines  # YouTube's first line is a space
        elif cue is not None and is_open and len(cue.lines) < MAX_LINES:
            cue.lines.append(line)
    if cue is not None:
        yield cue


def _ass_cues(text: TextFile, report: Report) -> Iterator[_Cue]:
    fields = [field.casefold() for field in _ASS_FIELDS]
    in_events = True
    for number, line in lines(text, report):
        name, colon, rest = (line or "").partition(":")
        name = name.strip().casefold()
        if name.startswith("["):
            in_events = name.startswith("[events]")
        elif colon and in_events and name == "format":
            fields = [field.strip().casefold() for field in rest.split(",")]
        elif colon and in_events and name == "dialogue":
            values = dict(zip(fields, rest.split(",", len(fields) - 1), strict=False))
            times = [_ASS_CLOCK.fullmatch(values.get(field, "")) for field in ("start", "end")]
            if times[0] and times[1] and "text" in values:
                content = "" if _DRAWING.search(values["text"]) else re.sub(r"\\[Nn]", "\n", values["text"])
                start, end = (_seconds(match.groups()) for match in times if match)
                yield _Cue(start, end, content.replace("\\h", " ").split("\n"))
            else:
                report.drop("cues without a time", f"{text.place}, line {number}")


def _seconds(fields: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = fields
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + float(f"0.{fraction}")


def _is_bilingual(cues: Iterable[_Cue | None]) -> bool:
    """Return whether most cues have both lines with Chinese and lines without."""
    scripts = [{_CHINESE.search(line) is not None for line in _plain(cue.lines)} for cue in cues if cue]
    scripts = [kinds for kinds in scripts if kinds]
    return bool(scripts) and sum(len(kinds) == 2 for kinds in scripts) >= BILINGUAL * len(scripts)


def _is_rolling(cues: Sequence[_Cue]) -> bool:
    """Return whether the cues repeat the last line of the one before, as YouTube's captions do while they scroll."""
    texts = [text for cue in cues if (text := _plain(cue.lines))]
    repeated = sum(first[-1] == second[0] for first, second in pairwise(texts))
    return len(texts) > 2 and repeated >= ROLLING * (len(texts) - 1)


def _plain(cue_lines: Sequence[str]) -> list[str]:
    """Return the lines without styles and sounds; lines without any text are left out."""
    texts = (html.unescape(_STYLES.sub("", line)) for line in cue_lines)
    plain = (_SPEAKER.sub("", _SOUNDS.sub(" ", text).strip(), count=1) for text in texts)
    return [line.strip() for line in plain if line.strip(" -–—－")]


def _turns(
    cues: Iterable[_Cue | None], chinese_only: bool, report: Report, place: str, speakers: Sequence[str] = ()
) -> Iterator[Turn | None]:
    speaker = ""  # of the last cue, where the cues begin with names
    turn = ""
    end = 0.0  # of the last cue
    for cue in cues:
        if cue is None or cue.start - end > PAUSE:
            yield from (Turn(turn) if turn else None, None)
            turn = ""
        if cue is None:
            continue
        end = cue.end
        texts = _texts_of(cue, chinese_only)
        if not texts:
            report.drop(NO_SPEECH, place)
        for number, text in enumerate(texts):
            name, colon, rest = text.partition(":")
            is_named = bool(colon) and name.strip() in speakers
            same = is_named and name.strip() == speaker
            if is_named:
                speaker, text = name.strip(), rest.strip()
            if not text:
                continue
            if turn and len(turn) <= MAX_TURN and not number and (same or (not is_named and _continues(turn, text))):
                turn = joined([turn, text])
            else:
                if turn:
                    yield Turn(turn)
                turn = text
    if turn:
        yield Turn(turn)


def _texts_of(cue: _Cue, chinese_only: bool) -> list[str]:
    """Return the turns of a cue: several if its lines begin with dashes."""
    shown = _plain(cue.lines)
    if chinese_only:
        shown = [line for line in shown if _CHINESE.search(line)] or shown
    turns: list[list[str]] = []
    for line in shown:
        if _DASH.match(line) or not turns:
            turns.append([])
        turns[-1].append(_DASH.sub("", line, count=1) if _DASH.match(line) else line)
    return [joined(turn) for turn in turns]


def _continues(turn: str, text: str) -> bool:
    """Return whether a text goes on with the sentence of the turn before it."""
    return _CONTINUED.search(turn) is not None or (text[0].islower() and not _ENDED.search(turn))
