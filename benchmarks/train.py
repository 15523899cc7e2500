"""Training, side by side with what users would pick instead: the same words, the same sizes, turn by turn."""

import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.apart import Apart, together
from benchmarks.peers import Peers
from benchmarks.same_words import SameWords, words_of
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import check_fields, compose, parse_flags, setting
from chatbot.training.devices import open_towers

FLOAT32, BFLOAT16 = "float32", "bfloat16"
# Batches that the table of parts is measured on.
LOOKED_AT = 6
LIMIT = "limit"


@dataclasses.dataclass(frozen=True)
class TrainBenchmark:
    """What python -m benchmarks train is told."""

    data: str = setting(..., "data", "question-answer pairs, such as LCCC's", metavar="FILE")
    rnn_size: int = setting(512, "model", "units of each recurrent layer", kind=int, least=1)
    num_layers: int = setting(2, "model", "recurrent layers of each side", kind=int, least=1)
    embedding_size: int = setting(256, "model", "units of an embedding", kind=int, least=1)
    vocabulary_size: int = setting(16_000, "model", "most entries in the vocabulary", kind=int, least=len(SPECIALS) + 1)
    max_length: int = setting(20, "model", "tokens of the longest question and reply", kind=int, least=2)
    batch_size: int = setting(64, "model", "pairs in a step", kind=int, least=1)
    rounds: int = setting(
        5, "measuring", "rounds, whose median counts; each system has a turn in each", kind=int, least=1
    )
    steps: int = setting(60, "measuring", "steps in a turn", kind=int, least=1)
    peers: str | None = setting(
        None, "peers", "measure others, too: the folder with torch_seq2seq.py and opennmt.yaml", metavar="FOLDER"
    )
    torch: str = setting("", "peers", "virtual environment with PyTorch", metavar="FOLDER")
    opennmt: str = setting("", "peers", "virtual environment with OpenNMT-py", metavar="FOLDER")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def settings(self) -> Settings:
        """Of the model: one direction and no dropout, as the others have it."""
        return compose(
            Settings,
            rnn_size=self.rnn_size,
            num_layers=self.num_layers,
            embedding_size=self.embedding_size,
            max_length=self.max_length,
            batch_size=self.batch_size,
            bidirectional=False,
            keep_prob=1.0,
            learning_rate=0.001,
        )

    def found_peers(self, work: Path) -> Peers | None:
        """Raises UserError for what is not there, and for sizes that the others were not written down with."""
        if self.peers is None:
            return None
        sizes = (self.rnn_size, self.num_layers, self.embedding_size, self.max_length, self.batch_size)
        if sizes != (512, 2, 256, 20, 64):
            raise UserError("--peers: their sizes are the defaults; leave the flags of the model out")
        scripts, torch, opennmt = (Path(folder).absolute() for folder in (self.peers, self.torch, self.opennmt))
        return Peers(scripts, torch, opennmt, work, len(os.sched_getaffinity(0)))


def train_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables and a verdict, and as the last line one JSON object."""
    about = "Measure training on this machine, if asked for beside OpenNMT-py and a tuned PyTorch model."
    told = TrainBenchmark(**parse_flags(TrainBenchmark, "-m benchmarks train", about, arguments))
    words = words_of(told.data, told.max_length, told.vocabulary_size)
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(told)}
    found |= {"pairs": len(words.pairs), "vocabulary": len(words.vocabulary) + len(SPECIALS)}
    with tempfile.TemporaryDirectory() as folder:
        peers = told.found_peers(Path(folder))
        systems: dict[str, Callable[[], float]] = {}
        with Apart(_ours, told, words, FLOAT32) as full, Apart(_ours, told, words, BFLOAT16) as half:
            systems["float32"] = lambda: together([full])[0]
            systems["bfloat16"] = lambda: together([half])[0]
            if peers is not None:
                words.write(Path(folder), "train")
                words.write(Path(folder), "valid")
                peers.prepare_opennmt()
                systems["torch_float32"] = lambda: peers.train_torch(told.steps, False, told.vocabulary_size)
                systems["torch_bfloat16"] = lambda: peers.train_torch(told.steps, True, told.vocabulary_size)
                systems["opennmt"] = lambda: peers.train_opennmt(told.steps)
            rates = in_turn(systems, told.rounds)
            found["target_tokens_per_s"] = {name: statistics.median(some) for name, some in rates.items()}
            best = max((FLOAT32, BFLOAT16), key=lambda name: found["target_tokens_per_s"][name])
            found["precision"] = best
            found |= together([full if best == FLOAT32 else half], LIMIT)[0]
    print_rates(rates)
    found["ratios"] = ratios(found["target_tokens_per_s"], best)
    print(f"Verdict: {verdict(found)}.")
    print(json.dumps(rounded(found)))
    return 0


def in_turn(systems: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each system reaches in each round."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, measure in systems.items():
            rates[name].append(measure())
            print(f"round {number + 1}, {name}: {rates[name][-1]:,.1f}", file=sys.stderr, flush=True)
    return rates


def print_rates(rates: dict[str, list[float]]) -> None:
    """The median of each, and how far apart its rounds were."""
    print(f"{'system':>16}  target tokens/s  of the rounds")
    for name, some in rates.items():
        print(f"{name:>16}  {statistics.median(some):15,.0f}  {min(some):,.0f} to {max(some):,.0f}")


def ratios(medians: dict[str, float], best: str) -> dict[str, float]:
    """Ours over each of the others: at our best precision against their best, and float32 against float32."""
    found = {}
    if "opennmt" in medians:
        found["opennmt"] = medians[best] / medians["opennmt"]
        found["torch_best"] = medians[best] / max(medians["torch_float32"], medians["torch_bfloat16"])
        found["torch_float32"] = medians[FLOAT32] / medians["torch_float32"]
    return found


def verdict(found: dict[str, Any]) -> str:
    said = [
        f"{found['target_tokens_per_s'][found['precision']]:,.0f} target tokens/s in {found['precision']}",
        f"{found['of_limit']:.0%} of what the matrix products alone would allow",
    ]
    if found["ratios"]:
        said.append(
            "{opennmt:.2f} times OpenNMT-py, {torch_best:.2f} times tuned PyTorch at its best, {torch_float32:.2f} "
            "times in float32".format(**found["ratios"])
        )
    return "; ".join(said)


def _ours(told: TrainBenchmark, words: SameWords, precision: str) -> Callable[[str], Any]:
    """Trains as train.py does, a turn at a time; asked for the limit, it takes the step apart."""
    towers = open_towers([], None)
    from benchmarks.limit import products_of, seconds_of, seconds_of_parts, seconds_of_update, table
    from chatbot.corpus.batching.batches import Batches
    from chatbot.model.seq2seq import built_model
    from chatbot.training.variable_update.choose import open_update
    from chatbot.training.window import Window

    settings, vocabulary = told.settings, len(words.vocabulary) + len(SPECIALS)
    model = built_model(settings.model, vocabulary, settings.learning.seed, precision)
    step = open_update(model, settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([words.encoded()], settings.learning.batch_size, settings.learning.seed)
    window = Window(batches.prefetched(0, step.num_shares))

    def turn(steps: int) -> dict[str, float]:
        window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            step(window.next_shares(), 0, settings.learning.learning_rate)
        record = window.record(0, settings.learning.learning_rate, step.finished_steps())
        return {**record, "step_s": (time.perf_counter() - began) / steps}

    def limit() -> dict[str, Any]:
        """The step's parts and their products, means over some batches that are then stepped through, too."""
        parts: dict[str, float] = {}
        least: dict[str, float] = {}
        shares = [window.next_shares() for _ in range(LOOKED_AT)]
        for (share,) in shares:
            for name, seconds in seconds_of_parts(model, share).items():
                parts[name] = parts.get(name, 0.0) + seconds / LOOKED_AT
            products = products_of(settings, vocabulary, share)
            for name in {product.part for product in products}:
                alone = seconds_of([p for p in products if p.part == name], precision)
                least[name] = least.get(name, 0.0) + alone / LOOKED_AT
        times = []
        for one in shares * 2:
            began = time.perf_counter()
            step(one, 0, settings.learning.learning_rate)
            step.finished_steps()[-1].gradient_norm.numpy()
            times.append(time.perf_counter() - began)
        whole = statistics.mean(times[LOOKED_AT:])
        parts["loss"] = parts["projection"] - least["projection"]
        parts["projection"] = least["projection"]
        parts["optimizer"] = seconds_of_update(model, settings)
        parts["input"] = turn(told.steps)["input_wait"] * whole
        parts["overhead"] = whole - sum(parts.values())
        rows = [(name, seconds, least.get(name, 0.0)) for name, seconds in sorted(parts.items(), key=lambda p: -p[1])]
        print(f"A step in {precision}, {1e3 * whole:.1f} ms:\n{table(rows)}", flush=True)
        return {
            "step_s": whole,
            "limit_s": sum(least.values()),
            "of_limit": sum(least.values()) / whole,
            "parts_s": parts,
            "products_s": least,
        }

    turn(batches.steps_per_epoch)  # every shape is traced, and memory touched
    return lambda question: limit() if question == LIMIT else turn(told.steps)["target_tokens_per_s"]


def rounded(value: Any) -> Any:
    """With as many digits as mean something."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
