"""What a program that shows runs, such as TensorBoard, is given of a run."""

from collections.abc import Sequence
from typing import Any, Protocol

from chatbot.evaluation.samples import Sample
from chatbot.training.validator import Validation


class Exporter(Protocol):
    """Writes the metrics of a run for one program.

    A method may raise OSError or any exception of the program's client. The run then goes on without this record.
    """

    tries_again: bool
    """Whether the next record is tried after one has failed. Else, as with a server, it would take time each time."""

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step, those of its validation among them."""

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples, and what belongs to them."""

    def warning(self, text: str, step: int) -> None:
        """Write a warning as a text."""

    def close(self, stopped: str) -> None:
        """Write what is left. stopped: the reason in words, "" after an error."""
