"""The graphs of an ONNX export, run by ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.decoding.arrays.log_probabilities import Ids
from chatbot.errors import UserError
from chatbot.export.manifest import damaged

Array = npt.NDArray[Any]


class OnnxEngine:
    """Runs encode.onnx and step.onnx of a folder: the graphs of `chatbot.export.graphs`, whose tensors have names.

    Raises UserError if ONNX Runtime is not installed, or cannot read the files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError:
            remedy = "run `pip install onnxruntime`"
            raise UserError(f"--export {folder}: ONNX Runtime is not installed; {remedy}") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # int8 weights are converted to float32 once, when the graph is loaded, and not at each step.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # The calls are short: a thread that waits for the next one would only take a core from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._encode, self._step = (
                onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
                for name in ("encode.onnx", "step.onnx")
            )
        except Exception as error:  # ONNX Runtime raises classes of its own, derived from Exception
            raise damaged(folder, error) from None
        self._encoded = [x.name for x in self._encode.get_outputs()]
        self._stepped = [x.name for x in self._step.get_outputs()]
        self._taken = {x.name for x in self._step.get_inputs()}

    def encode(self, ids: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Return the state before the first token. ids: [rows, time], padded on the right."""
        return dict(zip(self._encoded, self._encode.run(None, {"ids": ids}), strict=True))

    def step(self, last: Ids, state: dict[str, Array]) -> dict[str, Array]:
        """Return the results of one step. last: [hypotheses]. state: by the names of `encode`."""
        feed = {name: x for name, x in state.items() if name in self._taken}
        return dict(zip(self._stepped, self._step.run(None, {"last": last, **feed}), strict=True))
