"""What the exporters have in common: flat records, and the run of a service that a resumed attempt goes on with."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.durable import write_file
from chatbot.evaluation.samples import Sample
from chatbot.training.result import INTERRUPTED


class Status(enum.Enum):
    """How a run has ended."""

    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


def status_of(stopped: str) -> Status:
    """Return the status that belongs to the reason of the end of a run, which is "" after an error."""
    if not stopped:
        return Status.FAILED
    return Status.INTERRUPTED if stopped == INTERRUPTED else Status.FINISHED


def flat_values(record: Mapping[str, Any], towers: Sequence[str]) -> dict[str, float]:
    """Return the finite numbers of a record by their names, without the step.

    A list with a value for each tower becomes one value a tower, with the name LIST/TOWER. Names have / for dots, by
    which services group their charts.
    """
    values: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, list):
            values |= {f"{name}/{tower}": each for tower, each in zip(towers, value, strict=False)}
        elif name != "step":
            values[name.replace(".", "/")] = value
    return {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}


def reply_table(samples: Sequence[Sample], replies: Sequence[str]) -> list[list[str]]:
    """Return a row for each sample: its question, the reply, and the reference."""
    return [[sample.question, reply, sample.answer] for sample, reply in zip(samples, replies, strict=True)]


REPLY_COLUMNS = ["question", "reply", "reference"]


@dataclasses.dataclass
class ExportedRun:
    """The id that a service gave to a run, and the last step that it has, in a JSON file of the attempt.

    The services cannot remove records, so those that a killed run has written after its last checkpoint stay: the same
    steps of the resumed run are left out. Records that two processes both write would be doubled.
    """

    path: Path
    id: str = ""  # "" for a new run
    step: int = 0

    @classmethod
    def read(cls, path: Path) -> "ExportedRun":
        """Return what the file says. Without the file, or if it is damaged, the run is a new one."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(path, str(values["id"]), int(values["step"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls(path)

    def write(self, step: int) -> None:
        """Write the file. step: the last one that the service has."""
        content = json.dumps({"id": self.id, "step": max(step, self.step)})
        write_file(self.path, content.encode())
