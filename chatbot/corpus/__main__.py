"""python -m chatbot.corpus inspect | encode: looks at a corpus before training, or encodes it beforehand."""

import sys
from collections.abc import Sequence

from chatbot.config.corpus import EncodeSettings, InspectSettings
from chatbot.errors import UserError, exit_code_of
from chatbot.flags import compose, parse_flags

USAGE = """usage: python -m chatbot.corpus inspect FILE ...  what is in the files, and what training would leave out
       python -m chatbot.corpus encode FILE ...   cut and encode now, on this machine or by Apache Beam
Either with --help lists its flags."""


def main() -> int:
    """The first word says which command."""
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command == "inspect":
        return inspect_command(arguments)
    if command == "encode":
        return encode_command(arguments)
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    raise UserError(f"{command}: no such command; inspect and encode are there")


def inspect_command(arguments: Sequence[str]) -> int:
    """Print what is in the files; keeps nothing on disk."""
    about = "Look at question-answer pairs before training on them. Changes nothing on disk."
    settings = compose(
        InspectSettings,
        **parse_flags(InspectSettings, "-m chatbot.corpus inspect", about, arguments, positional="data"),
    )
    import dataclasses
    import tempfile
    from pathlib import Path

    from chatbot.corpus.encoding.cache import interruptible
    from chatbot.corpus.inspection.doctor import json_line, report_lines, warnings
    from chatbot.corpus.inspection.inspection import inspect
    from chatbot.corpus.training_set import training_words

    words = training_words(settings.corpus)
    with interruptible(), tempfile.TemporaryDirectory(prefix="inspect-") as folder:
        found = inspect(words if words.kept else dataclasses.replace(words, cache=Path(folder)), settings.corpus)
    print("\n".join(report_lines(found, settings.corpus)))
    if settings.json:
        print("\n".join(json_line(file) for file in found.files))
    return 1 if settings.fail_on_warnings and warnings(found, settings.corpus) else 0


def encode_command(arguments: Sequence[str]) -> int:
    """Put the encoded pairs into the cache, where training finds them."""
    about = "Encode question-answer pairs into the cache, where train.py with the same flags finds them."
    settings = compose(
        EncodeSettings, **parse_flags(EncodeSettings, "-m chatbot.corpus encode", about, arguments, positional="data")
    )
    from chatbot.corpus.training_set import training_rules, training_set, training_words

    if settings.runner is None:
        corpus = training_set(settings.corpus, settings.encoding)
    else:
        try:
            from chatbot.corpus.encoding.beam import encode_on_beam
        except ModuleNotFoundError:
            raise UserError(f"--runner {settings.runner}: Apache Beam is not installed; give `make beam`") from None
        words = training_words(settings.corpus)
        rules = training_rules(settings.corpus, settings.encoding.validation)
        corpus = encode_on_beam(
            words, rules, settings.encoding.vocabulary_size, settings.runner, settings.runner_options
        )
    for report in corpus.reports:
        print(f"{report.file}: {report.pairs:,} pairs")
        for line in report.lines():
            print(f"  left out: {line}")
    print(f"Encoded: {corpus.pairs:,} pairs, shards: {len(corpus.shards):,}, in {corpus.shards.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
