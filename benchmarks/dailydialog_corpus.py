"""DailyDialog (Li et al., 2017): its parts under two splits, as words of turns, as pairs, and as files to train on."""

import dataclasses
import functools
import itertools
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from chatbot.errors import UserError

Words = list[str]
Dialogue = list[Words]

END = "__eou__"
PARTS = TRAINING, VALIDATION, TEST = "train", "validation", "test"
OFFICIAL, PUBLISHED_SPLIT = "official", "published"
WHOLE = "dialogues_text.txt"  # all dialogues, of which the published split is
# With the published split, all but the most common words of training are one word, which no cleaned text has.
KNOWN_WORDS = 16_384
UNKNOWN = "UNK"


@dataclasses.dataclass(frozen=True)
class DailyDialog:
    """The dialogues of each part. A dialogue has the words of its turns."""

    split: str
    parts: dict[str, list[Dialogue]]

    def pairs(self, part: str) -> list[tuple[str, str]]:
        """Return each turn of a part with the next one, in the order in which training reads them."""
        return _pairs_of([[" ".join(words) for words in turns] for turns in self.parts[part]])

    def model_pairs(self, part: str) -> list[tuple[str, str]]:
        """Return the pairs in the words that a model reads and writes."""
        return _pairs_of([[" ".join(self.model_words(words)) for words in turns] for turns in self.parts[part]])

    def model_words(self, words: Words) -> Words:
        """Return words as a model reads them: with the published split, `UNKNOWN` for all but the known ones."""
        return words if self.split == OFFICIAL else [word if word in self._known else UNKNOWN for word in words]

    @functools.cached_property
    def _known(self) -> set[str]:
        counts = Counter(word for turns in self.parts[TRAINING] for words in turns for word in words)
        return {word for word, _ in counts.most_common(KNOWN_WORDS)}

    def write(self, folder: Path) -> dict[str, Path]:
        """Write each part as a file that training reads. Raises UserError for a part without pairs."""
        files = {part: folder / f"{self.split}-{part}.txt" for part in PARTS}
        for part, file in files.items():
            if not self.pairs(part):
                raise UserError(f"the {part} part of DailyDialog has no two turns in a row; give its own folder")
            with file.open("w", encoding="utf-8") as stream:
                for turns in self.parts[part]:
                    print(*(f"{' '.join(self.model_words(words))} {END}" for words in turns), file=stream)
        return files


def read_dailydialog(folder: Path, split: str) -> DailyDialog:
    """Return the dialogues, turns without words left out. Raises UserError for a missing or unusable file."""
    if split == OFFICIAL:
        return DailyDialog(
            split, {part: [_dialogue(line, str.lower) for line in _lines(folder, part)] for part in PARTS}
        )
    whole = folder / WHOLE
    lines = _read(whole) if whole.exists() else [line for part in PARTS for line in _lines(folder, part)]
    parts: dict[str, list[Dialogue]] = {part: [] for part in PARTS}
    for number, line in enumerate(lines):
        parts[PARTS[max(0, number % 100 // 10 - 7)]].append(_dialogue(line, cleaned))
    return DailyDialog(split, parts)


def _pairs_of(dialogues: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [pair for turns in dialogues for pair in itertools.pairwise(turns)]


def _lines(folder: Path, part: str) -> list[str]:
    """Return the lines of a part: of a text file in the folder or in a folder of its name, or in an archive."""
    name = f"dialogues_{part}.txt"
    archive = folder / f"{part}.zip"
    path = next((path for path in (folder / name, folder / part / name, archive) if path.exists()), None)
    if path is None:
        raise UserError(f"{folder}: has neither {name} nor {archive.name}; give the folder of DailyDialog")
    return _read(path, f"{part}/{name}")


def _read(path: Path, member: str = "") -> list[str]:
    """Return the lines of a text file, or of this member of an archive."""
    try:
        text = (zipfile.Path(path, member) if path.suffix == ".zip" else path).read_text(encoding="utf-8")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        raise UserError(f"{path}: cannot be read; give the folder of DailyDialog as it was downloaded") from None
    if END not in text:
        raise UserError(f"{path}: no turn in it ends in {END}; give the folder of DailyDialog as it was downloaded")
    return text.rstrip("\n").split("\n")


def _dialogue(line: str, normalise: Callable[[str], str]) -> Dialogue:
    return [words for turn in line.split(END)[:-1] if (words := normalise(turn).split())]


def cleaned(turn: str) -> str:
    """Return a turn in the words of the published figures.

    Only lower-case letters, digits, spaces, apostrophes and . ? ! are kept. The marks are words; n't and what follows
    another apostrophe begin a word; an apostrophe in front of a word is left out.
    """
    text = re.sub(r"[^a-z0-9 .?!']", "", turn.lower())
    text = re.sub(r"([.?!])", r" \1 ", text).replace(" ' ", " ")
    text = re.sub(r" '(?=[a-z])", " ", text).replace("n't", " n't")
    return re.sub(r"([^ n])'(?=[^ t])", r"\1 '", text)
