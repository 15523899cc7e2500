"""python -m chatbot.corpus inspect | pairs | encode: a report on a corpus, its pairs as text, or its encoded pairs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from chatbot.command_line import program, run_command
from chatbot.config.corpus import ENCODE, INSPECT, PAIRS
from chatbot.display import counted
from chatbot.errors import exit_code_of

USAGE = """usage: {program} inspect FILE ...  report what the files contain, and what training would drop
       {program} pairs FILE ...    write the pairs that training would read, one on each line
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


def pairs_command(arguments: Sequence[str]) -> int:
    """Write the pairs to standard output, and what was left out to standard error. Return the exit code."""
    settings = PAIRS.parse(arguments)
    from chatbot.corpus.conversion import write_pairs
    from chatbot.corpus.files import training_files, without_word_spaces

    write_pairs(training_files(without_word_spaces(settings.corpus, sys.stderr)), settings.json, sys.stdout, sys.stderr)
    return 0


def encode_command(arguments: Sequence[str]) -> int:
    """Write the encoded pairs to the cache, where training finds them. Return the exit code."""
    settings = ENCODE.parse(arguments)
    from chatbot.corpus.dataset import described, training_set
    from chatbot.corpus.files import without_word_spaces
    from chatbot.corpus.tokenizer import print_unused_words

    corpus_settings = without_word_spaces(settings.corpus)
    print_unused_words(corpus_settings)
    pool = None
    if settings.runner:
        from chatbot.corpus.beam import BeamPool

        pool = BeamPool(settings.runner, settings.runner_options, Path(settings.corpus.cache))
    corpus = training_set(corpus_settings, settings.encoding, pool=pool)
    for report in corpus.reports:
        print(f"{report.file}: {counted(report.pairs, 'pair')}", *described(report), sep="\n")
    print(f"Encoded: {counted(corpus.pairs, 'pair')}, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")
    return 0


COMMANDS = {"inspect": inspect_command, "pairs": pairs_command, "encode": encode_command}

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
