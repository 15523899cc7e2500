"""Runs a benchmark in this process, or stand-ins in place of the programs of a peer."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import benchmark_of


def benchmark(name: str, *arguments: str) -> dict[str, Any]:
    """The object on the last line of a benchmark that has not failed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert benchmark_of(name)(arguments) == 0
    report: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
    return report


def program(folder: Path, name: str, script: str) -> Path:
    """A shell script in place of a program of an environment. Returns the environment."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return folder
