"""The packages that an export needs, which are optional."""

import importlib.util

from chatbot.config.export import LITERT, ONNX, SAVEDMODEL
from chatbot.errors import UserError

# The modules that each format is written and measured by, and the command that installs what is needed to write it and
# to answer from it. The name of this package and an extra would not do: where it is not installed, pip would search the
# public index for that name.
NEEDED: dict[str, tuple[tuple[str, ...], str]] = {
    SAVEDMODEL: ((), ""),
    ONNX: (("tf2onnx", "onnx"), "pip install tf2onnx onnx onnxruntime"),
    LITERT: (("ai_edge_litert",), "pip install ai-edge-litert"),
}


def check_packages(kind: str) -> None:
    """Raise UserError if a package that a format needs is not installed."""
    modules, command = NEEDED[kind]
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format {kind}: {name} is not installed; run `{command}`")
