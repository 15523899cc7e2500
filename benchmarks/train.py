"""Training speed of this project, OpenNMT-py and a tuned PyTorch model, with equal tokens and sizes, in turns."""

import dataclasses
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.model_flags import ModelFlags
from benchmarks.peers import Peers
from benchmarks.report import log, print_json
from benchmarks.tokenised import TokenisedPairs, read_tokenised
from benchmarks.worker import Worker, ask_all
from chatbot.command_line import CommandLine
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import replace, setting
from chatbot.training.devices.towers import open_towers

FLOAT32, BFLOAT16 = "float32", "bfloat16"
# Batches over which the parts of a step are averaged.
PROFILED_BATCHES = 6
PROFILE = "profile"  # a request to the worker

# Rows of the tuned PyTorch model. The tied one is the same model as this project's: the embedding is the projection.
TORCH = {
    "torch_tied_float32": {"bf16": False, "tied": True},
    "torch_tied_bfloat16": {"bf16": True, "tied": True},
    "torch_float32": {"bf16": False, "tied": False},
    "torch_bfloat16": {"bf16": True, "tied": False},
}


@dataclasses.dataclass(frozen=True)
class TrainBenchmark(ModelFlags):
    """The flags of python -m benchmarks train."""

    data: str = setting(..., "question-answer pairs, such as LCCC's", group="data", metavar="FILE")
    num_layers: int = setting(2, "recurrent layers of each side", group="model", least=1)
    peers: str | None = setting(
        None,
        "also measure other systems: the folder with torch_seq2seq.py and opennmt.yaml",
        group="peers",
        metavar="FOLDER",
    )
    torch: str = setting("", "virtual environment with PyTorch", metavar="FOLDER")
    opennmt: str = setting("", "virtual environment with OpenNMT-py", metavar="FOLDER")

    @property
    def settings(self) -> Settings:
        """The settings of the model: one direction and no dropout, as in the other systems."""
        return replace(
            super().settings, num_layers=self.num_layers, bidirectional=False, keep_prob=1.0, learning_rate=0.001
        )

    def open_peers(self, work: Path) -> Peers | None:
        """Return the other systems, None without --peers.

        Raises UserError for a path that does not exist, and for sizes other than those in their configuration.
        """
        if self.peers is None:
            return None
        sizes = (self.rnn_size, self.num_layers, self.embedding_size, self.max_length, self.batch_size)
        if sizes != (512, 2, 256, 20, 64):
            raise UserError(
                "--peers: the other systems are configured for the default sizes; leave out the flags of the model"
            )
        scripts, torch, opennmt = (Path(folder).absolute() for folder in (self.peers, self.torch, self.opennmt))
        return Peers(scripts, torch, opennmt, work, len(os.sched_getaffinity(0)))


def train_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print tables and a verdict, and as the last line one JSON object."""
    about = "Measure training speed on this machine, with --peers also that of OpenNMT-py and a tuned PyTorch model."
    flags = CommandLine(TrainBenchmark, "-m benchmarks train", about).parse(arguments)
    pairs = read_tokenised(flags.data, flags.max_length, flags.vocabulary_size)
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags)}
    results |= {"pairs": len(pairs.pairs), "vocabulary": len(pairs.vocabulary) + len(SPECIALS)}
    with tempfile.TemporaryDirectory() as folder:
        peers = flags.open_peers(Path(folder))
        systems: dict[str, Callable[[], float]] = {}
        with (
            Worker(_training_worker, flags, pairs, FLOAT32) as float32,
            Worker(_training_worker, flags, pairs, BFLOAT16) as bfloat16,
        ):
            systems["float32"] = lambda: ask_all([float32])[0]
            systems["bfloat16"] = lambda: ask_all([bfloat16])[0]
            if peers is not None:
                pairs.write(Path(folder), "train")
                pairs.write(Path(folder), "valid")
                peers.prepare_opennmt()
                for name, options in TORCH.items():
                    systems[name] = partial(peers.train_torch, flags.steps, flags.vocabulary_size, **options)
                systems["opennmt"] = lambda: peers.train_opennmt(flags.steps)
            rates = measure_in_turns(systems, flags.rounds)
            results["target_tokens_per_s"] = {name: statistics.median(values) for name, values in rates.items()}
            best = max((FLOAT32, BFLOAT16), key=lambda name: results["target_tokens_per_s"][name])
            results["precision"] = best
            results |= ask_all([float32 if best == FLOAT32 else bfloat16], PROFILE)[0]
    print_rates(rates)
    results["ratios"] = ratios(results["target_tokens_per_s"], best)
    print(f"Verdict: {verdict(results)}.")
    print_json(results)
    return 0


def measure_in_turns(systems: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure every system once in each round. Returns the rates by system, in order of the rounds."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        for name, measure in systems.items():
            rates[name].append(measure())
            log(f"round {number + 1}, {name}: {rates[name][-1]:,.1f}")
    return rates


def print_rates(rates: dict[str, list[float]]) -> None:
    """Print the median rate of each system, and its lowest and highest."""
    print(f"{'system':>19}  target tokens/s  lowest and highest round")
    for name, values in rates.items():
        print(f"{name:>19}  {statistics.median(values):15,.0f}  {min(values):,.0f} to {max(values):,.0f}")


def ratios(medians: dict[str, float], best: str) -> dict[str, float]:
    """Return this project's rate over that of each other system, at the best precision of both and in float32.

    torch_tied_best and torch_tied_float32 compare equal models. medians: the rates by system. best: this project's
    faster precision. Empty without other systems.
    """
    of_others = {}
    if "opennmt" in medians:
        of_others["opennmt"] = medians[best] / medians["opennmt"]
        for model in ("torch_tied", "torch"):
            of_others[f"{model}_best"] = medians[best] / max(medians[f"{model}_{name}"] for name in (FLOAT32, BFLOAT16))
            of_others[f"{model}_float32"] = medians[FLOAT32] / medians[f"{model}_float32"]
    return of_others


def verdict(results: dict[str, Any]) -> str:
    """Return the results in one sentence."""
    parts = [
        f"{results['target_tokens_per_s'][results['precision']]:,.0f} target tokens/s in {results['precision']}",
        f"{results['of_limit']:.0%} of the limit that the matrix products alone set",
    ]
    if results["ratios"]:
        parts.append(
            "{torch_tied_best:.2f} times the same model in tuned PyTorch at its best, {torch_tied_float32:.2f} times "
            "in float32; {torch_best:.2f} times the untied one at its best; {opennmt:.2f} times OpenNMT-py".format(
                **results["ratios"]
            )
        )
    return "; ".join(parts)


def _training_worker(flags: TrainBenchmark, pairs: TokenisedPairs, precision: str) -> Callable[[str], Any]:
    """Train as train.py does. A request trains for one turn and gives its rate; PROFILE gives the parts of a step."""
    towers = open_towers([], None)
    from benchmarks.limit import products_of, seconds_of, seconds_of_parts, seconds_of_update, table
    from chatbot.corpus.batches import Batches
    from chatbot.corpus.workers import prefetched
    from chatbot.model.new_model import built_model
    from chatbot.training.loop import Window
    from chatbot.training.update import open_update

    settings, vocabulary = flags.settings, len(pairs.vocabulary) + len(SPECIALS)
    model = built_model(settings.model, vocabulary, settings.learning.seed, precision)
    step = open_update(model, settings, towers)
    step.scatter_state(step.gather_state())
    batches = Batches([pairs.encoded()], settings.learning.batch_size, settings.learning.seed)
    window = Window(prefetched(zip(batches.from_step(0, step.num_shares), itertools.count()), step.prepare))

    def turn(steps: int) -> dict[str, float]:
        window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            step(window.next_batch(), settings.learning.learning_rate)
        record = window.record(0, settings.learning.learning_rate, step.finished_steps())
        return {**record, "step_s": (time.perf_counter() - began) / steps}

    def profile() -> dict[str, Any]:
        """Measure the time of a step, of its parts and of their products: means over the same batches."""
        parts: dict[str, float] = {}
        of_products: dict[str, float] = {}
        profiled = [window.next_batch() for _ in range(PROFILED_BATCHES)]
        for batch in profiled:
            for name, seconds in seconds_of_parts(model, step.preparation.tensors(batch.shares[0][0])).items():
                parts[name] = parts.get(name, 0.0) + seconds / PROFILED_BATCHES
            products = products_of(settings, vocabulary, batch.batch.shares[0])
            for name in {product.part for product in products}:
                alone = seconds_of([p for p in products if p.part == name], precision)
                of_products[name] = of_products.get(name, 0.0) + alone / PROFILED_BATCHES
        times = []
        for batch in profiled * 2:
            began = time.perf_counter()
            step(batch, settings.learning.learning_rate)
            step.finished_steps()[-1].gradient_norm.numpy()
            times.append(time.perf_counter() - began)
        whole = statistics.mean(times[PROFILED_BATCHES:])
        parts["optimizer"] = seconds_of_update(model, settings)
        parts["input"] = turn(flags.steps)["input_wait"] * whole
        parts["overhead"] = whole - sum(parts.values())  # below 0 where parts overlap in the step
        rows = [
            (name, seconds, of_products.get(name, 0.0)) for name, seconds in sorted(parts.items(), key=lambda p: -p[1])
        ]
        print(f"A step in {precision}, {1e3 * whole:.1f} ms:\n{table(rows)}", flush=True)
        return {
            "step_s": whole,
            "limit_s": sum(of_products.values()),
            "of_limit": sum(of_products.values()) / whole,
            "parts_s": parts,
            "products_s": of_products,
        }

    turn(batches.steps_per_epoch)  # traces every shape and touches the memory
    return lambda request: profile() if request == PROFILE else turn(flags.steps)["target_tokens_per_s"]
