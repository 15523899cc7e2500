"""Runs a benchmark as a process."""

import json
import subprocess
import sys
from typing import Any

from tests.commands import ENVIRONMENT, ROOT


def benchmark(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    completed = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True
    )
    report: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return report
