"""python -m benchmarks NAME runs one benchmark, which prints one JSON object on its last line."""

import sys

from benchmarks.compare import compare_benchmark
from benchmarks.corpus import corpus_benchmark
from benchmarks.cost import cost_benchmark
from benchmarks.crossings import crossings_benchmark
from benchmarks.decode import decode_benchmark
from benchmarks.gpu import gpu_benchmark
from benchmarks.quality import quality_benchmark
from benchmarks.scaling import scaling_benchmark
from benchmarks.serve import serve_benchmark
from benchmarks.sheet import sheet_benchmark
from benchmarks.soak import soak_benchmark
from benchmarks.train import train_benchmark
from chatbot.errors import UserError, exit_code_of

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        compare_benchmark,
        corpus_benchmark,
        cost_benchmark,
        crossings_benchmark,
        decode_benchmark,
        gpu_benchmark,
        quality_benchmark,
        scaling_benchmark,
        serve_benchmark,
        sheet_benchmark,
        soak_benchmark,
        train_benchmark,
    )
}


def main() -> int:
    """Run the benchmark that the first argument names. Raises UserError for an unknown name."""
    name = (sys.argv[1:2] or ["--help"])[0]
    arguments = sys.argv[2:]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks {'|'.join(BENCHMARKS)} ...; with --help after the name for its flags")
        return 0
    if name not in BENCHMARKS:
        raise UserError(f"{name}: no such benchmark; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name](arguments)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
