"""The settings of python -m chatbot.attempts and its commands."""

import dataclasses
from pathlib import Path

from chatbot.config.attempts import attempt_directory
from chatbot.errors import UserError
from chatbot.flags import check_fields, setting

ATTEMPTS, OUTPUT = "attempts", "output"
PICTURES = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class ListSettings:
    """The settings of the table."""

    json: bool = setting(False, OUTPUT, "print one JSON object per attempt, each on its own line", kind=bool)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class CompareSettings:
    """The settings of compare."""

    attempts: tuple[str, ...] = setting(
        (), ATTEMPTS, "two attempts or more: their names, or the paths of their folders", many=True, metavar="ATTEMPT"
    )
    plot: str | None = setting(
        None,
        OUTPUT,
        "file for the picture of the curves, .png, .svg or .pdf; default: curves-ATTEMPT-ATTEMPT.png in the current "
        "folder",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if len(set(self.attempts)) < 2:
            raise UserError(f"compare {' '.join(self.attempts)}".rstrip() + ": give two different attempts or more")
        if self.plot is not None and Path(self.plot).suffix.lower() not in PICTURES:
            raise UserError(f"--plot {self.plot}: give the name of a file that ends in {', '.join(PICTURES)}")
        if self.plot is not None and (not Path(self.plot).parent.is_dir() or Path(self.plot).is_dir()):
            raise UserError(f"--plot {self.plot}: give the name of a file in an existing folder")


@dataclasses.dataclass(frozen=True)
class PruneSettings:
    """The settings of prune."""

    attempts: tuple[str, ...] = setting(
        (),
        ATTEMPTS,
        "the names of attempts; default: all in checkpoints/ and tensorboard/",
        many=True,
        metavar="ATTEMPT",
    )
    keep: int | None = setting(
        None,
        ATTEMPTS,
        "number of newest checkpoints of an attempt that stay, beside the best one; default: the attempt's own --keep",
        kind=int,
        least=1,
    )
    yes: bool = setting(False, ATTEMPTS, "remove what is listed; without it, nothing is removed", kind=bool)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.attempts:
            check_name("prune", name)


@dataclasses.dataclass(frozen=True)
class RenameSettings:
    """The settings of rename."""

    names: tuple[str, ...] = setting((), ATTEMPTS, "the old name and the new one", many=True, metavar="NAME")

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.names) != 2:
            raise UserError(f"rename {' '.join(self.names)}".rstrip() + ": give the old name and the new one")
        for name in self.names:
            check_name("rename", name)


@dataclasses.dataclass(frozen=True)
class AverageSettings:
    """The settings of average."""

    checkpoints: tuple[str, ...] = setting(
        (),
        ATTEMPTS,
        "the name of an attempt, then those of its checkpoints, such as ckpt-1000; default: all of its checkpoints",
        many=True,
        metavar="ATTEMPT",
    )
    to: str | None = setting(None, ATTEMPTS, "name of the new attempt; default: ATTEMPT-average", metavar="NAME")

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.checkpoints:
            raise UserError("average: give an attempt")
        check_name("average", self.checkpoints[0])
        check_name("--to", self.target)

    @property
    def target(self) -> str:
        """The name of the new attempt."""
        return self.to or f"{self.checkpoints[0]}-average"


def check_name(command: str, name: str) -> None:
    """Raise UserError for a name that no attempt can have."""
    try:
        attempt_directory(name)
    except UserError as error:
        raise UserError(str(error).replace("--attempt", command, 1)) from None
