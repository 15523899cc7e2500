"""Held-out likelihood and replies of this project on a corpus, beside models that only count."""

import dataclasses
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import output_of, python
from benchmarks.tokenised import character_corpora
from chatbot.attempts.files import CONFIG
from chatbot.attempts.settings import with_default_search
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import HeldOutSettings
from chatbot.config.run import PRESETS
from chatbot.corpus.dataset import Corpus as Dataset
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.reading.sources import find_sources
from chatbot.decoding.ngrams import Ngrams, ngrams_of, positions_of
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.evaluation.measures import probabilities
from chatbot.evaluation.report import COLUMNS
from chatbot.flags import setting

if TYPE_CHECKING:
    from chatbot.attempts.trained import Trained

# The measures of replies, and who gives them without a model.
MEASURES = tuple(measure for _, measure, *_ in COLUMNS if not measure.startswith("fluency"))
PEOPLE = "people"
RANDOM = "random"
ALL = "all"  # the group of all held-out pairs
SEED = 7
# One of as many conversations is held out.
HELD_OUT = 10
# The n-grams that are counted, and the share of the copy in its mixture with them.
ORDERS = (2, 3, 4)
COPY_WEIGHT = 0.09

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class QualityBenchmark(Recorded):
    """The flags of python -m benchmarks quality."""

    data: str = setting(
        ...,
        "pairs: question-answer pairs, one on each line; conversations: JSON lists of utterances, one on each line",
        group="data",
        metavar="FILE",
    )
    corpus: str = setting("pairs", "what the data are", choices=("pairs", "conversations"))
    held_out: int = setting(2000, "pairs that are held out of a file of pairs", least=1)
    runs: tuple[str, ...] = setting(
        (AUTO,), "values of --preset; one run for each", group="training", choices=(AUTO, *PRESETS, NONE)
    )
    history: tuple[int, ...] = setting((0,), "turns before the question; one run for each", least=0)
    beam_size: tuple[int, ...] = setting(
        (5,), "beam search without looked-up replies, beside the default search; one row for each", least=1
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files of pairs. flags: of train.py. groups: rows of held-out pairs that are measured for themselves."""

    training: Path
    held_out: Path
    flags: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)


def split(data: str, held_out: int, folder: Path) -> tuple[Path, Path]:
    """Write the lines of a file, shuffled, to a file to train on and a file of held-out ones.

    Raises UserError for a file that cannot be read and for too few lines.
    """
    lines = lines_of(data)
    if len(lines) <= held_out:
        raise UserError(
            f"--held-out {held_out}: {data} has {counted(len(lines), 'line')}, and training needs the others"
        )
    random.Random(SEED).shuffle(lines)
    return _written(lines[held_out:], lines[:held_out], folder, Path(data).suffix)


def conversations(data: str, folder: Path) -> Corpus:
    """Hold out every tenth of the conversations of a file. First and later turns are groups.

    No rule drops pairs, so that all runs learn and score the same turns. Raises UserError as `split` does.
    """
    lines = lines_of(data)
    if len(lines) < HELD_OUT:
        raise UserError(f"{data}: {counted(len(lines), 'conversation')}; at least {HELD_OUT} are needed")
    held_out = lines[HELD_OUT - 1 :: HELD_OUT]
    files = _written([line for n, line in enumerate(lines, 1) if n % HELD_OUT], held_out, folder, ".jsonl")
    is_first = [turn == 0 for line in held_out for turn in range(len(json.loads(line)) - 1)]
    groups = {name: [i for i, x in enumerate(is_first) if x == first] for name, first in (("first", 1), ("later", 0))}
    return Corpus(*files, ("--clean", "control"), groups)


def lines_of(data: str) -> list[str]:
    """Return the lines of a file of text. Raises UserError for another one."""
    try:
        return Path(data).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise UserError(f"{data}: cannot be read as UTF-8; give a file with one pair on each line") from None


def _written(training: Sequence[str], held_out: Sequence[str], folder: Path, suffix: str) -> tuple[Path, Path]:
    files = folder / f"train{suffix}", folder / f"held_out{suffix}"
    for file, part in zip(files, (training, held_out), strict=True):
        file.write_text("\n".join(part) + "\n", encoding="utf-8")
    return files


def measure_count_models(training: Path, held_out: Path, cache: Path) -> dict[str, float]:
    """Return the nats per character of whole held-out replies, end symbol included, by n-grams and copies.

    Tokens are characters, rare ones in bytes, and the pairs are those that train.py reads. Smoothing: interpolated
    modified Kneser-Ney.
    """
    corpus, validation = character_corpora(training, held_out, cache)
    pairs = [*validation.shards]
    size = len(corpus.vocabulary)
    nats = {}
    for order in ORDERS:
        replies = ngrams_of((part.targets for part in corpus.shards), size, order)
        nats[f"{order}-gram of replies"] = nats_per_character(replies, pairs)
    for order in ORDERS:
        both_sides = ngrams_of(_both_sides(corpus), size, order)
        nats[f"{order}-gram of both sides"] = nats_per_character(both_sides, pairs)
    nats[f"{order}-gram of both sides, and copy"] = nats_per_character(both_sides, pairs, COPY_WEIGHT)
    return nats


def _both_sides(corpus: Dataset) -> Iterator[Ragged]:
    return (side for part in corpus.shards for side in (part.targets, part.sources))


def nats_per_character(ngrams: Ngrams, pairs: Iterable[EncodedPairs], copy_weight: float = 0.0) -> float:
    """Return the negative log-likelihood of the replies over their characters.

    copy_weight: the share of a copy of one of the question's ids, each as probable as the others.
    """
    nats = 0.0
    characters = 0
    for part in pairs:
        of_ids = probabilities(ngrams, part.targets)
        if copy_weight:
            of_ids = (1 - copy_weight) * of_ids + copy_weight * copy_probabilities(part)
        nats -= float(np.log(of_ids).sum())
        characters += int(part.characters.sum())
    return nats / characters


def copy_probabilities(pairs: EncodedPairs) -> Floats:
    """Return the share of each id of the replies, and of EOS after them, in the ids of its question: [positions]."""
    size = 1 + int(max(pairs.sources.joined().max(), pairs.targets.joined().max()))
    keys, counts = np.unique(_rows(pairs.sources.lengths) * size + pairs.sources.joined(), return_counts=True)
    _, ids = positions_of(pairs.targets, 2)
    rows = _rows(pairs.targets.lengths + 1)
    wanted = rows * size + ids
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, counts[places], 0) / pairs.sources.lengths[rows]


def _rows(lengths: Ids) -> Ids:
    """Return the row of each element of ragged rows."""
    return np.repeat(np.arange(len(lengths)), lengths)


def measure(flags: QualityBenchmark, training_flags: Sequence[str]) -> dict[str, Any]:
    """Train and measure an attempt for each preset and number of turns before the question."""
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
            results["runs"].append(_trained(corpus, preset, history, training_flags, directory))
            log(str(results["runs"][-1]))
            names = {name: results["runs"][-1][name] for name in ("preset", "history")}
            for key, rows in measured(corpus, directory, flags).items():
                results[key] += [{**names, **row} for row in rows]
    return results


def _trained(corpus: Corpus, preset: str, history: int, flags: Sequence[str], directory: Path) -> dict[str, Any]:
    """Train an attempt. Returns its preset and history, the seconds of train.py, the best validation and its step."""
    work = directory.parents[1]
    own = ["--attempt", directory.name, "--preset", preset, "--history", history, *corpus.flags]
    data = ["--data", corpus.training, "--validation", corpus.held_out, "--cache", work / "cache"]
    began = time.perf_counter()
    output_of(python(ROOT / "train.py", *data, *own, *flags), work)
    seconds = time.perf_counter() - began
    nats, step = best_validation(directory)
    chosen = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["preset"]
    return {"preset": chosen, "history": history, "seconds": seconds, "nats_per_character": nats, "step": step}


def best_validation(directory: Path) -> tuple[float, int]:
    """Return the fewest nats per character of an attempt's validations, and their step. Raises UserError for none."""
    metrics = directory / "metrics.jsonl"
    measure = "validation.nats_per_character"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    validations = [(record[measure], record["step"]) for record in map(json.loads, lines) if measure in record]
    if not validations:
        raise UserError(f"{directory.name}: nothing was validated; train longer, or lower --validate-every")
    return min(validations)


def measured(corpus: Corpus, directory: Path, flags: QualityBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Return rows of an attempt's likelihood of all held-out pairs and of each group, and of the measures of replies.

    The replies are those of the chat's default search, of beam searches, of people, and random ones of other pairs.
    """
    from chatbot.attempts.trained import load_trained
    from chatbot.corpus.tokenizer import tokens_of
    from chatbot.evaluation.evaluate import reply
    from chatbot.evaluation.likelihood import Scorer
    from chatbot.evaluation.measures import Measurer, samples_of
    from chatbot.inference.tensorflow_model import TensorFlowModel, replier_of

    trained = load_trained(directory)
    encoded = _encoded(trained, corpus)
    samples = samples_of(encoded)
    scorer = Scorer(trained.model)
    model = TensorFlowModel(trained.model)
    tokens = tokens_of(trained.settings.corpus)

    searches = {"chat": with_default_search(DecodingSettings(), directory)}
    searches |= {f"beam {size}": DecodingSettings(beam_size=size, retrieve=NONE) for size in flags.beam_size}
    replies = {name: reply(replier_of(trained, search, model), samples) for name, search in searches.items()}
    replies[PEOPLE] = [sample.answer for sample in samples]
    replies[RANDOM] = random_replies(replies[PEOPLE])

    likelihood = []
    measures = []
    for group, rows in {ALL: range(len(samples)), **corpus.groups}.items():
        if not rows:
            continue
        nats = scorer(selected(encoded.shards, rows)).nats_per_character
        likelihood.append({"pairs of": group, "pairs": len(rows), "nats_per_character": nats})
        measurer = Measurer([samples[i] for i in rows], trained.vocabulary, tokens, None)
        for name, of_all in replies.items():
            values = measurer([of_all[i] for i in rows])
            measures.append(
                {"pairs of": group, "replies": name, **{key: values[key] for key in MEASURES if key in values}}
            )
    return {"likelihood": likelihood, "replies": measures}


def random_replies(answers: Sequence[str]) -> list[str]:
    """Return the answer to another question for each one, drawn by a seed."""
    order = random.Random(SEED).sample(range(len(answers)), len(answers))
    others = dict(zip(order, order[1:] + order[:1], strict=True))
    return [answers[others[i]] for i in range(len(answers))]


def selected(shards: Sequence[EncodedPairs], rows: Sequence[int]) -> Iterator[EncodedPairs]:
    """Yield the pairs in these rows, counted over all shards."""
    numbers = np.asarray(rows, np.int64)
    first = 0
    for shard in shards:
        yield shard.select(numbers[(numbers >= first) & (numbers < first + len(shard))] - first)
        first += len(shard)


def _encoded(trained: "Trained", corpus: Corpus) -> Any:
    """Return the encoded held-out pairs. Raises UserError if the attempt's cleaning leaves some of the groups out."""
    from chatbot.evaluation.held_out import held_out_corpus

    file = corpus.held_out
    encoded = held_out_corpus(
        trained, find_sources([str(file)]), HeldOutSettings(data=(str(file),), cache=str(file.parent / "cache"))
    )
    known = sum(map(len, corpus.groups.values())) or encoded.pairs
    if encoded.pairs != known:
        raise UserError(
            f"{file.name}: the cleaning of the attempt leaves {encoded.pairs:,} of {known:,} pairs; leave --clean away"
        )
    return encoded


quality_benchmark = Benchmark(
    "quality",
    QualityBenchmark,
    "Train on a part of a corpus, and measure the likelihood of the rest and the replies to it, beside models that "
    "only count. What follows -- are flags of train.py: --data pairs.tsv -- --rnn-size 512",
    measure,
    trains=True,
)
