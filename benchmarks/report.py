"""What a benchmark prints: progress on standard error, and its results as one JSON object on the last line."""

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
    """Every float at six significant digits, in nested lists and dicts too."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
