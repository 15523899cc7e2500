"""What this project does on a machine's GPUs: a table in Markdown to paste, and a JSON object.

Each part runs commands that users have, in processes of their own, so that one that fails leaves the others. Without a
GPU, they run on a stand-in (tests/gpu/standin) with small models, which says nothing about speed.
"""

import dataclasses
import importlib.metadata
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.model_flags import SizeFlags, with_architecture
from benchmarks.peers.systems import PyTorch
from benchmarks.quality import ROOT
from benchmarks.report import log, print_json
from benchmarks.synthetic import write_corpus
from benchmarks.tokenised import read_tokenised
from chatbot.command_line import CommandLine
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import NONE
from chatbot.config.model import RECURRENT, TRANSFORMER
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flags_for, replace, setting
from chatbot.quiet import LOG_LINE
from chatbot.training.devices.gpus import find_gpus
from tests.gpu import standin

PAIRS = 20_000  # of made-up ones
SECONDS = 150.0  # of a command, after which it is ended
STANDIN_STEPS, STANDIN_PAIRS = 4, 300
STANDIN_SIZES = {"rnn_size": 16, "embedding_size": 8, "vocabulary_size": 300, "batch_size": 8}
PRECISIONS = ("float32", "bfloat16")
RESUMED_STEPS = 40
LOG = re.compile(LOG_LINE)
QUESTIONS = "你好\n你会死吗\n讲个笑话\n再见\n" * 16
# Left to other programs, and to the model: a batch that needs more does not fit.
FREE_MEMORY = 3 << 30
LARGE_BATCH = 4096
# A program that takes all but so many bytes of a GPU's memory, by CUDA's driver alone, until it is ended.
HOG = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free.value - int(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the report: what it finds out, and a function that returns its rows."""

    about: str
    rows: Callable[["Machine"], Iterator[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Ended:
    """A command that has ended. output: both of its streams. memory: bytes of all GPUs at their peak, or None."""

    code: int | None  # None: it was ended because it took too long
    output: str
    seconds: float
    memory: int | None


@dataclasses.dataclass(frozen=True)
class GpuBenchmark(SizeFlags):
    """The flags of python -m benchmarks gpu."""

    data: str | None = setting(None, "question-answer pairs; default: made-up ones", group="data", metavar="FILE")
    num_layers: int = setting(2, "layers of each side", group="model", least=1)
    batch_sizes: tuple[int, ...] = setting((64, 512), "pairs in a step, for the rows of speed", group="measuring")
    steps: int = setting(400, "steps of a row of speed", least=20)
    parts: tuple[str, ...] = setting((), "parts of the report; default: all", metavar="PART")
    pytorch: str | None = setting(
        None, "environment with PyTorch for these GPUs, to compare with; default: none", group="peers", metavar="FOLDER"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.parts) - set(PARTS):
            raise UserError(f"--parts {unknown.pop()}: there are {', '.join(PARTS)}")


class Machine:
    """The commands of a report, and what they need: a folder, its pairs, and the environment of their processes."""

    def __init__(self, flags: GpuBenchmark, work: Path) -> None:
        self.gpus, self.work = find_gpus(), work
        self.is_real = bool(self.gpus)
        self.flags = flags if self.is_real else replace(flags, **STANDIN_SIZES, batch_sizes=(8,))
        environment = dict(os.environ) if self.is_real else standin.environment(memory=8192)
        self.environment = {
            **environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]),
        }
        self.data = work / "pairs.tsv"
        if flags.data is None:
            write_corpus(self.data, PAIRS if self.is_real else STANDIN_PAIRS)
        else:
            self.data = Path(flags.data).absolute()

    def settings(self, architecture: str, precision: str, batch_size: int) -> Settings:
        """Return the settings of a model as the systems of `compare` have it: one direction and no dropout."""
        common = replace(
            with_architecture(self.flags.settings, architecture),
            data=(str(self.data),),
            validation=NONE,
            preset=NONE,
            both_directions="off",
            num_layers=self.flags.num_layers,
            keep_prob=1.0,
            learning_rate=0.001,
            vocabulary_size=self.flags.vocabulary_size,
            precision=precision,
            batch_size=batch_size,
        )
        return common if architecture == TRANSFORMER else replace(common, bidirectional=False)

    def run(
        self, *command: object, seconds: float = SECONDS, stdin: str = "", variables: Mapping[str, str] | None = None
    ) -> Ended:
        """Run Python with these arguments in the folder. variables: of the environment, besides the usual ones."""
        began, peak = time.perf_counter(), _Peak(self.is_real)
        with peak:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=self.work,
                env={**self.environment, **(variables or {})},
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                output, code = process.communicate(stdin, timeout=seconds)[0], process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                output, code = process.communicate()[0], None
        log(output[-3000:] if code != 0 else f"  {time.perf_counter() - began:.0f} s")
        return Ended(code, output, time.perf_counter() - began, peak.bytes if self.is_real else None)

    def train(self, settings: Settings, attempt: str, steps: int, *flags: str, **variables: str) -> Ended:
        """Train an attempt until a step. flags: besides those of the settings. variables: of the environment."""
        own = replace(settings, attempt=attempt, steps=steps)
        return self.run(ROOT / "train.py", *shlex.split(flags_for(own)), *flags, variables=variables)

    def records(self, attempt: str) -> list[dict[str, Any]]:
        """Return what an attempt has recorded."""
        file = self.work / attempt_directory(attempt) / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


class _Peak:
    """The most memory that the GPUs have in use by all processes, asked for five times a second."""

    def __init__(self, active: bool) -> None:
        self.bytes, self._ended, self._thread = 0, threading.Event(), threading.Thread(target=self._watch)
        self._active = active

    def __enter__(self) -> None:
        if self._active:
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._active:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.bytes = max(self.bytes, sum(gpu.used for gpu in find_gpus()))


def selftest(machine: Machine) -> Iterator[dict[str, Any]]:
    """Towers beside one device, on all GPUs or on one that is split."""
    towers = max(2, len(machine.gpus))
    ended = machine.run(ROOT / "train.py", "--selftest", "--towers", towers)
    differences = [float(number) for number in re.findall(r"\d\.\d+e-\d+", ended.output)]
    yield {
        "what": f"--selftest, {towers} towers",
        "result": _last_line(ended, "Verdict"),
        "worst_difference": max(differences, default=None),
        "seconds": ended.seconds,
    }


def tests(machine: Machine) -> Iterator[dict[str, Any]]:
    """The tests of GPUs. Those of the train command always have stand-ins, so they need no GPU."""
    others = ["--ignore", str(ROOT / "tests/gpu/test_train_command.py")]
    arguments = ["-m", "pytest", "-q", "-m", "gpu", "-n", "4", "--dist", "loadfile", "--rootdir", str(ROOT), *others]
    which = ROOT / "tests/gpu" if machine.is_real else ROOT / "tests/gpu/test_crossings.py"
    ended = machine.run(*arguments, which, seconds=600)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.MULTILINE)
    yield {"what": "tests/gpu", "result": _last_line(ended, ""), "failed": failed, "seconds": ended.seconds}


def speed(machine: Machine) -> Iterator[dict[str, Any]]:
    """Real target tokens a second, of this project and of PyTorch."""
    flags = machine.flags
    steps = flags.steps if machine.is_real else STANDIN_STEPS
    for architecture in (RECURRENT, TRANSFORMER):
        for batch_size in flags.batch_sizes:
            for precision in PRECISIONS:
                attempt = f"{architecture}-{precision}-{batch_size}"
                yield _speed_row(machine, architecture, precision, batch_size, attempt, steps)
                if flags.pytorch is not None:
                    yield _torch_row(machine, architecture, precision, batch_size, steps)


def towers(machine: Machine) -> Iterator[dict[str, Any]]:
    """Speed with several towers: on as many GPUs, or on one that is split, where they share its time."""
    steps = machine.flags.steps // 2 if machine.is_real else STANDIN_STEPS
    batch_size = max(machine.flags.batch_sizes)
    for number in (2, 4):
        several = len(machine.gpus) > 1
        if several and number > len(machine.gpus):
            continue
        ids = ",".join(str(gpu.number) for gpu in machine.gpus[:number])
        devices = ("--gpus", ids) if several else ("--towers", str(number))
        attempt = f"towers-{number}"
        yield _speed_row(machine, RECURRENT, "float32", batch_size, attempt, steps, *devices)


def resume(machine: Machine) -> Iterator[dict[str, Any]]:
    """A run with --deterministic that is resumed half way, beside one that is not: their weights."""
    settings = replace(machine.settings(RECURRENT, "float32", machine.flags.batch_sizes[0]), deterministic=True)
    steps, began, weights = RESUMED_STEPS if machine.is_real else STANDIN_STEPS, time.perf_counter(), []
    for attempt, ends in (("whole", (steps,)), ("resumed", (steps // 2, steps))):
        codes = [machine.train(settings, attempt, end).code for end in ends]
        file = machine.work / attempt_directory(attempt) / f"ckpt-{steps}.safetensors"
        weights.append(file.read_bytes() if not any(codes) and file.exists() else None)
    result = "a command failed" if None in weights else "weights differ"
    if result == "weights differ" and weights[0] == weights[1]:
        result = "weights equal to the bit"
    yield {"what": "resumed, --deterministic", "result": result, "seconds": time.perf_counter() - began}


def memory(machine: Machine) -> Iterator[dict[str, Any]]:
    """A batch that does not fit, on a GPU whose memory another process has taken; on a stand-in, a fault."""
    if machine.is_real:
        command = [sys.executable, "-c", HOG, str(FREE_MEMORY)]
        with subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True) as hog:
            try:
                assert hog.stdout is not None
                hog.stdout.readline()
                ended = machine.train(machine.settings(RECURRENT, "float32", LARGE_BATCH), "full", 6)
            finally:
                hog.kill()
    else:
        fault = "memory gpu=0 operation=CudnnRNNBackpropV3 number=3"
        settings = machine.settings(RECURRENT, "float32", machine.flags.batch_sizes[0])
        ended = machine.train(settings, "full", STANDIN_STEPS, STANDIN_FAULTS=fault)
    lines = [line.strip() for line in ended.output.splitlines() if "out of memory" in line.lower()]
    yield {"what": "out of memory", "result": f"exit {ended.code}", "lines": lines[-20:], "seconds": ended.seconds}


def replies(machine: Machine) -> Iterator[dict[str, Any]]:
    """Replies of one model on the GPU and on the CPU, with the time of the command's start."""
    settings = machine.settings(RECURRENT, "float32", machine.flags.batch_sizes[0])
    machine.train(settings, "replies", 200 if machine.is_real else STANDIN_STEPS)
    command = [ROOT / "chat.py", "--attempt", "replies", "--beam-size", "4"]
    on_gpu, on_cpu = (
        machine.run(*command, stdin=QUESTIONS, variables=cpu) for cpu in ({}, {"CUDA_VISIBLE_DEVICES": ""})
    )
    for device, ended in (("GPU", on_gpu), ("CPU", on_cpu)):
        count = QUESTIONS.count("\n")
        yield {"what": f"{count} replies, {device}", "result": f"exit {ended.code}", "seconds": ended.seconds}
    texts = [[line for line in ended.output.splitlines() if not LOG.match(line)] for ended in (on_gpu, on_cpu)]
    yield {"what": "replies of GPU and CPU", "result": "equal" if texts[0] == texts[1] else "differ"}


PARTS = {
    "selftest": Part("several towers train as one device", selftest),
    "tests": Part("the tests of GPUs", tests),
    "resume": Part("a resumed run equals an uninterrupted one", resume),
    "memory": Part("memory runs out", memory),
    "replies": Part("replies", replies),
    "towers": Part("several towers", towers),
    "speed": Part("real target tokens a second", speed),
}


def gpu_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a table in Markdown, and as the last line one JSON object."""
    about = "Check and measure this project on the GPUs of this machine, and print a report to paste."
    flags = CommandLine(GpuBenchmark, "benchmarks gpu", about).parse(arguments)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(flags, Path(folder))
        about_machine = description(machine)
        print(*(f"- {name}: {value}" for name, value in about_machine.items()), "", sep="\n")
        print("| part | what | result | seconds | memory |", "|---|---|---|---|---|", sep="\n", flush=True)
        for name in flags.parts or PARTS:
            log(f"{name}: {PARTS[name].about}")
            for row in PARTS[name].rows(machine):
                results.append({"part": name, **row})
                seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
                peak = f"{row['memory'] / 2**30:.1f} GiB" if row.get("memory") else ""
                print(f"| {name} | {row['what']} | {row['result']} | {seconds} | {peak} |", flush=True)
    print_json({"machine": about_machine, "flags": dataclasses.asdict(flags), "results": results})
    return 0


def description(machine: Machine) -> dict[str, str]:
    """Return what the results depend on."""
    names = ", ".join(f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB" for gpu in machine.gpus)
    packages = ("tensorflow", "keras", "nvidia-cudnn-cu12")
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    versions = ", ".join(f"{name} {installed[name]}" for name in packages if name in installed)
    return {
        "GPUs": names or "none: a stand-in with small models, which says nothing about speed",
        "packages": versions,
        "Python": sys.version.split()[0],
        "CPU cores": str(len(os.sched_getaffinity(0))),
    }


def _speed_row(
    machine: Machine, architecture: str, precision: str, batch_size: int, attempt: str, steps: int, *devices: str
) -> dict[str, Any]:
    settings = replace(machine.settings(architecture, precision, batch_size), log_every=max(1, steps // 10))
    ended = machine.train(settings, attempt, steps, *devices)
    rates = [record["target_tokens_per_s"] for record in machine.records(attempt) if "target_tokens_per_s" in record]
    later = rates[len(rates) // 2 :]
    return {
        "what": " ".join((architecture, precision, str(batch_size), *devices)),
        "result": f"{statistics.median(later):,.0f} tokens/s" if later and ended.code == 0 else f"exit {ended.code}",
        "rates": rates,
        "seconds": ended.seconds,
        "memory": ended.memory,
    }


def _torch_row(machine: Machine, architecture: str, precision: str, batch_size: int, steps: int) -> dict[str, Any]:
    flags, began = machine.flags, time.perf_counter()
    peer = PyTorch(Path(str(flags.pytorch)), machine.work, len(os.sched_getaffinity(0)))
    if not (machine.work / "words.src").exists():
        read_tokenised(str(machine.data), flags.max_length, flags.vocabulary_size).write(machine.work, "words")
    device = "cuda" if machine.is_real else "cpu"
    try:
        settings = machine.settings(architecture, precision, batch_size)
        result = f"{peer.rate(settings, 'words', steps, precision, device):,.0f} tokens/s"
    except UserError as error:
        result = str(error)
    what = f"PyTorch {architecture} {precision} {batch_size}"
    return {"what": what, "result": result, "seconds": time.perf_counter() - began}


def _last_line(ended: Ended, word: str) -> str:
    """Return the last line of the output with a word, or how the command ended."""
    lines = [line.strip("= ") for line in ended.output.splitlines() if word in line and line.strip("= ")]
    return lines[-1] if lines else f"exit {ended.code}"
