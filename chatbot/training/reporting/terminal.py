"""The progress bar of a run, and the lines above it."""

import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from chatbot.config.learning import NATS
from chatbot.training.run import Run
from chatbot.training.validator import Validation


class Terminal:
    """Shows a run on standard error."""

    def __init__(self, run: Run) -> None:
        self._validation_decides, self._criterion = run.data.validation_decides, run.criterion
        self._progress = run.progress
        self._bar = tqdm(
            desc="Training",
            total=run.calendar.last_step,
            initial=run.progress.step,
            unit=" steps",
            dynamic_ncols=True,
            disable=not run.team.chief,
        )
        self._on_terminal = not self._bar.disable and self._bar.fp.isatty()
        self._compiled: set[Hashable] = set()

    def advance(self) -> None:
        """Count a step."""
        self._bar.update()

    @contextmanager
    def compiling(self, graph: Hashable) -> Iterator[None]:
        """Show "compiling" on a terminal during the first use of a graph, which takes seconds."""
        if graph in self._compiled or not self._on_terminal:
            yield
            return
        self._compiled.add(graph)
        shown = str(self._bar.postfix or "")
        self._bar.set_postfix_str("compiling")
        yield
        self._bar.set_postfix_str(shown, refresh=False)

    def warn(self, text: str) -> None:
        """Print a line on standard error."""
        self._bar.write(f"Warning: {text}.", file=sys.stderr)

    def record(self, record: dict[str, Any]) -> None:
        """Show the metrics of a logged step."""
        self._bar.set_postfix_str(
            f"loss {record['loss']:.3f}, {record['examples_per_s']:.0f} examples/s, "
            f"{record['target_tokens_per_s']:,.0f} target tokens/s"
        )

    def validation(self, validation: Validation, best: bool) -> None:
        """Show a validation, after `Progress.validated` has recorded it. best: whether it is the best so far."""
        step = self._progress.step
        verdict = ", the best so far" if best else f", no improvement ({self._progress.without_best} in a row)"
        if not self._validation_decides:
            verdict = ""
        nats, value = (validation.values[name] for name in (NATS, self._criterion.measure))
        measured = f"{nats:.4f} nats per character"
        if self._criterion.measure != NATS and value is not None:
            measured += f", {self._criterion.shown(value)}"
        self._bar.write(f"step {step:,}: validation {measured}{verdict}")

    def went_back(self) -> None:
        """Show the step that the run has gone back to."""
        self._bar.n = self._progress.step
        self._bar.refresh()

    def close(self) -> None:
        """Leave the bar as it is, and go to the next line."""
        self._bar.close()
