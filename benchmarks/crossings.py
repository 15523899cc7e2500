"""Counts the copies between host and GPU memory in the traced graph of a training step, without a GPU.

Copies from device to host are slow, because the host waits until the GPU has finished all queued operations. The GPU is
then idle until the host queues the next operation. The host does not wait for copies from host to device.

TensorFlow knows for each GPU kernel which inputs and outputs are in host memory, even on a machine without a GPU. An
operation is assumed to run on its GPU if there is a GPU kernel for its types. A tensor is copied at most once to each
memory. The body of a loop is counted once. tests/gpu/test_crossings.py checks these counts on simulated GPUs.
"""

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import Any

from benchmarks.benchmark import Benchmark, log
from benchmarks.opened_step import OpenedStep, SizeFlags, architecture_flag, pairs_of_one_length, with_architecture
from chatbot.config.training import Settings
from chatbot.flags import replace
from chatbot.training.devices.towers import Tower, open_towers

HOST = "host"
FIRST_GPU = "GPU:0"
MEMORY = 16 << 30  # assumed GPU memory, in bytes
PRECISIONS = ("float32", "bfloat16", "float16")
# The values of --variable-update to measure with four GPUs, starting with the default.
UPDATES: tuple[dict[str, str], ...] = (
    {"variable_update": "replicated", "all_reduce": "nccl"},
    {"variable_update": "replicated", "all_reduce": "hierarchical"},
    {"variable_update": "replicated", "all_reduce": "one_device"},
    {"variable_update": "independent"},
    {"variable_update": "parameter_server"},
    {"variable_update": "parameter_server", "local_parameter_device": "cpu"},
)
# Operations that compute nothing.
NO_WORK = frozenset({"Const", "NoOp", "Identity", "IdentityN"})
# Operations that launch no GPU kernel. Some of them compute nothing, and others return a view of their input.
NO_LAUNCH = NO_WORK | {"Bitcast", "ExpandDims", "ReadVariableOp", "Reshape", "Squeeze"}
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf"})
# Operations whose GPU kernels make the host wait, because they copy the size of their result to the host.
WAITING = frozenset({"Where", "Unique", "UniqueV2", "DynamicPartition"})
DIRECTIONS = ("device_to_host", "host_to_device", "device_to_device")
Copies = collections.Counter[tuple[str, str, str]]
Kinds = collections.Counter[str]


@dataclasses.dataclass(frozen=True)
class CrossingsBenchmark(SizeFlags):
    """The flags of `python -m benchmarks crossings`."""

    architecture: str = architecture_flag()

    @property
    def settings(self) -> Settings:
        """The settings of the model."""
        return with_architecture(super().settings, self.architecture)


def measure(flags: CrossingsBenchmark) -> dict[str, Any]:
    """Count the copies with one and four GPUs in each precision, and with each --variable-update of four GPUs."""
    alone: dict[str, str] = {"variable_update": "parameter_server"}
    steps = [(n, precision, update) for n, update in ((1, alone), (4, UPDATES[0])) for precision in PRECISIONS]
    rows: list[dict[str, Any]] = []
    for towers, precision, update in [*steps, *((4, PRECISIONS[0], update) for update in UPDATES[1:])]:
        crossings = step_crossings(replace(flags.settings, **update), flags.vocabulary_size, towers, precision)
        rows.append({"towers": towers, "precision": precision, **update, **crossings.counts()})
        log(f"{rows[-1]}\n{crossings.table()}\n")
    return {**rows[0], "steps": rows}


def step_crossings(settings: Settings, vocabulary_size: int, towers: int, precision: str) -> "Crossings":
    """Trace a training step for GPUs, and count the copies between memories.

    The GPUs do not need to exist, because tracing does not use them.

    Args:
        settings: The settings of the model.
        vocabulary_size: The size of the vocabulary.
        towers: The number of towers (model replicas), each on its own GPU.
        precision: The precision of the computation.
    """
    (cpu,) = open_towers([], 1)
    gpus = [f"GPU:{i}" for i in range(towers)]
    devices = [dataclasses.replace(cpu, device=f"/{gpu}", memory=MEMORY, left=MEMORY) for gpu in gpus]
    import tensorflow as tf

    opened = opened_step(settings, vocabulary_size, devices, precision)
    (shares,) = opened.update.prepare(opened.first_batch(), 0).shares
    step = opened.update.step_graph.concrete(shares, tf.constant(0.1))
    memories = [gpu for gpu, share in zip(gpus, shares, strict=True) for _ in tf.nest.flatten(share)]
    return crossings_of(step, [*memories, HOST])


def opened_step(settings: Settings, vocabulary_size: int, towers: Sequence[Tower], precision: str) -> OpenedStep:
    """Create the training step of a new model with batches of short pairs."""
    pairs = pairs_of_one_length(settings, vocabulary_size, settings.learning.batch_size, length=8)
    return OpenedStep(settings, pairs, vocabulary_size, towers, precision)


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor in a graph.

    Attributes:
        memory: HOST, or a GPU such as "GPU:0". None for a variable that has not been used yet; it is assumed to be in
            the memory where it is used first.
        kind: The type of the operation that computes the tensor.
        place: The name scope of that operation.
    """

    memory: str | None
    kind: str
    place: str


class Crossings:
    """Counts of a graph's operations and of the copies between host and device memory."""

    def __init__(self) -> None:
        # The keys are (operation that produces a tensor, operation that uses it, name scope of the latter).
        self.device_to_host, self.host_to_device, self.device_to_device = Copies(), Copies(), Copies()
        self._copied: set[tuple[Value, str]] = set()
        self.operations, self.operations_on_cpu = Kinds(), Kinds()
        self.launches = Kinds()  # operations that launch one or more kernels on a GPU

    def counts(self) -> dict[str, int]:
        """Return the totals, keyed by their names in the JSON output."""
        names = (*DIRECTIONS, "operations", "operations_on_cpu", "launches")
        return {name: getattr(self, name).total() for name in names}

    def table(self) -> str:
        """Return a text that lists all copies, the operations on the CPU, and the totals."""
        lines = []
        for direction in DIRECTIONS:
            for (producer, consumer, place), number in getattr(self, direction).most_common():
                lines.append(f"{direction.replace('_', ' '):16} {number:4}  {producer} -> {consumer} in {place}")
        lines += [f"on the CPU       {number:4}  {kind}" for kind, number in self.operations_on_cpu.most_common()]
        return "\n".join([*lines, ", ".join(f"{n.replace('_', ' ')} {v:,}" for n, v in self.counts().items())])

    def use(self, value: Value, memory: str, consumer: str, place: str) -> None:
        """Count a copy if the value is not yet in the memory where its consumer needs it."""
        if value.memory is None:
            value.memory = memory
        if memory == value.memory or (value, memory) in self._copied:
            return
        self._copied.add((value, memory))
        if memory == HOST:
            self.wait(value.kind, consumer, place)
        else:
            copies = self.host_to_device if value.memory == HOST else self.device_to_device
            copies[value.kind, consumer, place] += 1

    def wait(self, producer: str, consumer: str, place: str) -> None:
        """Count a copy from device to host."""
        self.device_to_host[producer, consumer, place] += 1


def crossings_of(step: Any, arguments: Sequence[str] = ()) -> Crossings:
    """Count the copies between memories in a concrete function.

    Args:
        step: The concrete function.
        arguments: The memory of the first arguments of the function. All further arguments are in the memory of the
            first GPU.
    """
    crossings = Crossings()
    functions = {function.signature.name: function for function in step.graph.as_graph_def().library.function}
    functions[step.function_def.signature.name] = step.function_def
    signature = step.function_def.signature
    values = []
    for argument, memory in zip(
        signature.input_arg, itertools.chain(arguments, itertools.repeat(FIRST_GPU)), strict=False
    ):
        value = Value(memory, "argument", "")
        if not _on_device("_Arg", (("T", argument.type),), "output"):
            value = Value(HOST, "argument", "")
        elif memory == HOST:
            crossings.use(value, FIRST_GPU, "argument", "the step")
            value = Value(FIRST_GPU, "argument", "")
        values.append(value)
    _count_function(signature.name, FIRST_GPU, values, functions, crossings)
    return crossings


def _count_function(
    name: str, gpu: str | None, arguments: Sequence[Value], functions: dict[str, Any], crossings: Crossings
) -> list[Value]:
    """Count the operations of a function that runs on a GPU, or on the CPU if `gpu` is None, and return its results."""
    function = functions[name]
    values = {a.name: value for a, value in zip(function.signature.input_arg, arguments, strict=True)}
    nodes = {node.name: node for node in function.node_def}
    order = TopologicalSorter(
        {
            node.name: [i.lstrip("^").split(":")[0] for i in node.input if i.lstrip("^").split(":")[0] in nodes]
            for node in function.node_def
        }
    )
    needed = _needed(function, nodes)
    for node_name in order.static_order():
        if node_name not in needed:
            continue
        node = nodes[node_name]
        inputs = [values[reference] for reference in node.input if not reference.startswith("^")]
        results = iter(_count_operation(node, _gpu_in_name(node.device, gpu), inputs, functions, crossings))
        for output in _definition(node.op).output_arg:
            for index in range(len(_types(node, output))):
                values[f"{node.name}:{output.name}:{index}"] = next(results)
    return [values[function.ret[result.name]] for result in function.signature.output_arg]


def _needed(function: Any, nodes: dict[str, Any]) -> set[str]:
    """Return the names of the nodes that a function needs for its results. TensorFlow removes all other nodes."""
    needed: set[str] = set()
    remaining = [*function.ret.values(), *function.control_ret.values()]
    while remaining:
        name = remaining.pop().lstrip("^").split(":")[0]
        if name in nodes and name not in needed:
            needed.add(name)
            remaining += nodes[name].input
    return needed


def _gpu_in_name(device: str, default: str | None) -> str | None:
    """Return the GPU in a device name, None for the CPU, or the default if the name contains neither."""
    name = re.search(r"(GPU|CPU):\d+", device)
    if name is None:
        return default
    return name[0] if name[1] == "GPU" else None


def _count_operation(
    node: Any, gpu: str | None, inputs: list[Value], functions: dict[str, Any], crossings: Crossings
) -> list[Value]:
    """Count an operation, including the functions that it calls, and return its results."""
    definition = _definition(node.op)
    place = _name_scope(node.name)
    types = [kind for output in definition.output_arg for kind in _types(node, output)]

    def memory_of(op: str, attributes: tuple[tuple[str, int], ...], argument: str) -> str:
        return gpu if gpu and _on_device(op, attributes, argument) else HOST

    def cross_boundary(value: Value, kind: int, consumer: str) -> Value:
        """Count the copy, if any, when a value passes into or out of a function, and return the passed value.

        TensorFlow passes values through Identity or Switch operations. Both keep int32 values in host memory, and a
        Switch also keeps booleans there.
        """
        passing = ("Switch", "data") if consumer in ("Enter", "NextIteration", "Switch") else ("Identity", "output")
        memory = memory_of(passing[0], (("T", kind),), passing[1])
        if (memory == HOST) == (value.memory == HOST):
            return value
        crossings.use(value, memory, consumer, place)
        return Value(memory, consumer, place)

    def call(name: str, arguments: Sequence[Value], consumer: str) -> list[Value]:
        kinds = [argument.type for argument in functions[name].signature.input_arg]
        passed = [cross_boundary(value, kind, consumer) for value, kind in zip(arguments, kinds, strict=True)]
        return _count_function(name, gpu, passed, functions, crossings)

    if node.op == "ReadVariableOp" and not node.device:
        crossings.operations[node.op] += 1
        return [Value(None, node.op, place)]
    if node.op in LOOPS:
        entered = [cross_boundary(value, kind, "Enter") for value, kind in zip(inputs, types, strict=True)]
        condition = _count_function(node.attr["cond"].func.name, gpu, entered, functions, crossings)[0]
        crossings.use(condition, HOST, "LoopCond", place)
        results = _count_function(node.attr["body"].func.name, gpu, entered, functions, crossings)
        return [cross_boundary(value, kind, "NextIteration") for value, kind in zip(results, types, strict=True)]
    if node.op in BRANCHES:
        crossings.use(inputs[0], HOST, "Switch", place)
        call(node.attr["else_branch"].func.name, inputs[1:], "Switch")
        results = call(node.attr["then_branch"].func.name, inputs[1:], "Switch")
        return [cross_boundary(value, kind, "Merge") for value, kind in zip(results, types, strict=True)]
    if node.op in CALLS:
        results = call(node.attr["f"].func.name, inputs, "Identity")
        return [cross_boundary(value, kind, "Identity") for value, kind in zip(results, types, strict=True)]

    if node.op == "Identity" and not node.device:  # TensorFlow removes an Identity without a device
        return inputs
    attributes = tuple((name, value.type) for name, value in sorted(node.attr.items()) if value.HasField("type"))
    crossings.operations[node.op] += 1
    computed_on_gpu = gpu and _gpu_kernels(node.op, attributes)
    if node.op not in NO_WORK and not computed_on_gpu:
        crossings.operations_on_cpu[node.op] += 1
    remaining = iter(inputs)
    for argument in definition.input_arg:
        for _ in _types(node, argument):
            crossings.use(next(remaining), memory_of(node.op, attributes, argument.name), node.op, place)
    if node.op in WAITING and computed_on_gpu:
        crossings.wait(node.op, "size of the result", place)
    results = [
        Value(memory_of(node.op, attributes, output.name), node.op, place)
        for output in definition.output_arg
        for _ in _types(node, output)
    ]
    # An operation without a result updates a variable, so it launches a kernel, too.
    if computed_on_gpu and node.op not in NO_LAUNCH and (not results or any(r.memory != HOST for r in results)):
        crossings.launches[node.op] += 1
    return results


@functools.cache
def _gpu_kernels(op: str, attributes: tuple[tuple[str, int], ...]) -> list[Any]:
    """Return the kernels of an operation that can run on a GPU with these types. Kernels only for GPUs come first."""
    from tensorflow.python.framework import kernels

    types = dict(attributes)
    found = [
        kernel
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in ("GPU", "DEFAULT")  # DEFAULT kernels run on any device
        and all(types.get(c.name) in (None, *c.allowed_values.list.type) for c in kernel.constraint)
    ]
    return sorted(found, key=lambda kernel: kernel.device_type == "DEFAULT")


def _on_device(op: str, attributes: tuple[tuple[str, int], ...], argument: str) -> bool:
    """Return whether an argument or result of an operation is in device memory."""
    found = _gpu_kernels(op, attributes)
    return bool(found) and argument not in found[0].host_memory_arg


@functools.cache
def _definition(op: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def _types(node: Any, argument: Any) -> list[int]:
    """Return the types of the tensors of an argument or result, which can be a list of tensors."""
    if argument.type_list_attr:
        return list(node.attr[argument.type_list_attr].list.type)
    kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
    return [kind] * (node.attr[argument.number_attr].i if argument.number_attr else 1)


def _name_scope(name: str) -> str:
    """Return the name scope of an operation, without the numeric suffixes that make names unique."""
    scopes = [scope.rstrip("0123456789").rstrip("_") for scope in name.split("/")[:-1]]
    return "/".join(scopes) or "the step"


BENCHMARK = Benchmark(
    "crossings",
    CrossingsBenchmark,
    "Count the copies between host and GPU in a training step, from its graph. No GPU is needed.",
    measure,
)
