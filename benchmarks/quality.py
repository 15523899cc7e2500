"""Trains models on a corpus, and compares their likelihood and their replies with n-gram models and with people."""

import dataclasses
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import output_of, python
from benchmarks.tokenised import character_corpora
from chatbot.attempts.curves import VALIDATION, read_records
from chatbot.attempts.files import CONFIG, METRICS
from chatbot.attempts.settings import with_default_search
from chatbot.attempts.trained import Trained, load_trained
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import HeldOutSettings
from chatbot.config.run import PRESETS
from chatbot.corpus.dataset import Corpus as Dataset
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.tokenizer import tokens_of
from chatbot.decoding.ngrams import Ngrams, count_ngrams, positions_of
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.evaluation.evaluate import reply
from chatbot.evaluation.held_out import held_out_corpus
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Measurer, probabilities, samples_of
from chatbot.evaluation.report import COLUMNS
from chatbot.flags import setting
from chatbot.inference.tensorflow_model import TensorFlowModel, replier_for

# The measures of replies, and the names of the replies that people wrote: the right ones, and those to other questions.
MEASURES = tuple(measure for _, measure, *_ in COLUMNS if not measure.startswith("fluency"))
PEOPLE = "people"
RANDOM = "random"
ALL = "all"  # name of the group of all held-out pairs
SEED = 7
HELD_OUT = 10  # every tenth conversation is held out
ORDERS = (2, 3, 4)  # orders of the n-gram models
COPY_WEIGHT = 0.09  # weight of copying from the question when it is combined with an n-gram model

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class QualityBenchmark(Recorded):
    """The flags of `python -m benchmarks quality`."""

    data: str = setting(
        ...,
        "file with one pair per line, or with one conversation per line as a JSON list of utterances",
        group="data",
        metavar="FILE",
    )
    corpus: str = setting("pairs", "content of the --data file", choices=("pairs", "conversations"))
    held_out: int = setting(2000, "number of pairs to hold out of a file of pairs", minimum=1)
    runs: tuple[str, ...] = setting(
        (AUTO,), "values of --preset, with one training run for each", group="training", choices=(AUTO, *PRESETS, NONE)
    )
    history: tuple[int, ...] = setting(
        (0,), "numbers of previous turns to read, with one training run for each", minimum=0
    )
    beam_size: tuple[int, ...] = setting(
        (5,), "beam sizes to evaluate without retrieval, besides the default search", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus that is split into training pairs and held-out pairs.

    Attributes:
        training: The file of training pairs.
        held_out: The file of held-out pairs.
        flags: Additional flags for train.py.
        groups: Groups of held-out pairs that are evaluated separately: the row indices of each group, by name.
    """

    training: Path
    held_out: Path
    flags: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)


def split(data: str, held_out: int, folder: Path) -> tuple[Path, Path]:
    """Shuffle the lines of a file and split them into a training file and a held-out file.

    Raises UserError if the file cannot be read or has too few lines.
    """
    lines = lines_of(data)
    if len(lines) <= held_out:
        raise UserError(
            f"--held-out {held_out}: {data} has only {pluralize(len(lines), 'line')}, and some must remain for training"
        )
    random.Random(SEED).shuffle(lines)
    return _write_parts(lines[held_out:], lines[:held_out], folder, Path(data).suffix)


def conversations(data: str, folder: Path) -> Corpus:
    """Hold out every tenth conversation of a file.

    The first turns of the conversations and their later turns are separate groups. The flags for train.py disable all
    cleaning rules that drop pairs. Raises UserError like `split`.
    """
    lines = lines_of(data)
    if len(lines) < HELD_OUT:
        raise UserError(f"{data}: {pluralize(len(lines), 'conversation')}; at least {HELD_OUT} are needed")
    held_out = lines[HELD_OUT - 1 :: HELD_OUT]
    files = _write_parts([line for n, line in enumerate(lines, 1) if n % HELD_OUT], held_out, folder, ".jsonl")
    is_first = [turn == 0 for line in held_out for turn in range(len(json.loads(line)) - 1)]
    groups = {name: [i for i, x in enumerate(is_first) if x == first] for name, first in (("first", 1), ("later", 0))}
    return Corpus(*files, ("--clean", "control"), groups)


def lines_of(data: str) -> list[str]:
    """Read the lines of a UTF-8 text file. Raises UserError if the file cannot be read."""
    try:
        return Path(data).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise UserError(f"{data}: cannot be read as UTF-8; use a file with one pair per line") from None


def _write_parts(training: Sequence[str], held_out: Sequence[str], folder: Path, suffix: str) -> tuple[Path, Path]:
    files = folder / f"train{suffix}", folder / f"held_out{suffix}"
    for file, part in zip(files, (training, held_out), strict=True):
        file.write_text("\n".join(part) + "\n", encoding="utf-8")
    return files


def measure_count_models(training: Path, held_out: Path, cache: Path) -> dict[str, float]:
    """Measure the nats per character of held-out replies under n-gram models, with and without copying.

    The n-gram models use interpolated modified Kneser-Ney smoothing. Their tokens are characters, with rare characters
    as bytes. The pairs are read in the same way as by train.py.
    """
    corpus, validation = character_corpora(training, held_out, cache)
    pairs = [*validation.shards]
    size = len(corpus.vocabulary)
    nats = {}
    for order in ORDERS:
        replies = count_ngrams((part.targets for part in corpus.shards), size, order)
        nats[f"{order}-gram of replies"] = nats_per_character(replies, pairs)
    for order in ORDERS:
        both_sides = count_ngrams(_both_sides(corpus), size, order)
        nats[f"{order}-gram of both sides"] = nats_per_character(both_sides, pairs)
    nats[f"{order}-gram of both sides, and copy"] = nats_per_character(both_sides, pairs, COPY_WEIGHT)
    return nats


def _both_sides(corpus: Dataset) -> Iterator[Ragged]:
    return (side for part in corpus.shards for side in (part.targets, part.sources))


def nats_per_character(ngrams: Ngrams, pairs: Iterable[EncodedPairs], copy_weight: float = 0.0) -> float:
    """Return the negative log-likelihood of the replies per character.

    Args:
        ngrams: The n-gram model.
        pairs: The question-answer pairs.
        copy_weight: The weight of copying, which is a uniform distribution over the ids of the question.
    """
    nats = 0.0
    characters = 0
    for part in pairs:
        probability = probabilities(ngrams, part.targets)
        if copy_weight:
            probability = (1 - copy_weight) * probability + copy_weight * copy_probabilities(part)
        nats -= float(np.log(probability).sum())
        characters += int(part.characters.sum())
    return nats / characters


def copy_probabilities(pairs: EncodedPairs) -> Floats:
    """Return the probability of each reply token, including EOS, if every token is a random token of the question.

    The result has the shape [reply tokens].
    """
    size = 1 + int(max(pairs.sources.joined().max(), pairs.targets.joined().max()))
    question_keys, counts = np.unique(_rows(pairs.sources.lengths) * size + pairs.sources.joined(), return_counts=True)
    _, ids = positions_of(pairs.targets, 2)
    rows = _rows(pairs.targets.lengths + 1)
    reply_keys = rows * size + ids
    places = np.minimum(np.searchsorted(question_keys, reply_keys), len(question_keys) - 1)
    return np.where(question_keys[places] == reply_keys, counts[places], 0) / pairs.sources.lengths[rows]


def _rows(lengths: Ids) -> Ids:
    """Return the row index of each element of a ragged array."""
    return np.repeat(np.arange(len(lengths)), lengths)


def measure(flags: QualityBenchmark, training_flags: Sequence[str]) -> dict[str, Any]:
    """Train and evaluate an attempt for each combination of preset and history length."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if flags.corpus == "pairs":
            corpus = Corpus(*split(flags.data, flags.held_out, work))
            results["count_models"] = measure_count_models(corpus.training, corpus.held_out, work / "cache")
            log(str(results["count_models"]))
        else:
            corpus = conversations(flags.data, work)
        results |= {"runs": [], "likelihood": [], "replies": []}
        for preset, history in itertools.product(flags.runs, flags.history):
            directory = work / attempt_directory(f"{preset}-{history}")
            results["runs"].append(_train(corpus, preset, history, training_flags, directory))
            log(str(results["runs"][-1]))
            names = {name: results["runs"][-1][name] for name in ("preset", "history")}
            for key, rows in measure_attempt(corpus, directory, flags).items():
                results[key] += [{**names, **row} for row in rows]
    return results


def _train(corpus: Corpus, preset: str, history: int, flags: Sequence[str], directory: Path) -> dict[str, Any]:
    """Train an attempt, and return its preset, history, training time, best validation loss and best step."""
    work = directory.parents[1]
    run_flags = ["--attempt", directory.name, "--preset", preset, "--history", history, *corpus.flags]
    data = ["--data", corpus.training, "--validation", corpus.held_out, "--cache", work / "cache"]
    began = time.perf_counter()
    output_of(python(ROOT / "train.py", *data, *run_flags, *flags), work)
    seconds = time.perf_counter() - began
    nats, step = best_validation(directory)
    chosen = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["preset"]
    return {"preset": chosen, "history": history, "seconds": seconds, "nats_per_character": nats, "step": step}


def validations(directory: Path) -> list[tuple[float, int]]:
    """Return the validation losses of an attempt in nats per character, each with its step.

    Raises UserError if the attempt was not validated.
    """
    records = read_records(directory / METRICS)
    found = [(record[VALIDATION], record["step"]) for record in records if VALIDATION in record]
    if not found:
        raise UserError(f"{directory.name}: no validation; train longer, or lower --validate-every")
    return found


def best_validation(directory: Path) -> tuple[float, int]:
    """Return the lowest validation loss of an attempt, in nats per character, and its step; see `validations`."""
    return min(validations(directory))


def measure_attempt(corpus: Corpus, directory: Path, flags: QualityBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Measure the likelihood and the replies of a trained model for all held-out pairs and for each group.

    The replies of its default search and of beam searches are compared with those that people wrote, both to the same
    questions and to other questions.

    Returns:
        The table rows, by the keys "likelihood" and "replies".
    """
    trained = load_trained(directory)
    encoded = _encode(trained, corpus)
    samples = samples_of(encoded)
    scorer = Scorer(trained.model)
    model = TensorFlowModel(trained.model)
    tokens = tokens_of(trained.settings.corpus)

    searches = {"chat": with_default_search(DecodingSettings(), directory)}
    searches |= {f"beam {size}": DecodingSettings(beam_size=size, retrieve=NONE) for size in flags.beam_size}
    replies = {name: reply(replier_for(trained, search, model), samples) for name, search in searches.items()}
    replies[PEOPLE] = [sample.answer for sample in samples]
    replies[RANDOM] = random_replies(replies[PEOPLE])

    likelihood = []
    measures = []
    for group, rows in {ALL: range(len(samples)), **corpus.groups}.items():
        if not rows:
            continue
        nats = scorer(select(encoded.shards, rows)).nats_per_character
        likelihood.append({"pairs of": group, "pairs": len(rows), "nats_per_character": nats})
        measurer = Measurer([samples[i] for i in rows], trained.vocabulary, tokens, None)
        for name, texts in replies.items():
            values = measurer([texts[i] for i in rows])
            measures.append(
                {"pairs of": group, "replies": name, **{key: values[key] for key in MEASURES if key in values}}
            )
    return {"likelihood": likelihood, "replies": measures}


def random_replies(answers: Sequence[str]) -> list[str]:
    """Randomly assign to each question the answer to another question, with a fixed seed."""
    order = random.Random(SEED).sample(range(len(answers)), len(answers))
    others = dict(zip(order, order[1:] + order[:1], strict=True))
    return [answers[others[i]] for i in range(len(answers))]


def select(shards: Sequence[EncodedPairs], rows: Sequence[int]) -> Iterator[EncodedPairs]:
    """Yield the pairs with these row indices. The rows of all shards are numbered consecutively."""
    numbers = np.asarray(rows, np.int64)
    first = 0
    for shard in shards:
        yield shard.select(numbers[(numbers >= first) & (numbers < first + len(shard))] - first)
        first += len(shard)


def _encode(trained: Trained, corpus: Corpus) -> Any:
    """Encode the held-out pairs for a model. Raises UserError if cleaning drops pairs, because groups need all rows."""
    file = corpus.held_out
    encoded = held_out_corpus(
        trained, find_sources([str(file)]), HeldOutSettings(data=(str(file),), cache=str(file.parent / "cache"))
    )
    known = sum(map(len, corpus.groups.values())) or encoded.pairs
    if encoded.pairs != known:
        raise UserError(
            f"{file.name}: the cleaning of the attempt leaves {encoded.pairs:,} of {known:,} pairs; leave out --clean"
        )
    return encoded


BENCHMARK = Benchmark(
    "quality",
    QualityBenchmark,
    "Train on a part of a corpus, and measure the likelihood of the rest and the replies to it, beside models that "
    "only count. Flags of train.py follow after --: --data pairs.tsv -- --rnn-size 512",
    measure,
    trains=True,
)
