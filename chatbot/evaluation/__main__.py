"""python -m chatbot.evaluation: measures an attempt on held-out pairs. The last line is one JSON object."""

import dataclasses
import json
import sys

from chatbot.config.attempts import trained_directory
from chatbot.config.corpus import EncodingSettings
from chatbot.config.evaluation import evaluation_settings
from chatbot.config.stored import with_default_search
from chatbot.corpus.reading.display import counted
from chatbot.errors import exit_code_of


def main() -> int:
    """Measure an attempt. Flags and files are checked before TensorFlow is imported, which takes seconds."""
    settings = evaluation_settings()
    directory = trained_directory(settings.attempt)
    decoding = with_default_search(settings.decoding, directory)
    from chatbot.corpus.reading.open.sources import find_parts

    if settings.report is not None:
        open(settings.report, "ab").close()  # a file that cannot be written is noticed at once
    sources = find_parts(settings.data).measured
    bank = find_parts(settings.baseline_data).training if settings.baseline_data else None
    usual = find_parts(settings.fluency_corpus).training if settings.fluency_corpus else None
    from chatbot.quiet import import_tensorflow, let_gpu_memory_grow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.corpus.dataset import encode
    from chatbot.corpus.files import corpus_files
    from chatbot.corpus.selection import Selection
    from chatbot.corpus.tokenizer import tokens_of, without_pair_rules
    from chatbot.evaluation.baseline import MOST_PAIRS, Baseline, corpus_of
    from chatbot.evaluation.evaluate import evaluate
    from chatbot.evaluation.fluency import Fluency
    from chatbot.evaluation.measures import samples_of
    from chatbot.evaluation.report import choice_line, rows_of, table
    from chatbot.model.saved import load_trained

    trained = load_trained(directory)
    corpus_settings = dataclasses.replace(
        without_pair_rules(trained.settings.corpus),
        columns=settings.columns,
        encoding=settings.encoding,
        format=settings.format,
        cache=settings.cache,
    )
    history, max_length = trained.settings.encoding.history, trained.settings.model.max_length
    corpus = encode(corpus_files(sources, corpus_settings), Selection(), trained.vocabulary, history, max_length)
    for report in corpus.reports:
        for line in report.lines():
            print(f"Left out of {report.file}: {line}", file=sys.stderr)
        for line in report.notes():
            print(f"Note on {report.file}: {line}", file=sys.stderr)
    detected = dataclasses.replace(corpus_settings, columns=(), encoding=None, format=None)
    fluency = None
    if usual is not None:
        of_characters = dataclasses.replace(detected, tokenizer="char", dictionary=None)
        replies = encode(corpus_files(usual, of_characters), Selection(), EncodingSettings.vocabulary_size)
        fluency = Fluency(replies, tokens_of(of_characters))
    baseline = None
    if bank is not None:
        baseline = encode(corpus_files(bank, detected), Selection(), trained.vocabulary)
    elif settings.baseline:
        baseline = corpus_of(trained.settings, trained.vocabulary, settings.cache)
    retrieval = None if baseline is None else Baseline(samples_of(baseline, MOST_PAIRS))
    measures = evaluate(
        trained, corpus, decoding, retrieval, settings.report, directory.name, settings.tokenize, fluency
    )
    print(
        f"Replies to {counted(measures['pairs'], 'held-out question')}; BLEU by sacrebleu's tokenisation "
        f"{measures['bleu_tokenize']}:",
        *table(rows_of(measures)),
        choice_line(measures),
        sep="\n",
        file=sys.stderr,
    )
    print(json.dumps(measures))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
