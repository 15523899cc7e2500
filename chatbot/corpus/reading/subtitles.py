"""Reader for subtitles in the .srt, .vtt, .smi, .sub (MicroDVD), .ass and .ssa formats, which pysubs2 parses.

A cue is a text that is shown for a time. Each cue is a turn of a conversation, and a pause ends the conversation. If a
cue continues the sentence of the previous one, both are one turn. If the lines of a cue begin with dashes, each line is
a turn. If cues contain lines in Chinese and in another language, only the Chinese lines are used. Styles, drawings,
music and descriptions of sounds are removed.
"""

import functools
import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import pysubs2

from chatbot.corpus.reading.marked_text import speakers
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.text_file import TextFile, drop_undecodable, read_whole_text
from chatbot.corpus.reading.turns import MAX_TURN, Pair, Utterance, join_text, pairs_of_turns
from chatbot.display import CHINESE
from chatbot.errors import UserError

PAUSE = 8.0  # A conversation ends if there is no cue for this many seconds.
MAX_LINE = 1000  # maximum characters of a line; pysubs2 can take very long to parse longer ones
FRAMES = 25.0  # default frame rate of .sub files, in frames per second
NO_SPEECH = "cues without speech"
ROLLING = 0.3  # minimum fraction of cues that repeat the last line of the previous cue, for scrolling captions
BILINGUAL = 0.5  # minimum fraction of cues with both Chinese and other lines, for bilingual subtitles

_FRAMES = re.compile(r"\{\d+\}\{\d*\}")
_TIMES = re.compile(r"\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s*-->\s*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}(?:\s.*)?")
_VOICE = re.compile(r"<v(?:\.[\w.]+)? ([^<>]{1,60})>")
_INLINE_TIMES = re.compile(r"<[\d:.]+>")
_SOUNDS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|（[^（）]*）|【[^【】]*】|[♪♫][^♪♫]*[♪♫]|[♪♫]")
_CAPITALS = re.compile(r"[A-Z][A-Z .'-]{1,30}:\s+")
_DASH = re.compile(r"^[-–—－]\s*", re.MULTILINE)
_CHINESE = re.compile(f"[{CHINESE}]")
_CONTINUED = re.compile(r"[,，、;；:：]$")  # Matches the end of a cue whose sentence continues in the next cue.
_ENDED = re.compile(r"(?:[!?。！？\"'”’」)]|(?<!\.)\.)$")


class _Cue(NamedTuple):
    start: float  # seconds
    end: float  # seconds
    lines: list[str]  # spoken text, without styles and descriptions of sounds


def is_srt(text: TextFile) -> bool:
    """Return whether a text is an .srt, .vtt, .smi or .sub file."""
    return _detect_kind(text) != ""


def _detect_kind(text: TextFile) -> str:
    """Return pysubs2's name for the format of a text, or an empty string. Does not detect .ass files."""
    filled = text.filled
    if filled[0].strip().casefold().startswith("<sami>"):
        return "sami"
    if all(map(_FRAMES.match, filled)):
        return "microdvd"
    times = [number for number, line in enumerate(filled) if _TIMES.fullmatch(line)]
    is_vtt = filled[0].startswith("WEBVTT")
    return ("vtt" if is_vtt else "srt") if times and (is_vtt or times[0] <= 3) else ""


def is_ass(text: TextFile) -> bool:
    """Return whether a text is an .ass or .ssa file."""
    starts = [line.strip().casefold() for line in text.filled]
    has_events = "[events]" in starts and any(line.startswith("dialogue:") for line in starts)
    return starts[0].startswith("[script info]") or has_events


def read_subtitles(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of subtitles. Raises UserError if they are damaged or repeat lines while they scroll."""
    kind = "ass" if is_ass(text) else _detect_kind(text) or "srt"
    content = "\n".join(line[:MAX_LINE] for line in read_whole_text(text, "subtitles").split("\n"))
    content = _INLINE_TIMES.sub("", content)
    content = _VOICE.sub(r"\1: ", content) if kind == "vtt" else content
    try:
        events = sorted(pysubs2.SSAFile.from_string(content, format_=kind, fps=FRAMES), key=lambda event: event.start)
    except (pysubs2.exceptions.Pysubs2Error, ValueError, ArithmeticError, LookupError) as error:
        raise UserError(f"{text.place}: damaged subtitles ({type(error).__name__}); download them again") from None
    cues = []
    for start, group in groupby((event for event in events if not event.is_comment), lambda event: event.start):
        cue = [*group]
        shown = dict.fromkeys(line for event in cue if not event.is_drawing for line in event.plaintext.split("\n"))
        plain = (_CAPITALS.sub("", _SOUNDS.sub(" ", html.unescape(line)).strip(), count=1).strip() for line in shown)
        spoken = [line for line in plain if line.strip(" -–—－")]
        cues.append(_Cue(start / 1000, max(event.end for event in cue) / 1000, spoken))
    if _is_rolling(cues):
        raise UserError(f"{text.place}: captions that repeat lines while they scroll; give subtitles that do not")
    drop = functools.partial(report.drop, place=text.place)
    return drop_undecodable(pairs_of_turns(_turns(cues, report, text.place), drop), text, report, drop)


def _is_bilingual(cues: Sequence[_Cue]) -> bool:
    """Return whether most cues contain both Chinese lines and other lines."""
    scripts = [{_CHINESE.search(line) is not None for line in cue.lines} for cue in cues if cue.lines]
    return bool(scripts) and sum(len(kinds) == 2 for kinds in scripts) >= BILINGUAL * len(scripts)


def _is_rolling(cues: Sequence[_Cue]) -> bool:
    """Return whether many cues repeat the last line of the previous cue, like YouTube's scrolling captions."""
    texts = [cue.lines for cue in cues if cue.lines]
    repeated = sum(first[-1] == second[0] for first, second in pairwise(texts))
    return len(texts) > 2 and repeated >= ROLLING * (len(texts) - 1)


def _turns(cues: Sequence[_Cue], report: Report, place: str) -> Iterator[Utterance | None]:
    chinese_only = _is_bilingual(cues)
    firsts = [cue.lines[0].partition(":") for cue in cues if cue.lines]
    names = speakers((name.strip() for name, colon, _ in firsts if colon), len(firsts))
    speaker = ""  # speaker of the previous cue; "" if cues do not begin with names
    turns = [""]  # texts of the turns; "" stands for a pause
    end = 0.0  # time at which the previous cue ends, in seconds
    for cue in cues:
        if cue.start - end > PAUSE:
            turns.append("")
        end = cue.end
        spoken = [line for line in cue.lines if _CHINESE.search(line)] if chinese_only else []
        texts = [join_text(turn.splitlines()) for turn in _DASH.split("\n".join(spoken or cue.lines)) if turn]
        if not texts:
            report.drop(NO_SPEECH, place)
        for number, text in enumerate(texts):
            name, colon, rest = text.partition(":")
            previous = turns[-1]
            is_continued = _continues(previous, text)
            if colon and name.strip() in names:
                is_continued = name.strip() == speaker
                speaker = name.strip()
                text = rest.strip()
            if previous and text and is_continued and number == 0 and len(previous) <= MAX_TURN:
                turns[-1] = join_text([previous, text])
            elif text:
                turns.append(text)
    return (Utterance(turn) if turn else None for turn in turns)


def _continues(turn: str, text: str) -> bool:
    """Return whether a text continues an unfinished sentence at the end of a turn."""
    return _CONTINUED.search(turn) is not None or (text[0].islower() and not _ENDED.search(turn))
