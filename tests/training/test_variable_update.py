"""Every variable update equals the slow twin, skips what is not finite, and goes back and on to the bit."""

import functools
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.flags import replace
from chatbot.training import asynchronous
from chatbot.training.asynchronous import Asynchronous, Server
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.new_model import build_model
from chatbot.training.replica import Replica, part_names, variable_bytes
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.update import open_update
from chatbot.training.variable_update import StepResult
from tests.model.small_transformer import TRANSFORMER
from tests.training.slow_training import Outcome, SlowTraining

CPUS = [Tower(f"cpu_{i}", f"/CPU:{i}", "CPU", None) for i in range(4)]
# The average has the decay of its start in the first updates.
OPTIONS = {"freeze": "encoder,attention", "weight_decay": 0.5, "average": 0.3, "max_gradient_norm": 0.05}
DROPOUT = {"keep_prob": 0.5}
SHALLOW = {**TRANSFORMER, "num_layers": 1}
MOMENTUM, SGD = {"optimizer": "momentum", "learning_rate": 0.3}, {"optimizer": "sgd", "learning_rate": 1.0}
FLOAT16 = {"precision": "float16", **SGD}


class Way(NamedTuple):
    """A way to train. devices: their number. graphs: those of gradients that are traced."""

    devices: int
    graphs: int
    settings: dict[str, Any]


WAYS = {
    "parameter server": Way(2, 1, {**OPTIONS, **DROPOUT, "bidirectional": True}),
    "variables on the CPU, in pieces": Way(
        2,
        2,
        {"local_parameter_device": "cpu", "accumulate": 2, "cell": "gru", "weight_decay": 0.5, **DROPOUT, **MOMENTUM},
    ),
    "replicated, Transformer": Way(2, 2, {"variable_update": "replicated", **SHALLOW, **DROPOUT, **MOMENTUM}),
    "hierarchical": Way(2, 2, {"all_reduce": "hierarchical", **DROPOUT, **OPTIONS}),
    "model parallel": Way(4, 1, {"model_parallel": True, **OPTIONS, **DROPOUT}),
    "model parallel, Transformer": Way(3, 1, {"model_parallel": True, **SHALLOW}),
    "staged": Way(2, 2, {"staged_variables": True, "local_parameter_device": "cpu", **OPTIONS, **DROPOUT}),
    "independent": Way(2, 2, {"variable_update": "independent", "max_gradient_norm": 0.1, **DROPOUT}),
    "replicated, float16 in pieces": Way(2, 2, {"variable_update": "replicated", "accumulate": 2, **FLOAT16}),
    "staged, replicated float16": Way(
        2, 2, {"staged_variables": True, "variable_update": "replicated", "tied_embeddings": False, **FLOAT16}
    ),
    "independent, float16": Way(2, 2, {"variable_update": "independent", **FLOAT16}),
    "asynchronous": Way(1, 1, {"freeze": "encoder", "weight_decay": 0.5, "max_gradient_norm": 0.1, **DROPOUT}),
    "asynchronous, float16": Way(1, 1, FLOAT16),
}
# The first batch has a loss that is not a number, the third one a gradient whose norm overflows.
POISON = {0: np.float32("nan"), 2: np.float32(1e37)}
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    """The servers of the asynchronous update are devices of this process; every step runs on worker 1 of 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asynchronous, "CHIEF_DEVICE", "/CPU:0")
        patch.setattr(asynchronous, "Server", lambda device: Server(f"/CPU:{1 + int(device.split(':')[3][0])}"))
        index = "experimental_get_current_worker_index"
        patch.setattr(tf.distribute.coordinator, index, lambda: tf.constant(1))
        yield


def at_once(function: Any, args: tuple) -> Any:
    """Run a step as a coordinator schedules it."""
    results = function(*tf.nest.flatten(args))
    return SimpleNamespace(fetch=lambda: [result.numpy() for result in results])


class Opened:
    """A training step, whose graphs are traced once for all tests, with its batches and the state of its start."""

    def __init__(self, name: str) -> None:
        self.way, self.name = WAYS[name], name
        batch = {"batch_size": 19 // self.way.settings.get("accumulate", 1)}
        self.settings: Settings = replace(SETTINGS, **{**batch, **self.way.settings})
        learning, self.towers = self.settings.learning, CPUS[: self.way.devices]
        if self.settings.parallel.model_parallel:
            self.towers = spread(self.towers)
        self.is_float16, self.is_asynchronous = learning.precision == "float16", name.startswith("asynchronous")
        self.tolerance = 0.01 if self.is_float16 else 2e-5
        precision = "float16" if self.is_float16 else "float32"
        parts = self.towers[0].parts or ()
        with tf.device(self.towers[0].device):
            self.model = build_model(self.settings.model, VOCABULARY, learning.seed, precision, part_devices=parts)
        self.update: Any
        if self.is_asynchronous:
            self.update = Asynchronous(self.model, learning, SimpleNamespace(schedule=at_once), 3, 2)
            self.replicas = [self.update._replica]
        else:
            self.update = open_update(self.model, self.settings, self.towers)
            self.replicas = self.update.replicas
        self.start = [weight.numpy() for weight in self.model.trainable_variables], self.update.gather_state()
        shares = self.update.num_shares
        batches = Batches([random_pairs(67, 3)], learning.batch_size * learning.accumulate, learning.seed)
        self.batches = [*map(poisoned, islice(batches.from_step(0, shares), STEPS), range(STEPS))]

    def train(self, first: int = 0, last: int = STEPS) -> list[StepResult]:
        """Train from one step to another, the rate of which falls."""
        for number in range(first, last):
            self.update(self.update.prepare(self.batches[number], number), rate_of(self.settings, number))
        results: list[StepResult] = []
        while len(results) < last - first:  # each call waits for one at least
            results += self.update.finished_steps()
        return results

    def state(self) -> tuple[list[np.ndarray], Any]:
        """The content of a checkpoint."""
        state = self.update.gather_state()
        return [weight.numpy() for weight in self.model.trainable_variables], state

    def restore(self, weights: list[np.ndarray], state: Any) -> None:
        """Go back to a checkpoint, or to the start."""
        for variable, value in zip(self.model.trainable_variables, weights, strict=True):
            variable.assign(value)
        self.update.scatter_state(state)


def poisoned(batch: GlobalBatch, number: int) -> GlobalBatch:
    """The batch with a pair of the last tower that is not finite, in some steps."""
    if number not in POISON:
        return batch
    *others, last = batch.shares
    weights = last.weights.copy()
    weights[0] *= POISON[number]
    return batch._replace(shares=(*others, last._replace(weights=np.where(last.weights == 0, 0, weights))))


def rate_of(settings: Settings, number: int) -> float:
    """The learning rate of a step."""
    return settings.learning.learning_rate / (1 + number % 3)


@functools.cache
def opened(name: str) -> Opened:
    """A step whose graphs are traced."""
    way = Opened(name)
    way.train()
    return way


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Opened:
    """Each way to train."""
    return opened(request.param)


def twins_of(way: Opened) -> list[SlowTraining]:
    """The twin of all towers, or of each that trains by itself."""
    towers = [*range(way.update.num_shares)]
    groups = [[i] for i in towers] if way.name.startswith("independent") else [towers]
    settings, learning = way.settings, way.settings.learning
    models = [build_model(settings.model, VOCABULARY, learning.seed) for _ in groups]
    return [
        SlowTraining(model, settings, group, counts_skipped=way.is_asynchronous)
        for model, group in zip(models, groups, strict=True)
    ]


def own_state(replica: Replica, averages: bool) -> list[list[np.ndarray]]:
    """The weights, the averages and each kind of slot of a replica, in the order of the model's variables."""
    kinds = [*zip(*replica._slots.values(), strict=True)]
    of_kinds = [replica.by_variable(kind, replica.trained) for kind in kinds]
    kept = [replica.by_variable(replica._averages)] if averages and replica._averages else []
    return [[x.numpy() for x in part] for part in (replica.by_variable(replica.weights), *kept, *of_kinds)]


def test_update_equals_the_slow_twin(way: Opened) -> None:
    """After each step: each weight of each replica, its slots and its average, and the result of the step."""
    way.restore(*way.start)
    twins = twins_of(way)
    course = []
    for number, batch in enumerate(way.batches):
        (result,) = way.train(number, number + 1)
        outcomes = [twin.step(number, batch.shares, rate_of(way.settings, number)) for twin in twins]
        assert_result(way, result, outcomes)
        course.append(outcomes)
        for replica, twin in zip(way.replicas, twins * len(way.replicas), strict=False):
            if not way.is_asynchronous:
                assert int(replica.updates) == twin.updates
            has_average = bool(way.settings.learning.average and replica._averages)
            parts = [twin.weights, *([twin.averages] if has_average else [])]
            parts += [[x for x, trained in zip(kind, twin.trained, strict=True) if trained] for kind in twin.slots]
            for actual, expected in zip(own_state(replica, has_average), parts, strict=True):
                for value, wanted in zip(actual, expected, strict=True):
                    np.testing.assert_allclose(value, wanted, atol=way.tolerance, rtol=way.tolerance)
    applied = [outcomes[-1].finite for outcomes in course]
    late = way.settings.parallel.staged_variables
    assert applied == ([True, False, True, False, True] if late else [False, True, False, True, True])
    changes = [np.abs(after - before).max() for after, before in zip(twins[0].weights, way.start[0], strict=True)]
    assert [change > 0 for change in changes] == twins[0].trained
    assert max(changes) > 10 * way.tolerance
    for replica, own in zip(way.replicas, [*zip(*course, strict=True)] * len(way.replicas), strict=False):
        overflows = sum(outcome.finite_loss and not outcome.finite for outcome in own)
        since = [*(outcome.finite for outcome in reversed(own)), False].index(False)
        if replica.loss_scale is not None:
            assert replica.loss_scale.gather_state().tolist() == [-overflows, since], "halved, and steps since"
    if not way.is_asynchronous:
        assert way.update.traces <= way.way.graphs
        assert way.update.gradient_functions[0].experimental_get_tracing_count() == 1


def assert_result(way: Opened, result: StepResult, outcomes: list[Outcome]) -> None:
    """Compare a step's result with those of the twins."""
    losses, tokens = ([x for o in outcomes for x in getattr(o, part)] for part in ("losses", "tokens"))
    if way.is_asynchronous:
        losses, tokens = [0.0, *losses, 0.0], [0.0, *tokens, 0.0]
    np.testing.assert_allclose(result.loss_sums, losses, rtol=10 * way.tolerance)
    np.testing.assert_allclose(result.weight_sums, tokens, rtol=1e-6)
    assert result.examples == sum(outcome.pairs for outcome in outcomes)
    assert result.finite == all(outcome.finite for outcome in outcomes)
    assert result.overflow == (way.is_float16 and not result.finite and all(o.finite_loss for o in outcomes))
    if outcomes[0].finite:
        assert result.gradient_norm == pytest.approx(outcomes[0].norm, rel=10 * way.tolerance)


def test_update_resumes_to_the_bit(way: Opened) -> None:
    """From a checkpoint of every step, whose numbers are all finite; twice from the start, for the same weights."""
    for _ in range(2):
        way.restore(*way.start)
        kept, results = [], []
        for number in range(STEPS):
            kept.append(way.state())
            results += way.train(number, number + 1)
        last = way.state()
        assert all(np.isfinite(value).all() for value in tf.nest.flatten([*kept, last]))
        for number in (1, 3):
            way.restore(*kept[number])
            for result, first in zip(way.train(number), results[number:], strict=True):
                if way.name.startswith("independent"):
                    np.testing.assert_array_equal(result.loss_sums[0], first.loss_sums[0])  # the first tower is saved
                    continue
                # A norm that is not finite may be NaN, or infinite after a checkpoint.
                norm = first.gradient_norm if result.finite else result.gradient_norm
                tf.nest.map_structure(np.testing.assert_array_equal, result, first._replace(gradient_norm=norm))
            tf.nest.map_structure(np.testing.assert_array_equal, way.state(), last)


def test_towers_compute_on_devices_of_their_own_and_wait_for_no_other() -> None:
    """The step's graph has a call for each tower."""
    way = opened("parameter server")
    calls = [op for op in way.update.step_graph.traced.graph.get_operations() if "PartitionedCall" in op.type]
    towers = [op for op in calls if "tower_gradients" in op.node_def.attr["f"].func.name]
    assert [op.device.rsplit("device:", 1)[-1] for op in towers] == ["CPU:0", "CPU:1"]
    for tower in towers:
        ancestors, queue = set(), [tower]
        while queue:
            op = queue.pop()
            inputs = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            queue += [n for n in inputs if n not in ancestors]
            ancestors.update(inputs)
        assert not ancestors & set(towers)


@pytest.mark.parametrize(("name", "vectors"), [("model parallel", 4), ("model parallel, Transformer", 3)])
def test_each_device_has_the_bytes_of_its_part_alone(name: str, vectors: int) -> None:
    """The weights, two slots of what is trained, and an average, wherever they are held."""
    way = opened(name)
    replica, variables, parts = way.replicas[0], way.model.trainable_variables, way.towers[0].parts
    assert parts
    slots = [slot for of_group in replica._slots.values() for slot in of_group]
    held = [*(variable.value for variable in variables), *replica.weights, *replica._averages, *slots]
    sizes, expected = Counter[str](), Counter[str]()
    for variable in {id(variable): variable for variable in held}.values():
        sizes[f"/{variable.device.rpartition('device:')[2]}"] += variable_bytes(variable)
    devices = {"encoder": parts.encoder, "decoder": parts.decoder, "attention": parts.decoder}
    for part, variable in zip(part_names(way.model), variables, strict=True):
        copies = vectors - 2 if part in way.settings.learning.frozen else vectors
        expected[devices.get(part, parts.projection)] += copies * variable_bytes(variable)
    assert sizes == expected


def test_repeated_asynchronous_step_is_not_applied_again() -> None:
    """As after the death of a worker whose result was not fetched. After going back, it is, and is reported alone."""
    way = opened("asynchronous")
    way.restore(*way.start)
    way.train(0, 3)
    kept = way.state()
    way.train(1, 3)
    before = way.update.servers[0].updates.numpy()
    tf.nest.map_structure(np.testing.assert_array_equal, way.state(), kept)
    way.update(way.update.prepare(way.batches[3], 3), 0.1)
    way.restore(*kept)
    assert len(way.train(2, 3)) == 1
    assert [server.updates.numpy() - before for server in way.update.servers] == [2, 2]


def test_chief_waits_for_the_oldest_step_and_fetches_it_again() -> None:
    """Each of three workers has two steps; its result is lost with it, and the coordinator runs the step again."""
    way = opened("asynchronous")
    way.restore(*way.start)
    schedule, fetched, done = way.update._coordinator.schedule, list[int](), list[bool]()

    def lost_once(function: Any, args: tuple) -> Any:
        result, number = schedule(function, args), int(args[1])

        def fetch() -> Any:
            fetched.append(number)
            if fetched.count(0) == 1:
                raise tf.errors.UnavailableError(None, None, "the worker has died")
            return result.fetch()

        return SimpleNamespace(fetch=fetch)

    coordinator = SimpleNamespace(schedule=lost_once, done=lambda: done.append(True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way.update, "_coordinator", coordinator)
        for number in range(8):
            way.update(way.update.prepare(way.batches[number % STEPS], number), 0.1)
        assert fetched == [0, 0, 1]
        assert len(way.update.finished_steps()) == 2
        way.update.gather_state()
    assert (fetched, done) == ([0, *range(8)], [True])


def test_workers_compute_on_gpus_if_all_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(name=f"/job:worker/replica:0/task:{i}/device:GPU:0") for i in (0, 0, 1)]
    chief = SimpleNamespace(name="/job:chief/replica:0/task:2/device:GPU:0")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [*gpus, chief])
    assert [asynchronous.device_of_workers(workers) for workers in (2, 3)] == ["/GPU:0", "/CPU:0"]


def test_asynchronous_checkpoint_continues_on_another_number_of_servers() -> None:
    way = opened("asynchronous")
    way.restore(*way.start)
    way.train()
    kept = way.state()
    assert int(kept[1].optimizer[0]) == STEPS
    other = Asynchronous(way.model, way.settings.learning, SimpleNamespace(schedule=at_once), 3, 3)
    other.scatter_state(kept[1])
    tf.nest.map_structure(np.testing.assert_array_equal, [other.gather_state()], [kept[1]])
    sizes = [sum(other._replica.weights[i].shape.num_elements() for i in server.weights) for server in other.servers]
    largest = max(weight.size for weight in kept[0])
    assert max(sizes) - min(sizes) <= largest, "the weights are spread evenly"


def test_batch_may_have_fewer_pairs_than_towers() -> None:
    """Towers without a pair contribute nothing to the gradients and the counts."""
    way = opened("parameter server")
    way.restore(*way.start)
    (twin,) = twins_of(way)
    batch = next(Batches([random_pairs(1, 1)], 4, 1).from_step(0, 2))
    way.update(way.update.prepare(batch, 0), 0.1)
    (result,) = way.update.finished_steps()
    assert_result(way, result, [twin.step(0, batch.shares, 0.1)])
    assert (result.weight_sums[1:].tolist(), result.examples) == ([0], 1)
