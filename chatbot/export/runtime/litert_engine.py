"""The graphs of a LiteRT export, run by the interpreter of ai-edge-litert: one question, one hypothesis a call."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.decoding.arrays.log_probabilities import Ids
from chatbot.errors import UserError
from chatbot.export.manifest import damaged
from chatbot.export.runtime.model import CELL, Array
from chatbot.quiet import without_info_lines


class LiteRtEngine:
    """Runs model.tflite of a folder, whose tensors have fixed shapes.

    Raises UserError if LiteRT is not installed, or cannot read the files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ModuleNotFoundError:
            remedy = "run `pip install ai-edge-litert`"
            raise UserError(f"--export {folder}: LiteRT is not installed; {remedy}") from None
        try:
            with without_info_lines():  # "Created TensorFlow Lite XNNPACK delegate for CPU."
                model = Interpreter(str(folder / "model.tflite"))
                self._encode, self._step = (model.get_signature_runner(name) for name in ("encode", "step"))
            (self._time,) = self._encode.get_input_details()["ids"]["shape"][1:]
        except (ValueError, RuntimeError, LookupError) as error:
            raise damaged(folder, error) from None
        self._alone = threading.Lock()  # an interpreter is for one thread at a time
        self._taken = self._step.get_input_details().keys()

    def encode(self, ids: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Return the state before the first token; see `Engine`."""
        padded = np.full((len(ids), self._time), PAD, np.int64)
        padded[:, : ids.shape[1]] = ids
        with self._alone:
            return _joined([self._encode(ids=row[None]) for row in padded])

    def step(self, last: Ids, state: dict[str, Array]) -> dict[str, Array]:
        """Return the results of one step; see `Engine`."""
        of_question = {name: x for name, x in state.items() if name in self._taken and not name.startswith(CELL)}
        cells = {name: x for name, x in state.items() if name.startswith(CELL)}
        times = len(last) // len(state["mask"])  # hypotheses of a question
        results = []
        with self._alone:
            for number in range(len(last)):
                row = number // times
                feed = {name: x[row, None] for name, x in of_question.items()}
                feed |= {name: x[number, None] for name, x in cells.items()}
                results.append(self._step(last=last[number, None], **feed))
            return _joined(results)


def _joined(results: list[dict[str, Any]]) -> dict[str, Array]:
    """Return the rows of several calls as one array each. The interpreter reuses its own arrays."""
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}
