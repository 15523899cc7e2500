"""Entry point of `python -m benchmarks NAME`, which runs a benchmark and prints a JSON object on its last line."""

import importlib
import sys

from benchmarks.benchmark import Benchmark
from chatbot.errors import UserError, exit_code_of

NAMES = (
    *("batches", "compare", "corpus", "cost", "crossings", "decode", "gpu"),
    *("quality", "scaling", "serve", "sheet", "soak", "train"),
)


def benchmark_of(name: str) -> Benchmark:
    """Import and return a benchmark. Other benchmarks are not imported, because some of them import TensorFlow."""
    benchmark: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return benchmark


def main() -> int:
    """Run the benchmark named by the first argument. Raises UserError if the name is unknown."""
    name = (sys.argv[1:2] or ["--help"])[0]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks {'|'.join(NAMES)} ...; with --help after the name for its flags")
        return 0
    if name not in NAMES:
        raise UserError(f"{name}: no such benchmark; there are {', '.join(NAMES)}")
    return benchmark_of(name)(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
