"""Held-out likelihood and replies of this project on a corpus, beside models that only count and published figures."""

import dataclasses
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.corpora import CORPORA, SEED, Corpus
from benchmarks.count_models import measure_count_models
from benchmarks.dailydialog import PUBLISHED, words_and_ends
from benchmarks.processes import output_of, python
from chatbot.config.attempts import CONFIG, attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.config.run import PRESETS
from chatbot.config.stored import with_default_search
from chatbot.corpus.pair_ids import EncodedPairs
from chatbot.corpus.reading.sources import find_sources
from chatbot.errors import UserError
from chatbot.evaluation.report import COLUMNS
from chatbot.flags import setting

if TYPE_CHECKING:
    from chatbot.model.saved import Trained

# The measures of replies, and who gives them without a model.
MEASURES = tuple(measure for _, measure, *_ in COLUMNS if not measure.startswith("fluency"))
PEOPLE, RANDOM = "people", "random"
ALL = "all"  # the group of all test pairs


@dataclasses.dataclass(frozen=True)
class QualityBenchmark(Recorded):
    """The flags of python -m benchmarks quality."""

    data: str = setting(
        ...,
        "pairs: question-answer pairs, one on each line; conversations: JSON lists of utterances, one on each line; "
        "dailydialog: its folder, with train.zip, validation.zip and test.zip or their text",
        group="data",
        metavar="FILE|FOLDER",
    )
    corpus: str = setting(
        "pairs",
        "what the data are; dailydialog-published has the split and the words of dialog-eval's figures",
        choices=tuple(CORPORA),
    )
    held_out: int = setting(2000, "pairs that are held out of a file of pairs", least=1)
    runs: tuple[str, ...] = setting(
        (AUTO,), "values of --preset; one run for each", group="training", choices=(AUTO, *PRESETS, NONE)
    )
    history: tuple[int, ...] = setting((0,), "turns before the question; one run for each", least=0)
    beam_size: tuple[int, ...] = setting(
        (5,), "beam search without looked-up replies, beside the default search; one row for each", least=1
    )


def measure(flags: QualityBenchmark, training_flags: Sequence[str]) -> dict[str, Any]:
    """Train and measure an attempt for each preset and number of turns before the question."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        corpus = CORPORA[flags.corpus](flags.data, flags.held_out, work)
        if flags.corpus == "pairs":
            results["count_models"] = measure_count_models(corpus.training, corpus.test, work / "cache")
            log(str(results["count_models"]))
        if corpus.dialogues:
            results["published"] = PUBLISHED[corpus.dialogues.split]
        results |= {"runs": [], "likelihood": [], "replies": []}
        for preset, history in itertools.product(flags.runs, flags.history):
            run = _trained(corpus, preset, history, training_flags, work)
            results["runs"].append(run)
            log(str(run))
            names = {name: run[name] for name in ("preset", "history")}
            for key, rows in measured(corpus, work / attempt_directory(_attempt(preset, history)), flags).items():
                results[key] += [{**names, **row} for row in rows]
    return results


def _attempt(preset: str, history: int) -> str:
    return f"{preset}-{history}"


def _trained(corpus: Corpus, preset: str, history: int, flags: Sequence[str], work: Path) -> dict[str, Any]:
    """Train an attempt. Returns its preset and history, the seconds of train.py, the best validation and its step."""
    own = ["--attempt", _attempt(preset, history), "--preset", preset, "--history", history, *corpus.flags]
    data = ["--data", corpus.training, "--validation", corpus.validation, "--cache", work / "cache"]
    began = time.perf_counter()
    output_of(python(ROOT / "train.py", *data, *own, *flags), work)
    seconds = time.perf_counter() - began
    directory = work / attempt_directory(_attempt(preset, history))
    nats, step = best_validation(directory)
    chosen = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["preset"]
    return {"preset": chosen, "history": history, "seconds": seconds, "nats_per_character": nats, "step": step}


def best_validation(directory: Path) -> tuple[float, int]:
    """Return the fewest nats per character of an attempt's validations, and their step. Raises UserError for none."""
    metrics, measure = directory / "metrics.jsonl", "validation.nats_per_character"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    validations = [(record[measure], record["step"]) for record in map(json.loads, lines) if measure in record]
    if not validations:
        raise UserError(f"{directory.name}: nothing was validated; train longer, or lower --validate-every")
    return min(validations)


def measured(corpus: Corpus, directory: Path, flags: QualityBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Return rows of the likelihood of an attempt for all test pairs and each group, and of the measures of replies.

    nats_per_word: of the words of the true replies and their ends, where the texts are known. The replies are those of
    the chat's default search, of beam searches, of people, and random ones: of training, where its texts are known.
    """
    from chatbot.corpus.tokenizer import tokens_of
    from chatbot.evaluation.evaluate import reply
    from chatbot.evaluation.likelihood import Scorer
    from chatbot.evaluation.measures import Measurer, samples_of
    from chatbot.inference.responder import TensorFlowModel, replier_of
    from chatbot.model.saved import load_trained

    trained = load_trained(directory)
    parts = {file: _encoded(trained, corpus, file) for file in {corpus.test, corpus.validation}}
    samples, test = samples_of(parts[corpus.test]), parts[corpus.test].shards
    texts = corpus.pairs.get(corpus.test) or [(sample.question, sample.answer) for sample in samples]
    scorer, model, vocabulary = Scorer(trained.model), TensorFlowModel(trained.model), trained.vocabulary
    tokens = tokens_of(trained.settings.corpus)

    searches = {"chat": with_default_search(DecodingSettings(), directory)}
    searches |= {f"beam {size}": DecodingSettings(beam_size=size, retrieve=NONE) for size in flags.beam_size}
    replies = {name: reply(replier_of(trained, search, model), samples) for name, search in searches.items()}
    replies[PEOPLE], replies[RANDOM] = [answer for _, answer in texts], random_replies(corpus, texts)

    likelihood, measures = [], []
    for group, rows in {ALL: range(len(samples)), **corpus.groups}.items():
        if not rows:
            continue
        pairs, score = [texts[i] for i in rows], scorer(selected(test, rows))
        row = {"pairs of": group, "pairs": len(rows), "nats_per_character": score.nats_per_character}
        known = {"nats_per_word": score.nats / words_and_ends(pairs)} if corpus.dialogues else {}
        likelihood.append({**row, **known})
        measurer = Measurer([samples[i] for i in rows], vocabulary, tokens, None)
        for name, of_test in replies.items():
            chosen = [of_test[i] for i in rows]
            values: dict[str, Any] = {key: value for key, value in measurer(chosen).items() if key in MEASURES}
            if corpus.dialogues:
                values = corpus.dialogues.measure(pairs, chosen)
            measures.append({"pairs of": group, "replies": name, **values})
    if corpus.dialogues:
        pairs, score = corpus.pairs[corpus.validation], scorer(parts[corpus.validation].shards)
        row = {"pairs of": "validation", "pairs": len(pairs), "nats_per_character": score.nats_per_character}
        likelihood.append({**row, "nats_per_word": score.nats / words_and_ends(pairs)})
    return {"likelihood": likelihood, "replies": measures}


def random_replies(corpus: Corpus, texts: Sequence[tuple[str, str]]) -> list[str]:
    """Return a reply to each test question, drawn by a seed: of training, or of the other test questions."""
    draw, others = random.Random(SEED), corpus.pairs.get(corpus.training)
    if others:
        return draw.choices([answer for _, answer in others], k=len(texts))
    order = draw.sample(range(len(texts)), len(texts))
    answers = dict(zip(order, order[1:] + order[:1], strict=True))
    return [texts[answers[i]][1] for i in range(len(texts))]


def selected(shards: Sequence[EncodedPairs], rows: Sequence[int]) -> Iterator[EncodedPairs]:
    """Yield the pairs in these rows, counted over all shards."""
    numbers, first = np.asarray(rows, np.int64), 0
    for shard in shards:
        yield shard.select(numbers[(numbers >= first) & (numbers < first + len(shard))] - first)
        first += len(shard)


def _encoded(trained: "Trained", corpus: Corpus, file: Path) -> Any:
    """Return the encoded pairs of a file. Raises UserError if the attempt's cleaning leaves some of them out."""
    from chatbot.evaluation.sources import held_out_corpus

    reading = EvaluationSettings(data=(str(file),), format=corpus.format, cache=str(file.parent / "cache"))
    encoded = held_out_corpus(trained, find_sources([str(file)]), reading)
    known = len(corpus.pairs.get(file, ())) or encoded.pairs
    if encoded.pairs != known:
        raise UserError(
            f"{file.name}: the cleaning of the attempt leaves {encoded.pairs:,} of {known:,} pairs; leave --clean away"
        )
    return encoded


quality_benchmark = Benchmark(
    "quality",
    QualityBenchmark,
    "Train on a part of a corpus, and measure the likelihood of the rest and the replies to it, beside models that "
    "only count, and beside published figures. What follows -- are flags of train.py: --data pairs.tsv -- "
    "--rnn-size 512",
    measure,
    trains=True,
)
