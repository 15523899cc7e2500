"""The corpora of `quality`: their files for training, validation and test, and the groups of their test pairs."""

import dataclasses
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.dailydialog import OFFICIAL, PARTS, PUBLISHED_SPLIT, DailyDialog, read_dailydialog
from chatbot.display import counted
from chatbot.errors import UserError

SEED = 7
# One of as many conversations is held out.
HELD_OUT = 10
Pairs = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files of pairs.

    test: may be the file of validation. flags: of train.py. pairs: the texts of each part's pairs, in the order of
    reading, empty where they are not needed. groups: rows of test pairs that are measured for themselves. dialogues: of
    DailyDialog.
    """

    training: Path
    validation: Path
    test: Path
    flags: tuple[str, ...] = ()
    format: str | None = None
    pairs: Mapping[Path, Pairs] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    dialogues: DailyDialog | None = None


def pairs_of_lines(data: str, held_out: int, folder: Path) -> Corpus:
    """A file with a pair on each line, of which some are held out."""
    training, validation = split(data, held_out, folder)
    return Corpus(training, validation, validation)


def conversations(data: str, held_out: int, folder: Path) -> Corpus:
    """A file with a JSON list of utterances on each line; every tenth is held out. First and later turns are groups.

    No rule drops pairs, so that all runs learn and score the same turns.
    """
    lines = lines_of(data)
    if len(lines) < HELD_OUT:
        raise UserError(f"{data}: {counted(len(lines), 'conversation')}; at least {HELD_OUT} are needed")
    files = folder / "train.jsonl", folder / "held_out.jsonl"
    others = [line for number, line in enumerate(lines, 1) if number % HELD_OUT]
    for file, part in zip(files, (others, lines[HELD_OUT - 1 :: HELD_OUT]), strict=True):
        file.write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    talks = [json.loads(line) for line in lines[HELD_OUT - 1 :: HELD_OUT]]
    is_first = [turn == 0 for talk in talks for turn in range(len(talk) - 1)]
    groups = {name: [i for i, x in enumerate(is_first) if x == first] for name, first in (("first", 1), ("later", 0))}
    pairs = {files[1]: [pair for talk in talks for pair in itertools.pairwise(talk)]}
    return Corpus(*files, files[1], ("--clean", "control"), pairs=pairs, groups=groups)


def dailydialog(data: str, held_out: int, folder: Path, split: str = OFFICIAL) -> Corpus:
    """The folder of DailyDialog. Test pairs that do not stand word for word in train are a group."""
    dialogues = read_dailydialog(Path(data), split)
    files = dialogues.write(folder)
    pairs = {files[part]: dialogues.pairs(part) for part in PARTS}
    training, validation, test = (files[part] for part in PARTS)
    seen = {*pairs[training]}
    groups = {"unseen": [i for i, pair in enumerate(pairs[test]) if pair not in seen]}
    flags = ("--format", "eou", "--clean", "none")
    return Corpus(training, validation, test, flags, "eou", pairs, groups, dialogues)


def published_dailydialog(data: str, held_out: int, folder: Path) -> Corpus:
    """The same with the dialogues and words of another split's published figures."""
    return dailydialog(data, held_out, folder, PUBLISHED_SPLIT)


CORPORA = {
    "pairs": pairs_of_lines,
    "conversations": conversations,
    "dailydialog": dailydialog,
    "dailydialog-published": published_dailydialog,
}


def split(data: str, held_out: int, folder: Path) -> tuple[Path, Path]:
    """Write the lines of a file, shuffled, to a file to train on and a file of held-out ones.

    Raises UserError for a file that cannot be read and for too few lines.
    """
    lines = lines_of(data)
    if len(lines) <= held_out:
        raise UserError(
            f"--held-out {held_out}: {data} has {counted(len(lines), 'line')}, and training needs the others"
        )
    random.Random(SEED).shuffle(lines)
    suffix = Path(data).suffix
    paths = folder / f"train{suffix}", folder / f"held_out{suffix}"
    for path, part in zip(paths, (lines[held_out:], lines[:held_out]), strict=True):
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
    return paths


def lines_of(data: str) -> list[str]:
    """Return the lines of a file of text. Raises UserError for another one."""
    try:
        return Path(data).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise UserError(f"{data}: cannot be read as UTF-8; give a file with one pair on each line") from None
