"""python -m chatbot.corpus inspect | encode: reports on a corpus before training, or encodes it in advance."""

import sys
from collections.abc import Sequence
from pathlib import Path

from chatbot.command_line import program, run_command
from chatbot.config.corpus import ENCODE, INSPECT
from chatbot.corpus.reading.display import counted
from chatbot.errors import exit_code_of

USAGE = """usage: {program} inspect FILE ...  report what the files contain, and what training would drop
       {program} encode FILE ...   tokenise and encode now, on this machine or with Apache Beam
Give either -h or --help to list its flags. --version prints the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names."""
    return run_command(USAGE.format(program=program("-m chatbot.corpus")), COMMANDS, arguments)


def inspect_command(arguments: Sequence[str]) -> int:
    """Print a report on the files. Return the exit code; no file is left on disk."""
    settings = INSPECT.parse(arguments)
    import dataclasses

    from chatbot.corpus.cache import temporary_folder
    from chatbot.corpus.files import left_out, training_files, validation_files, without_word_spaces
    from chatbot.corpus.inspection import json_line, measure, report_lines, warnings

    corpus_settings = without_word_spaces(settings.corpus)
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


def encode_command(arguments: Sequence[str]) -> int:
    """Write the encoded pairs to the cache, where training finds them. Return the exit code."""
    settings = ENCODE.parse(arguments)
    from chatbot.corpus.dataset import training_set
    from chatbot.corpus.files import without_word_spaces
    from chatbot.corpus.workers import BeamPool

    beam = BeamPool(settings.runner, settings.runner_options, Path(settings.corpus.cache)) if settings.runner else None
    corpus = training_set(without_word_spaces(settings.corpus), settings.encoding, pool=beam)
    for report in corpus.reports:
        print(f"{report.file}: {counted(report.pairs, 'pair')}")
        for line in report.lines():
            print(f"  left out: {line}")
        for line in report.notes():
            print(f"  note: {line}")
    print(f"Encoded: {counted(corpus.pairs, 'pair')}, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")
    return 0


COMMANDS = {"inspect": inspect_command, "encode": encode_command}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
