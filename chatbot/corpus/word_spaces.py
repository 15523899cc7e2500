"""Detection of corpora that were published with spaces between Chinese words, which nobody types in a chat."""

import contextlib
import dataclasses
import itertools
import re
from pathlib import Path

from chatbot.config.corpus import NONE, CorpusSettings
from chatbot.corpus.reading.files.text_file import open_text_files
from chatbot.corpus.reading.report import Report
from chatbot.corpus.training_set import training_files

SPACES = "spaces"  # the cleaning rule
# Texts of an archive that are examined, and characters of each.
TEXTS, EXAMINED = 8, 50_000
# An utterance is cut into words if spaces are at this share of the places between its Chinese characters, no word is
# longer, and one is a single character: words have 1.6 characters on average. In other text, spaces separate clauses or
# keywords.
FEWEST_CHARACTERS, LEAST_SHARE, LONGEST_WORD = 6, 0.4, 6
# A corpus is cut into words if at least this many of its first utterances are, and this share of them: in some corpora
# only the questions are.
FEWEST_UTTERANCES, LEAST_UTTERANCES = 5, 0.4

_UTTERANCE = re.compile(r'[^\t\r\n",]+')
_CHINESE = re.compile("[\u4e00-\u9fff]+")
_SPACED = re.compile("(?<=[\u4e00-\u9fff]) +(?=[\u4e00-\u9fff])")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")  # of JSON


def without_word_spaces(settings: CorpusSettings) -> CorpusSettings:
    """Return the settings, with the cleaning rule "spaces" if a file has spaces between its Chinese words.

    The beginning of each file decides; one line names the first such file. `--clean none` adds no rule.
    Raises UserError when a file cannot be used.
    """
    if SPACES in settings.clean or NONE in settings.clean:
        return settings
    for source in training_files(settings).sources:
        if source.kind != "chatterbot" and any(_is_cut(path, source.name, settings) for path in source.paths):
            print(f"{source.name}: the spaces between its Chinese words are removed, as in chat (--clean {SPACES}).")
            return dataclasses.replace(settings, clean=(*settings.clean, SPACES))
    return settings


def _is_cut(path: Path, name: str, settings: CorpusSettings) -> bool:
    with contextlib.closing(open_text_files(path, name, Report(), encoding=settings.encoding)) as texts:
        return any(is_cut_into_words(text.sample) for text in itertools.islice(texts, TEXTS))


def is_cut_into_words(text: str) -> bool:
    """Return whether spaces separate the Chinese words of a text, whatever its format."""
    text = text[:EXAMINED]
    if "\\u" in text:
        text = _ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), text)
    cut = whole = 0
    for utterance in _UTTERANCE.findall(text):
        lengths = [len(run) for run in _CHINESE.findall(utterance)]
        if sum(lengths) >= FEWEST_CHARACTERS:
            spaces = len(_SPACED.findall(utterance))
            is_cut = spaces >= LEAST_SHARE * (sum(lengths) - 1) and max(lengths) <= LONGEST_WORD and min(lengths) == 1
            cut, whole = cut + is_cut, whole + (not is_cut)
    return cut >= FEWEST_UTTERANCES and cut >= LEAST_UTTERANCES * (cut + whole)
