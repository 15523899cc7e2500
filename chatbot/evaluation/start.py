"""The command that evaluates an attempt. In a pipe or with --json, its last output line is a JSON object."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from chatbot.attempts.files import trained_directory
from chatbot.attempts.settings import with_default_search
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.corpus.reading.sources import Source, find_parts
from chatbot.errors import UserError

GENERATOR = b'content="duida evaluate"'  # occurs in the HTML head of every report


class Inputs(NamedTuple):
    """The checked inputs of an evaluation."""

    directory: Path
    decoding: DecodingSettings
    held_out: list[Source]
    baseline: list[Source] | None  # None means the training pairs of the attempt
    fluency: list[Source] | None
    outside: list[str]  # questions that have no right answer


def start(settings: EvaluationSettings) -> None:
    """Evaluate the trained model of an attempt.

    Flags and files are checked before TensorFlow is imported, because the import takes seconds.
    """
    measures = _measure(settings, _check(settings))
    if settings.json or not sys.stdout.isatty():
        print(json.dumps(measures))


def _check(settings: EvaluationSettings) -> Inputs:
    directory = trained_directory(settings.attempt)
    decoding = with_default_search(settings.decoding, directory)
    if settings.report is not None:
        check_report(Path(settings.report))
    return Inputs(
        directory,
        decoding,
        held_out=find_parts(settings.data).measured,
        baseline=find_parts(settings.baseline_data).training if settings.baseline_data else None,
        fluency=find_parts(settings.fluency_corpus).training if settings.fluency_corpus else None,
        outside=[] if settings.outside is None else read_questions(Path(settings.outside)),
    )


def _measure(settings: EvaluationSettings, inputs: Inputs) -> dict[str, Any]:
    """Run the evaluation, print a table of the results, and return the JSON object."""
    from chatbot.memory import let_gpu_memory_grow
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.evaluation.evaluate import Evaluation, evaluate
    from chatbot.evaluation.held_out import baseline_of, fluency_of, load_and_read
    from chatbot.evaluation.report import summary

    trained, corpus, warning = load_and_read(inputs.directory, inputs.held_out, settings)
    has_baseline = settings.baseline or inputs.baseline is not None
    evaluation = Evaluation(
        trained,
        corpus,
        inputs.decoding,
        fluency=None if inputs.fluency is None else fluency_of(trained, inputs.fluency, settings),
        baseline=baseline_of(trained, inputs.baseline, settings) if has_baseline else None,
        outside=inputs.outside,
        precision=settings.precision,
        tokenize=settings.tokenize,
        report=settings.report,
        name=inputs.directory.name,
        warning=warning,
    )
    measures = evaluate(evaluation)
    print(*summary(measures, warning is None, settings.precision), sep="\n", file=sys.stderr)
    return measures


def check_report(path: Path) -> None:
    """Raise UserError if the path is an existing file other than a report, and OSError if it is not writable."""
    with path.open("a+b") as file:
        file.seek(0)
        head = file.read(1000)
    if head and GENERATOR not in head:
        raise UserError(f"--report {path}: exists and is not a report; use another file name")


def read_questions(path: Path) -> list[str]:
    """Read the --outside file, a UTF-8 text file with one question per line. Raises UserError if it is not readable."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UserError(f"--outside {path}: cannot be read ({reason}); use a text file of questions") from None
