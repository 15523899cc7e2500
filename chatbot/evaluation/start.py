"""Measures an attempt on held-out pairs, or has replies rated.

In a pipe or with --json, the last line is one JSON object.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from chatbot.config.attempts import trained_directory
from chatbot.config.corpus import EncodingSettings, FileSettings
from chatbot.config.evaluation import NEAREST, EvaluationSettings
from chatbot.config.stored import with_default_search
from chatbot.display import counted
from chatbot.errors import UserError

GENERATOR = b'content="duida evaluate"'  # in the head of each report


def start(settings: EvaluationSettings) -> None:
    """Measure an attempt, or write a sheet of replies, or count the ratings of one that is there."""
    measures = _evaluate(settings) if settings.sheet is None else _sheet(settings, Path(settings.sheet))
    if settings.json or not sys.stdout.isatty():
        print(json.dumps(measures))


def _sheet(settings: EvaluationSettings, folder: Path) -> dict[str, Any]:
    """Write a sheet of replies, or print the ratings of the one that is there, and return the JSON object."""
    from chatbot.evaluation.sheet import count_ratings, has_sheet, table_of

    if not has_sheet(folder):
        if not settings.compare:
            raise UserError(f"--sheet {folder}: has no sheet to count; to write one, add --data FILE --compare SOURCE")
        return _evaluate(settings)
    ratings, unrated = count_ratings(folder, settings.compare)
    if unrated:
        print(f"Note: {counted(unrated, 'row')} without two ratings, not counted.", file=sys.stderr)
    print(*table_of(ratings), sep="\n", file=sys.stderr)
    return {"sources": {name: of_source._asdict() for name, of_source in ratings.items()}, "unrated_rows": unrated}


def check_report(path: Path) -> None:
    """Raise UserError for a file that would be replaced and is no report, and OSError if it cannot be written."""
    with path.open("a+b") as file:
        file.seek(0)
        head = file.read(1000)
    if head and GENERATOR not in head:
        raise UserError(f"--report {path}: is there, and is no report; give the name of another file")


def _evaluate(settings: EvaluationSettings) -> dict[str, Any]:
    """Measure the replies of an attempt, or write a sheet with them, and return the JSON object.

    Flags and files are checked before TensorFlow is imported, which takes seconds.
    """
    directory = trained_directory(settings.attempt)
    decoding = with_default_search(settings.decoding, directory)
    from chatbot.corpus.reading.sources import find_parts
    from chatbot.evaluation.precision import precision_line, read_questions
    from chatbot.evaluation.sheet import KEY, SHEET, origin_of, write_sheet

    if settings.report is not None:
        check_report(Path(settings.report))
    origins = {name: origin_of(name) for name in settings.compare}
    held_out = find_parts(settings.data).measured
    baseline_files = find_parts(settings.baseline_data).training if settings.baseline_data else None
    fluency_files = find_parts(settings.fluency_corpus).training if settings.fluency_corpus else None
    outside = [] if settings.outside is None else read_questions(Path(settings.outside))
    if settings.sheet is not None:
        Path(settings.sheet).mkdir(parents=True, exist_ok=True)
    from chatbot.memory import let_gpu_memory_grow
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.corpus.dataset import encode
    from chatbot.corpus.files import corpus_files, read_as
    from chatbot.corpus.selection import Selection
    from chatbot.corpus.tokenizer import tokens_of
    from chatbot.evaluation.baseline import MOST_PAIRS, Baseline, corpus_of
    from chatbot.evaluation.evaluate import evaluate
    from chatbot.evaluation.fluency import Fluency
    from chatbot.evaluation.measures import samples_of
    from chatbot.evaluation.report import choice_line, rows_of, table
    from chatbot.evaluation.sources import held_out_corpus, reading_settings, replies_to_rate, warning_of
    from chatbot.model.saved import load_trained

    trained = load_trained(directory)
    corpus = held_out_corpus(trained, held_out, settings)
    for report in corpus.reports:
        for line in report.lines():
            print(f"Left out of {report.file}: {line}", file=sys.stderr)
        for line in report.notes():
            print(f"Note on {report.file}: {line}", file=sys.stderr)
    if warning := warning_of(trained, corpus, held_out):
        print(warning.english, file=sys.stderr)
    of_other_files = read_as(reading_settings(trained, settings), FileSettings())
    fluency = None
    if fluency_files is not None:
        of_characters = dataclasses.replace(of_other_files, tokenizer="char", dictionary=None)
        usual = encode(corpus_files(fluency_files, of_characters), Selection(), EncodingSettings.vocabulary_size)
        fluency = Fluency(usual, tokens_of(of_characters))
    known = None
    if baseline_files is not None:
        known = encode(corpus_files(baseline_files, of_other_files), Selection(), trained.vocabulary)
    elif settings.baseline or NEAREST in origins:
        known = corpus_of(trained.settings, trained.vocabulary, settings.cache)
    baseline = None if known is None else Baseline(samples_of(known, MOST_PAIRS))
    if settings.sheet is not None:
        messages, replies = replies_to_rate(settings, origins, held_out, trained, corpus, decoding, baseline)
        rows = write_sheet(Path(settings.sheet), messages, replies)
        print(
            f"Written: {Path(settings.sheet, SHEET)}, {counted(rows, 'row')}. Fill in 0 or 1, and run this again to "
            f"count; {KEY} says whose replies they are.",
            file=sys.stderr,
        )
        return {"sheet": settings.sheet, "messages": len(messages), "rows": rows}
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
