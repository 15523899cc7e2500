"""The updates that were skipped because the loss or a gradient was not finite."""

from collections.abc import Sequence

from chatbot.training.variable_update.step_result import StepResult

# The number of times that a run goes back to its last checkpoint.
MOST_RETURNS = 3


class SkippedUpdates:
    """Counts skipped updates, and those in a row. All machines count the same ones.

    patience: the number in a row after which the run goes back to its last checkpoint. step: of that checkpoint.
    """

    def __init__(self, patience: int, step: int) -> None:
        self._patience, self._step = patience, step
        self.in_a_row = 0
        self.returns = 0  # times that the run has gone back
        self.since_return = 0  # skipped updates since the run began or last went back
        self._first = 0  # the step of the first one in a row
        self._last = 0

    def record(self, results: Sequence[StepResult]) -> int:
        """Count the next steps, in their order; return the number of those that were skipped.

        After as many in a row as `patience`, the rest is ignored: the run goes back.
        """
        skipped = 0
        for result in results:
            self._step += 1
            if bool(result.finite):
                self.in_a_row = 0
                continue
            skipped += 1
            self.since_return += 1
            self._first = self._first if self.in_a_row else self._step
            self._last = self._step
            self.in_a_row += 1
            if self.due:
                break
        return skipped

    @property
    def due(self) -> bool:
        """Whether the run has to go back."""
        return self.in_a_row >= self._patience

    def went_back(self, step: int) -> None:
        """Begin again after the run went back to a step."""
        self._step, self.in_a_row, self.since_return = step, 0, 0
        self.returns += 1

    def describe(self) -> str:
        """Return the steps of the last ones in a row."""
        steps = f"step {self._first:,}" if self._first == self._last else f"steps {self._first:,} to {self._last:,}"
        return f"the loss or the gradient was not finite at {steps}"
