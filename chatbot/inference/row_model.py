"""What the engine needs of a model: it generates a token of many rows at once, and rows join and leave in between."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class RowModel(Protocol):
    """A model whose state is of a number of rows, which only the model reads. A row has one hypothesis."""

    def encode(self, questions: Sequence[Sequence[int]]) -> Any:
        """Return the state before the first token. questions: the ids of each row, at least one id."""

    def step(self, state: Any, last: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], Any]:
        """Return the logits of the next ids, [rows, vocabulary], and the state after the last ones. last: [rows]."""

    def take(self, states: Sequence[Any], rows: npt.NDArray[np.int64]) -> Any:
        """Return the state of some rows, in this order; a row may be taken several times.

        states: one or two. rows: numbers of those of the first state and of the second behind them.
        """
