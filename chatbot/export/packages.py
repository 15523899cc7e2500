"""The packages that an export needs, which are extras of this one."""

import importlib.util

from chatbot.config.export import LITERT, ONNX, SAVEDMODEL
from chatbot.errors import UserError

# The modules that each format is written and measured by.
NEEDED: dict[str, tuple[str, ...]] = {
    SAVEDMODEL: (),
    ONNX: ("tf2onnx", "onnx"),
    LITERT: ("ai_edge_litert",),
}


def check_packages(kind: str) -> None:
    """Raise UserError if a package that a format needs is not installed."""
    for name in NEEDED[kind]:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format {kind}: {name} is not installed; run `pip install 'chatbot[{kind}]'`")
