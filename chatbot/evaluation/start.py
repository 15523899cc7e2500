"""Measures an attempt on held-out pairs.

In a pipe or with --json, the last line is one JSON object.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from chatbot.attempts.files import trained_directory
from chatbot.attempts.settings import with_default_search
from chatbot.config.corpus import EncodingSettings, FileSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.display import counted
from chatbot.errors import UserError

GENERATOR = b'content="duida evaluate"'  # in the head of each report


def start(settings: EvaluationSettings) -> None:
    """Measure an attempt."""
    measures = _evaluate(settings)
    if settings.json or not sys.stdout.isatty():
        print(json.dumps(measures))


def check_report(path: Path) -> None:
    """Raise UserError for a file that would be replaced and is no report, and OSError if it cannot be written."""
    with path.open("a+b") as file:
        file.seek(0)
        head = file.read(1000)
    if head and GENERATOR not in head:
        raise UserError(f"--report {path}: is there, and is no report; give the name of another file")


def _evaluate(settings: EvaluationSettings) -> dict[str, Any]:
    """Measure the replies of an attempt, and return the JSON object.

    Flags and files are checked before TensorFlow is imported, which takes seconds.
    """
    directory = trained_directory(settings.attempt)
    decoding = with_default_search(settings.decoding, directory)
    from chatbot.corpus.reading.sources import find_parts
    from chatbot.evaluation.precision import precision_line, read_questions

    if settings.report is not None:
        check_report(Path(settings.report))
    held_out = find_parts(settings.data).measured
    baseline_files = find_parts(settings.baseline_data).training if settings.baseline_data else None
    fluency_files = find_parts(settings.fluency_corpus).training if settings.fluency_corpus else None
    outside = [] if settings.outside is None else read_questions(Path(settings.outside))
    from chatbot.memory import let_gpu_memory_grow
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.corpus.dataset import encode
    from chatbot.corpus.files import corpus_files, read_as
    from chatbot.corpus.selection import Selection
    from chatbot.corpus.tokenizer import tokens_of
    from chatbot.evaluation.baseline import baseline_of
    from chatbot.evaluation.evaluate import evaluate
    from chatbot.evaluation.fluency import Fluency
    from chatbot.evaluation.held_out import load_and_read, reading_settings
    from chatbot.evaluation.report import choice_line, rows_of, table

    trained, corpus, warning = load_and_read(directory, held_out, settings)
    fluency = None
    if fluency_files is not None:
        of_other_files = read_as(reading_settings(trained, settings), FileSettings())
        of_characters = dataclasses.replace(of_other_files, tokenizer="char", dictionary=None)
        usual = encode(corpus_files(fluency_files, of_characters), Selection(), EncodingSettings.vocabulary_size)
        fluency = Fluency(usual, tokens_of(of_characters))
    baseline = None
    if settings.baseline or baseline_files is not None:
        baseline = baseline_of(trained, baseline_files, settings)
    shown = settings.report, directory.name, settings.tokenize, fluency, warning
    measures = evaluate(trained, corpus, decoding, baseline, *shown, settings.precision, outside)
    questions = counted(measures["pairs"], "question" if warning else "held-out question")
    print(
        f"Replies to {questions}; BLEU by sacrebleu's tokenisation {measures['bleu_tokenize']}:",
        *table(rows_of(measures)),
        choice_line(measures),
        sep="\n",
        file=sys.stderr,
    )
    if settings.precision is not None:
        print(precision_line(measures, settings.precision), file=sys.stderr)
    return measures
