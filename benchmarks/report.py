"""Output of a benchmark: progress on standard error, and the results as one JSON object on the last line."""

import json
import sys
from typing import Any


def log(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def print_json(results: dict[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(rounded(results)))


def rounded(value: Any) -> Any:
    """Round every float to six significant digits, also in nested lists and dicts."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
