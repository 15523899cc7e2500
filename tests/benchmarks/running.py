"""Runs a benchmark as a process, or stand-ins in place of the programs of a peer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.commands import ENVIRONMENT, ROOT


def benchmark(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    completed = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True
    )
    report: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return report


def program(folder: Path, name: str, script: str) -> Path:
    """A shell script in place of a program of an environment. Returns the environment."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return folder
