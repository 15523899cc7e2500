"""DailyDialog (Li et al., 2017): its parts under two splits, and measures of replies by published formulas.

No data are fetched: the user has the corpus, whose licence is CC BY-NC-SA 4.0. The published figures are in
published.json:

- official: Bao et al., PLATO, ACL 2020, their table of DailyDialog. The same parts, lower-cased, BLEU and distinct as
  PLATO computes them. Their models read all turns before the reply; this one reads one, or --history more. BLEU is the
  mean of the replies' own, by NLTK 3.4.5 with smoothing 7, by which a perfect reply has more than 1.
- published: Csáky et al., Improving Neural Conversational Models with Entropy-Based Data Filtering, ACL 2019, their
  table of unfiltered DailyDialog, and the least validation loss of their figure 5. The same dialogues (80, 10 and 10 of
  each hundred) and cleaned words, BLEU (smoothing 4) and distinct as dialog-eval computes them. The model and distinct
  have UNK for each word outside the most common ones of training.
"""

import dataclasses
import functools
import itertools
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from chatbot.errors import UserError
from chatbot.evaluation.measures import distinct, ranked_first

Words = list[str]
Dialogue = list[Words]

END = "__eou__"
PARTS = TRAINING, VALIDATION, TEST = "train", "validation", "test"
OFFICIAL, PUBLISHED_SPLIT = "official", "published"
PUBLISHED: dict[str, dict[str, dict[str, float]]] = json.loads(Path(__file__).with_name("published.json").read_text())
WHOLE = "dialogues_text.txt"  # all dialogues, of which the published split is
KNOWN_WORDS = 16_384  # of the published split
UNKNOWN = "UNK"  # which no cleaned text has
# Weights of the precisions of n-grams in BLEU-1 to BLEU-4. dialog-eval has .33, not 1/3.
WEIGHTS = ((1.0,), (0.5,) * 2, (0.33,) * 3, (0.25,) * 4)


@dataclasses.dataclass(frozen=True)
class DailyDialog:
    """The dialogues of each part. A dialogue has the words of its turns."""

    split: str
    parts: dict[str, list[Dialogue]]

    def pairs(self, part: str) -> list[tuple[str, str]]:
        """Return each turn of a part with the next one, in the order in which training reads them."""
        return [pair for turns in self.parts[part] for pair in itertools.pairwise(map(" ".join, turns))]

    def model_words(self, words: Words) -> Words:
        """Return words as a model reads them: with the published split, `UNKNOWN` for all but the known ones."""
        return words if self.split == OFFICIAL else [word if word in self._known else UNKNOWN for word in words]

    @functools.cached_property
    def _known(self) -> set[str]:
        counts = Counter(word for turns in self.parts[TRAINING] for words in turns for word in words)
        return {word for word, _ in counts.most_common(KNOWN_WORDS)}

    def write(self, folder: Path) -> dict[str, Path]:
        """Write each part as a file that training reads. Raises UserError for a part without pairs."""
        files = {part: folder / f"{part}.txt" for part in PARTS}
        for part, file in files.items():
            if not self.pairs(part):
                raise UserError(f"the {part} part of DailyDialog has no two turns in a row; give its own folder")
            with file.open("w", encoding="utf-8") as stream:
                for turns in self.parts[part]:
                    print(*(f"{' '.join(self.model_words(words))} {END}" for words in turns), file=stream)
        return files

    def measure(self, pairs: Sequence[tuple[str, str]], replies: Sequence[str]) -> dict[str, float | None]:
        """Return the published measures of a reply to each question."""
        words, number = [reply.split() for reply in replies], max(1, len(pairs))
        model_words, shares = (
            [*map(self.model_words, words)],
            ranked_first([question for question, _ in pairs], replies),
        )
        answers = [answer.split() for _, answer in pairs]
        scores = [bleu(*texts, self.split == OFFICIAL) for texts in zip(words, answers, strict=True)]
        return {
            "mean_words": sum(map(len, words)) / number,
            "distinct_1": distinct(model_words, 1),
            "distinct_2": distinct(model_words, 2),
            **{f"bleu_{n}": sum(score[n - 1] for score in scores) / number for n in range(1, 5)},
            "relevance_at_1": None if shares is None else float(shares.mean()),
        }


def words_and_ends(pairs: Iterable[tuple[str, str]]) -> int:
    """Return the number of words of the answers, each with an end symbol."""
    return sum(len(answer.split()) + 1 for _, answer in pairs)


def read_dailydialog(folder: Path, split: str) -> DailyDialog:
    """Return the dialogues, turns without words left out. Raises UserError for a missing or unusable file.

    The published split is of the file with all dialogues or, without it, of the three parts in turn.
    """
    if split == OFFICIAL:
        return DailyDialog(split, {p: [_dialogue(line, str.lower) for line in _lines(folder, p)] for p in PARTS})
    whole = folder / WHOLE
    lines = _read(whole) if whole.exists() else [line for part in PARTS for line in _lines(folder, part)]
    parts: dict[str, list[Dialogue]] = {part: [] for part in PARTS}
    for number, line in enumerate(lines):
        parts[PARTS[max(0, number % 100 // 10 - 7)]].append(_dialogue(line, cleaned))
    return DailyDialog(split, parts)


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
        file: Any = zipfile.Path(path, member) if path.suffix == ".zip" else path
        text: str = file.read_text(encoding="utf-8")
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


def bleu(reply: Sequence[str], reference: Sequence[str], averaged: bool) -> list[float]:
    """Return BLEU-1 to BLEU-4 of a reply, smoothed by a method of Chen and Cherry (2014) as NLTK 3.4.5 has it.

    Method 4: a precision of 0 becomes 1 / (n - 1 + 5 / ln(length)). averaged: method 7, in which each precision then
    becomes the mean of itself, the one before as it became, and the one after; before the first is 1 more than it. All
    are 0 for less than two words, whose logarithm is 0, and for no common word.
    """
    precisions = list[float]()
    for n in range(1, 6):
        ours, theirs = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (reply, reference))
        common = (ours & theirs).total()
        if len(reply) < 2 or (n == 1 and not common):
            return [0.0] * 4
        smoothed = 1 / (n - 1 + 5 / math.log(len(reply))) if n < 5 else 0.0  # the fifth only follows the fourth
        precisions.append(common / ours.total() if common else smoothed)
    if averaged:
        before = precisions[0] + 1
        for n in range(4):
            before = precisions[n] = (before + precisions[n] + precisions[n + 1]) / 3
    brevity = min(1.0, math.exp(1 - len(reference) / len(reply)))
    logarithms = [[w * math.log(p) for w, p in zip(weights, precisions, strict=False)] for weights in WEIGHTS]
    return [brevity * math.exp(sum(of_order)) for of_order in logarithms]
