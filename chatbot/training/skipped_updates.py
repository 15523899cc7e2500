"""The updates that were skipped because the loss or a gradient was not finite."""

from collections.abc import Sequence

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.variable_update.interface import StepResult

# After this many skipped updates in a row, a run goes back to its last checkpoint; it does so MOST_RETURNS times.
PATIENCE, MOST_RETURNS = 5, 3


class SkippedUpdates:
    """Counts skipped updates, and those in a row. All machines count the same ones.

    An overflow of float16 only lowers the loss scale: it is a skipped update, but none of those in a row.

    progress: of the run, which keeps the counts, so that they outlive the process.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._step = self._last_in_a_row = progress.step
        self.since_return = 0  # those that count in a row, since this process began or last went back

    def record(self, results: Sequence[StepResult]) -> None:
        """Count the next steps, in their order.

        After PATIENCE in a row, the rest is ignored: the run goes back.
        """
        progress = self._progress
        for result in results:
            self._step += 1
            if bool(result.finite):
                progress.skipped_in_a_row = 0
                continue
            progress.skipped_updates += 1
            if result.overflow is not None and bool(result.overflow):
                continue
            if not progress.skipped_in_a_row:
                progress.first_in_a_row = self._step
            progress.skipped_in_a_row += 1
            self._last_in_a_row = self._step
            self.since_return += 1
            if self.due:
                break

    @property
    def due(self) -> bool:
        """Whether the run has to go back."""
        return self._progress.skipped_in_a_row >= PATIENCE

    def went_back(self) -> None:
        """Begin again after the run went back to an earlier step."""
        self._step, self.since_return = self._progress.step, 0

    def describe(self) -> str:
        """Return the steps of the last ones in a row."""
        first, last = self._progress.first_in_a_row, self._last_in_a_row
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"the loss or the gradient was not finite at {steps}"
