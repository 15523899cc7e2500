"""python -m chatbot.evaluation: measures an attempt on held-out pairs; its last line is one JSON object."""

import json
import sys

from chatbot.config import evaluation_settings
from chatbot.errors import exit_code_of


def main() -> int:
    """Flags, model, pairs, numbers: TensorFlow is imported only when the flags are right."""
    settings = evaluation_settings()
    from chatbot.corpus.pairs import read_pairs
    from chatbot.corpus.report import Report
    from chatbot.quiet import import_tensorflow, let_gpu_memory_grow

    report = Report()
    pairs = read_pairs(settings.data, report)
    for line in report.lines():
        print(f"Left out: {line}", file=sys.stderr)
    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.evaluation.evaluate import evaluate
    from chatbot.model.saved import load_trained

    trained = load_trained(settings.attempt)
    print(json.dumps(evaluate(trained, pairs, settings.beam_size)))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
