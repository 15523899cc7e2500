"""The commands of `duida data` that read pairs: a report on a corpus, and its pairs as text or encoded."""

import dataclasses
import sys
from pathlib import Path

from chatbot.config.corpus import PIECES, EncodeSettings, InspectSettings, PairsSettings
from chatbot.display import counted
from chatbot.errors import UserError

OF_PIECES = f"--tokenizer {PIECES}: train.py --init-from encodes with the tokens of the pretrained model"


def inspect(settings: InspectSettings) -> int:
    """Print a report on the files. Return the exit code; no file is left on disk. Raises UserError for pieces."""
    if settings.corpus.tokenizer == PIECES:
        raise UserError(OF_PIECES)
    from chatbot.corpus.cache import temporary_folder
    from chatbot.corpus.files import left_out, training_files, validation_files, without_word_spaces
    from chatbot.corpus.inspection import json_line, measure, report_lines, warnings
    from chatbot.corpus.tokenizer import print_unused_words

    corpus_settings = without_word_spaces(settings.corpus)
    print_unused_words(corpus_settings)
    with temporary_folder() as folder:
        measured = measure(training_files(dataclasses.replace(corpus_settings, cache=str(folder))))
    print("\n".join(report_lines(measured, corpus_settings)))
    if validation := validation_files(corpus_settings):
        print("For validation, not counted above: " + ", ".join(source.name for source in validation.sources))
    if names := left_out(corpus_settings):
        print("For tests, not read: " + ", ".join(names))
    if settings.json:
        print("\n".join(json_line(file) for file in measured.files))
    return 1 if settings.fail_on_warnings and warnings(measured, corpus_settings) else 0


def write(settings: PairsSettings) -> None:
    """Write the pairs to standard output, and what was left out to standard error."""
    from chatbot.corpus.conversion import write_pairs
    from chatbot.corpus.files import training_files, without_word_spaces

    write_pairs(training_files(without_word_spaces(settings.corpus, sys.stderr)), settings.json, sys.stdout, sys.stderr)


def encode(settings: EncodeSettings) -> None:
    """Write the encoded pairs to the cache, where training finds them. Raises UserError for pieces."""
    if settings.corpus.tokenizer == PIECES:
        raise UserError(OF_PIECES)
    from chatbot.corpus.dataset import print_reports, training_set
    from chatbot.corpus.files import without_word_spaces
    from chatbot.corpus.tokenizer import print_unused_words

    corpus_settings = without_word_spaces(settings.corpus)
    print_unused_words(corpus_settings)
    pool = None
    if settings.runner:
        from chatbot.corpus.beam import BeamPool

        pool = BeamPool(settings.runner, settings.runner_options, Path(settings.corpus.cache))
    corpus = training_set(corpus_settings, settings.encoding, pool=pool)
    print_reports(corpus.reports)
    print(f"Encoded: {counted(corpus.pairs, 'pair')}, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")
