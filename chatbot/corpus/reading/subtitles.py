"""Subtitles: .srt, .vtt, .smi and .sub (MicroDVD), SubStation Alpha (.ass, .ssa), by the parser of pysubs2.

Adjacent cues are turns of a conversation, which ends with a pause. A cue that continues a sentence belongs to the cue
before it. Two lines with dashes are turns of two people. Of cues in two languages, one of them Chinese, the Chinese
lines are used. Styles, drawings, music and descriptions of sounds are removed.
"""

import functools
import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import pysubs2

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.marked_text import speakers
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, decoded, whole_text
from chatbot.corpus.reading.turns import MAX_TURN, Said, joined, pairs_of_turns
from chatbot.display import CHINESE
from chatbot.errors import UserError

PAUSE = 8.0  # seconds between two cues, after which the second begins a conversation
LONGEST_LINE = 1000  # characters; pysubs2 takes quadratic time for those of hostile lines
FRAMES = 25.0  # a second, of .sub files that do not say it
NO_SPEECH = "cues without speech"
ROLLING = 0.3  # of the cues begin with the last line of the one before: youtube.vtt
BILINGUAL = 0.5  # of the cues have lines with and without Chinese

_FRAMES = re.compile(r"\{\d+\}\{\d*\}")
_TIMES = re.compile(r"\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}(?:\s.*)?")
_VOICE = re.compile(r"<v(?:\.[\w.]+)? ([^<>]{1,60})>")
_INLINE_TIMES = re.compile(r"<[\d:.]+>")
_SOUNDS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|（[^（）]*）|【[^【】]*】|[♪♫][^♪♫]*[♪♫]|[♪♫]")
_CAPITALS = re.compile(r"[A-Z][A-Z .'-]{1,30}:\s+")
_DASH = re.compile(r"^[-–—－]\s*", re.MULTILINE)
_CHINESE = re.compile(f"[{CHINESE}]")
_CONTINUED = re.compile(r"[,，、;；:：]$")  # the end of a cue whose sentence goes on
_ENDED = re.compile(r"(?:[!?。！？\"'”’」)]|(?<!\.)\.)$")


class _Cue(NamedTuple):
    start: float  # seconds
    end: float
    lines: list[str]  # without styles and sounds


def is_srt(text: TextFile) -> bool:
    """Return whether the lines are those of an .srt, .vtt, .smi or .sub file."""
    return _kind_of(text) != ""


def _kind_of(text: TextFile) -> str:
    """Return what pysubs2 calls the format of subtitles, other than .ass: by times with an arrow, tags or frames."""
    filled = text.filled
    if filled[0].strip().casefold().startswith("<sami>"):
        return "sami"
    if all(map(_FRAMES.match, filled)):
        return "microdvd"
    times = [number for number, line in enumerate(filled) if _TIMES.fullmatch(line)]
    is_vtt = filled[0].startswith("WEBVTT")
    return ("vtt" if is_vtt else "srt") if times and (is_vtt or times[0] <= 3) else ""


def is_ass(text: TextFile) -> bool:
    """Return whether the lines are those of an .ass or .ssa file."""
    starts = [line.strip().casefold() for line in text.filled]
    has_events = "[events]" in starts and any(line.startswith("dialogue:") for line in starts)
    return starts[0].startswith("[script info]") or has_events


def read_subtitles(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs. Raises UserError for captions that repeat lines while they scroll."""
    kind = "ass" if is_ass(text) else _kind_of(text) or "srt"
    content = "\n".join(line[:LONGEST_LINE] for line in whole_text(text, "subtitles").split("\n"))
    content = _INLINE_TIMES.sub("", content)
    content = _VOICE.sub(r"\1: ", content) if kind == "vtt" else content
    try:
        events = sorted(pysubs2.SSAFile.from_string(content, format_=kind, fps=FRAMES), key=lambda event: event.start)
    except (pysubs2.exceptions.Pysubs2Error, ValueError, ArithmeticError, LookupError) as error:
        raise UserError(f"{text.place}: damaged subtitles ({type(error).__name__}); download them again") from None
    cues = []
    for start, together in groupby((event for event in events if not event.is_comment), lambda event: event.start):
        same = [*together]
        shown = dict.fromkeys(line for event in same if not event.is_drawing for line in event.plaintext.split("\n"))
        plain = (_CAPITALS.sub("", _SOUNDS.sub(" ", html.unescape(line)).strip(), count=1).strip() for line in shown)
        spoken = [line for line in plain if line.strip(" -–—－")]
        cues.append(_Cue(start / 1000, max(event.end for event in same) / 1000, spoken))
    if _is_rolling(cues):
        raise UserError(f"{text.place}: captions that repeat lines while they scroll; give subtitles that do not")
    drop = functools.partial(report.drop, place=text.place)
    return decoded(pairs_of_turns(_turns(cues, report, text.place), drop), text, report, drop)


def _is_bilingual(cues: Sequence[_Cue]) -> bool:
    """Return whether most cues have both lines with Chinese and lines without."""
    scripts = [{_CHINESE.search(line) is not None for line in cue.lines} for cue in cues if cue.lines]
    return bool(scripts) and sum(len(kinds) == 2 for kinds in scripts) >= BILINGUAL * len(scripts)


def _is_rolling(cues: Sequence[_Cue]) -> bool:
    """Return whether the cues repeat the last line of the one before, as YouTube's captions do while they scroll."""
    texts = [cue.lines for cue in cues if cue.lines]
    repeated = sum(first[-1] == second[0] for first, second in pairwise(texts))
    return len(texts) > 2 and repeated >= ROLLING * (len(texts) - 1)


def _turns(cues: Sequence[_Cue], report: Report, place: str) -> Iterator[Said | None]:
    chinese_only = _is_bilingual(cues)
    firsts = [cue.lines[0].partition(":") for cue in cues if cue.lines]
    names = speakers((name.strip() for name, colon, _ in firsts if colon), len(firsts))
    speaker = ""  # of the last cue, where the cues begin with names
    turns = [""]  # with "" for a pause
    end = 0.0  # of the last cue
    for cue in cues:
        if cue.start - end > PAUSE:
            turns.append("")
        end = cue.end
        spoken = [line for line in cue.lines if _CHINESE.search(line)] if chinese_only else []
        said = [joined(turn.splitlines()) for turn in _DASH.split("\n".join(spoken or cue.lines)) if turn]
        if not said:
            report.drop(NO_SPEECH, place)
        for number, text in enumerate(said):
            name, colon, rest = text.partition(":")
            before = turns[-1]
            goes_on = _continues(turns[-1], text)
            if colon and name.strip() in names:
                goes_on = name.strip() == speaker
                speaker = name.strip()
                text = rest.strip()
            if before and text and goes_on and number == 0 and len(before) <= MAX_TURN:
                turns[-1] = joined([before, text])
            elif text:
                turns.append(text)
    return (Said(turn) if turn else None for turn in turns)


def _continues(turn: str, text: str) -> bool:
    """Return whether a text goes on with the sentence of the turn before it."""
    return _CONTINUED.search(turn) is not None or (text[0].islower() and not _ENDED.search(turn))
