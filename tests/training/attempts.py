"""Reads the files of an attempt in checkpoints/ of the current directory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file


def metrics(attempt: str = "default") -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last line that is still being written; none before the first."""
    path = Path("checkpoints", attempt, "metrics.jsonl")
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def saved_step(attempt: str = "default") -> int:
    """The step of the last checkpoint; 0 before the first."""
    path = Path("checkpoints", attempt, "last")
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def weights(attempt: str = "default") -> list[np.ndarray]:
    """All weights and slots in the last checkpoint."""
    directory = Path("checkpoints", attempt)
    name = json.loads((directory / "last").read_text())["checkpoint"]
    tensors = load_file(directory / f"{name}.safetensors")
    return [tensors[name] for name in sorted(tensors)]
