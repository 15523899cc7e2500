"""Detection of a run that diverges: its loss stays far above where it began, while it is still a finite number."""

import math

# Logged losses in a row above the limit until the run counts as diverging, and the multiple of the limit from which a
# single one suffices. Each is a mean over the steps between two logs, so that a spike is shorter.
LEAST_RECORDS, HUGE = 3, 10.0
# Steps in a row above the limit after which the run ends. A run that is above it at its end has failed, too.
MOST_STEPS = 1000
# Nats above the start: 2.7 times its perplexity.
MARGIN = 1.0


class Divergence:
    """Compares each logged loss, in nats per token, with a limit.

    The limit is MARGIN above the first logged loss of this start, and at least MARGIN above the loss of a uniform
    guess over the vocabulary: the first batch may be an easy one, and a resumed run begins with a low loss.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._limit = math.log(vocabulary_size) + MARGIN
        self._first: float | None = None
        self._above = 0  # logged losses in a row above the limit
        self._last_below = 0  # the last step whose logged loss was not above it
        self._step, self._loss = 0, 0.0  # of the last record

    def record(self, step: int, loss: float) -> bool:
        """Count a logged loss; return whether the run begins to diverge with it.

        Ignores NaN, the loss of an interval in which no step had a finite one.
        """
        if math.isnan(loss):
            return False
        if self._first is None:
            self._first, self._limit = loss, max(self._limit, loss + MARGIN)
        before, self._step, self._loss = self.diverges, step, loss
        if loss <= self._limit:
            self._above, self._last_below = 0, step
        else:
            self._above += 1 if loss <= HUGE * self._limit else LEAST_RECORDS
        return self.diverges and not before

    @property
    def diverges(self) -> bool:
        """Whether the last logged losses were far above the start."""
        return self._above >= LEAST_RECORDS

    @property
    def reason_to_stop(self) -> str:
        """Why the run is over, or "" if it may still recover."""
        lasting = self.diverges and self._step - self._last_below >= MOST_STEPS
        return f"the loss was far above its start for {MOST_STEPS:,} steps" if lasting else ""

    def describe(self, learning_rate: float) -> str:
        """Return the last loss, the first one, and since when it is too high. learning_rate: the flag's value."""
        return (
            f"the loss is {self._loss:,.1f} nats per token at step {self._step:,}; it began at {self._first:,.1f} and "
            f"is far above that since step {self._last_below:,}: --learning-rate {learning_rate:g} is too high"
        )
