"""Tests and measures this project on the GPUs of a machine, and prints a report.

The commands run in separate processes, so that a failure does not affect other parts of the report. The most important
parts come first, and what does not fit into --minutes is listed as not run. Without a GPU, the commands use small
models and a simulated GPU (tests/gpu/standin). The speed is then meaningless.
"""

import dataclasses
import math
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Benchmark, log
from benchmarks.gpu_steps import NO_TIME, TURNS, Case, Row, measure_cases, median_rate
from benchmarks.opened_step import SizeFlags, plain, with_architecture
from benchmarks.peers.pytorch import PyTorch
from benchmarks.processes import Ended, Samples, last_error, python, run
from benchmarks.synthetic import write_corpus
from benchmarks.tokenised import read_tokenised
from chatbot.attempts.curves import read_records
from chatbot.attempts.files import METRICS
from chatbot.config.attempts import attempt_directory
from chatbot.config.corpus import NONE
from chatbot.config.model import RECURRENT, TRANSFORMER
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flags_for, replace, setting
from chatbot.quiet import LOG_LINE
from chatbot.training.devices.gpus import find_gpus
from tests.gpu import standin

PAIRS = 20_000  # number of synthetic pairs
SECONDS = 150.0  # timeout of a command or of a measuring process on a real GPU
STANDIN_STEPS = 4
STANDIN_PAIRS = 300
STANDIN_SIZES = {"rnn_size": 16, "embedding_size": 8, "vocabulary_size": 300, "batch_size": 8}
PRECISIONS = ("float32", "bfloat16")
RESUMED_STEPS = 40
FAILED = "a command failed"
LOG = re.compile(LOG_LINE)
QUESTIONS = "你好\n你会死吗\n讲个笑话\n再见\n" * 16
# Bytes of GPU memory that HOG leaves free, which is too little for a step with LARGE_BATCH pairs.
FREE_MEMORY = 3 << 30
LARGE_BATCH = 4096
# A Python program that occupies GPU memory until it is killed. Its argument is the number of bytes to leave free.
HOG = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free.value - int(sys.argv[1])))
print("taken", flush=True)
time.sleep(600)
"""


@dataclasses.dataclass(frozen=True)
class GpuBenchmark(SizeFlags):
    """The flags of `python -m benchmarks gpu`."""

    data: str | None = setting(
        None, "file of question-answer pairs", unset="generated pairs", group="data", metavar="FILE"
    )
    batch_sizes: tuple[int, ...] = setting(
        (64, 512, 2048), "batch sizes in pairs, each for one row of the speed table", group="measuring"
    )
    steps: int = setting(400, "maximum number of steps per row of the speed table", minimum=20)
    minutes: int = setting(10, "time for the whole report; what does not fit is not run", minimum=1)
    parts: tuple[str, ...] = setting((), "parts of the benchmark to run", unset="all", metavar="PART")
    pytorch: str | None = setting(
        None,
        "folder of a virtual environment with PyTorch for these GPUs, for comparison",
        unset="none",
        group="peers",
        metavar="FOLDER",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.parts) - set(PARTS):
            raise UserError(f"--parts {unknown.pop()}: unknown; there are {', '.join(PARTS)}")
        if self.pytorch is not None and not (Path(self.pytorch) / "bin/python").exists():
            raise UserError(f"--pytorch {self.pytorch}: not an environment, it has no bin/python; create one with venv")


class Machine:
    """Runs the commands of the report with a common folder, data file and environment."""

    def __init__(self, flags: GpuBenchmark, work: Path) -> None:
        self._end = time.monotonic() + 60 * flags.minutes
        self.gpus = find_gpus()
        self.work = work
        self.is_real = bool(self.gpus)
        self.flags = flags if self.is_real else replace(flags, **STANDIN_SIZES, batch_sizes=(8,))
        self.steps = flags.steps if self.is_real else STANDIN_STEPS
        try:
            self.environment = dict(os.environ) if self.is_real else standin.environment(memory=8192)
        except RuntimeError as error:
            raise UserError(
                f"no GPU was found, and there is no simulated one: {last_error(str(error))}"[:199]
            ) from None
        self.data = work / "pairs.tsv" if flags.data is None else Path(flags.data).absolute()
        if flags.data is None:
            write_corpus(self.data, PAIRS if self.is_real else STANDIN_PAIRS)
        self.pairs = read_tokenised(str(self.data), self.flags.max_length, self.flags.vocabulary_size)

    @property
    def left(self) -> float:
        """The seconds that are left of --minutes."""
        return max(0.0, self._end - time.monotonic())

    def timeout(self, seconds: float = SECONDS) -> float:
        """Return the timeout of a command. Simulated GPUs are so slow that only --minutes limits them."""
        return min(self.left, seconds) if self.is_real else self.left

    def settings(self, architecture: str = RECURRENT, precision: str = "float32", batch_size: int = 0) -> Settings:
        """Return settings with the same model as in the `compare` benchmark.

        A batch size of 0 means the first value of --batch-sizes.
        """
        return replace(
            plain(with_architecture(self.flags.settings, architecture)),
            data=(str(self.data),),
            validation=NONE,
            preset=NONE,
            both_directions="off",
            vocabulary_size=self.flags.vocabulary_size,
            precision=precision,
            batch_size=batch_size or self.flags.batch_sizes[0],
        )

    def run(
        self, *words: object, seconds: float = SECONDS, stdin: str = "", variables: Mapping[str, str] | None = None
    ) -> Ended:
        """Run Python with these arguments in the work folder."""
        environment = {**self.environment, **(variables or {})}
        ended = run(python(*words), self.work, stdin, self.timeout(seconds), environment)
        log(ended.output[-3000:] if ended.code != 0 else f"  {ended.seconds:.0f} s")
        return ended

    def measure(self, cases: Sequence[Case]) -> Iterator[Row]:
        """Yield a row with the speed for each case; see `measure_cases`."""
        return measure_cases(self.pairs, cases, self.steps, self.timeout(), self.environment)

    def train(self, settings: Settings, attempt: str, steps: int, *flags: str, **variables: str) -> Ended:
        """Train an attempt up to a step, with additional flags and environment variables.

        No pairs are stored for retrieval, so the chat generates replies, and no time is spent on embedding the pairs.
        """
        settings = replace(settings, attempt=attempt, steps=steps, retrieve_pairs=0, report_to=NONE)
        words = [*shlex.split(flags_for(settings)), "--batch-size", settings.learning.batch_size]
        return self.run(ROOT / "train.py", *words, *flags, variables=variables)


def selftest(machine: Machine) -> Iterator[Row]:
    """Check that training on several GPUs, or on a GPU split into several devices, gives the results of one device."""
    towers = max(2, len(machine.gpus))
    ended = machine.run(ROOT / "train.py", "--selftest", "--towers", towers)
    worst = max((float(number) for number in re.findall(r"\d\.\d+e-\d+", ended.output)), default=None)
    yield _row(f"--selftest, {towers} towers", ended, _last_line(ended, "Verdict"), worst_difference=worst)


def speed(machine: Machine) -> Iterator[Row]:
    """Measure the target tokens per second, without padding, of this project and of PyTorch."""
    steps: dict[str, int] = {}
    for architecture in (RECURRENT, TRANSFORMER):
        for row in machine.measure(_cases(machine, architecture)):
            steps[row["what"]] = row.get("steps", machine.steps)
            yield row
    if machine.flags.pytorch is not None:
        for architecture in (RECURRENT, TRANSFORMER):
            for what, settings, _ in _cases(machine, architecture):
                yield {"what": f"PyTorch {what}", "result": _torch_rate(machine, settings, steps[what])}


def xla(machine: Machine) -> Iterator[Row]:
    """Measure the speed of the Transformer if XLA compiles the gradient function, beside that without XLA."""
    cases = _cases(machine, TRANSFORMER)
    yield from machine.measure([Case(f"{what}, one batch, XLA", settings, True) for what, settings, _ in cases])


def towers(machine: Machine) -> Iterator[Row]:
    """Measure the speed of training with several towers (model replicas), either on a GPU each or on the same GPU."""
    steps = machine.steps // 2 if machine.is_real else machine.steps
    settings = machine.settings(batch_size=max(machine.flags.batch_sizes))
    several = len(machine.gpus) > 1
    for number in (4, 2) if several else (4,):
        if number <= len(machine.gpus) or not several:
            ids = ",".join(str(gpu.number) for gpu in machine.gpus[:number])
            devices = ("--gpus", ids) if several else ("--towers", str(number))
            yield _training_row(machine, settings, " ".join(devices), steps, *devices)


def resume(machine: Machine) -> Iterator[Row]:
    """Compare the weights of a deterministic run that was resumed halfway with those of an uninterrupted run."""
    settings = replace(machine.settings(), deterministic=True)
    weights = []
    steps = RESUMED_STEPS if machine.is_real else STANDIN_STEPS
    for attempt, ends in (("whole", (steps,)), ("resumed", (steps // 2, steps))):
        codes = [machine.train(settings, attempt, end).code for end in ends]
        file = machine.work / attempt_directory(attempt) / f"ckpt-{steps}.safetensors"
        weights.append(file.read_bytes() if codes == [0] * len(ends) and file.exists() else None)
    result = "weights equal to the bit" if weights[0] == weights[1] else "weights differ"
    yield {"what": "resumed, --deterministic", "result": FAILED if None in weights else result}


def memory(machine: Machine) -> Iterator[Row]:
    """Check that training continues after running out of GPU memory, which is simulated if there is no GPU."""
    if machine.is_real:
        command = [*map(str, python("-c", HOG, FREE_MEMORY))]
        with subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True) as hog:
            try:
                assert hog.stdout is not None
                if not hog.stdout.readline():
                    yield {"what": "out of memory", "result": "not run: the GPU's memory could not be filled"}
                    return
                ended = machine.train(machine.settings(batch_size=LARGE_BATCH), "full", 6)
            finally:
                hog.kill()
    else:
        fault = "memory gpu=0 operation=CudnnRNNBackpropV3 number=3"
        ended = machine.train(machine.settings(), "full", STANDIN_STEPS, STANDIN_FAULTS=fault)
    lines = [line.strip() for line in ended.output.splitlines() if "out of memory" in line.lower()]
    yield _row("out of memory", ended, lines=lines[-20:])


def replies(machine: Machine) -> Iterator[Row]:
    """Compare the replies of a model on the GPU and on the CPU, and time the command."""
    machine.train(machine.settings(), "replies", 200 if machine.is_real else STANDIN_STEPS)
    command = [ROOT / "chat.py", "--attempt", "replies", "--beam-size", "4"]
    texts = []
    for device, variables in {"GPU": {}, "CPU": {"CUDA_VISIBLE_DEVICES": ""}}.items():
        ended = machine.run(*command, stdin=QUESTIONS, variables=variables)
        count = QUESTIONS.count("\n")
        yield _row(f"{count} replies, {device}", ended)
        texts.append([line for line in ended.output.splitlines() if not LOG.match(line)] if ended.code == 0 else None)
    result = "equal" if texts[0] == texts[1] else "differ"
    yield {"what": "replies of GPU and CPU", "result": FAILED if None in texts else result}


def tests(machine: Machine) -> Iterator[Row]:
    """Run the GPU tests, except for the test file that always uses several simulated GPUs."""
    if reason := standin.missing():
        yield {"what": "tests on simulated GPUs", "result": f"not run: each {reason}"}
    others = ["--ignore", str(ROOT / "tests/gpu/test_train_command.py")]
    arguments = ["-m", "pytest", "-v", "-m", "gpu", "--dist", "loadfile", "--rootdir", str(ROOT), *others]
    which = ("-n", "4", ROOT / "tests/gpu") if machine.is_real else ("-n", "1", ROOT / "tests/gpu/standin")
    ended = machine.run(*arguments, *which, seconds=math.inf)
    counts = Counter(re.findall(r"^\[gw\d+\] \[ *\d+%\] (\w+)", ended.output, re.MULTILINE))
    result = ", ".join(f"{number} {outcome.lower()}" for outcome, number in counts.items())
    if result and ended.code is None:
        result += "; then no time was left"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.MULTILINE)
    yield _row("tests/gpu", ended, result, failed=failed)


# In descending order of importance.
PARTS: dict[str, Callable[[Machine], Iterator[Row]]] = {
    part.__name__: part for part in (selftest, speed, towers, xla, resume, memory, replies, tests)
}


def measure(flags: GpuBenchmark) -> dict[str, Any]:
    """Run the parts of the report and return their rows."""
    results: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(flags, Path(folder))
        for name in (part for part in PARTS if part in (flags.parts or PARTS)):
            log(f"{name}: {PARTS[name].__doc__}")
            rows = PARTS[name](machine) if machine.left else iter([{"what": name, "result": NO_TIME}])
            began = time.perf_counter()
            for row in rows:
                results.append({"part": name, **row, "seconds": time.perf_counter() - began})
                log(str(results[-1]))
                began = time.perf_counter()
    note = {} if machine.is_real else {"note": "no GPU: simulated GPUs and small models, so speeds are meaningless"}
    return {**note, "results": results}


def _cases(machine: Machine, architecture: str) -> list[Case]:
    return [
        Case(f"{architecture} {precision} {batch_size}", machine.settings(architecture, precision, batch_size))
        for batch_size in machine.flags.batch_sizes
        for precision in PRECISIONS
    ]


def _row(what: str, ended: Ended, result: str = "", **others: Any) -> Row:
    failure = f"stopped after {ended.seconds:.0f} s" if ended.code is None else f"exit {ended.code}"
    reason = f": {last_error(ended.output)[:120]}" if ended.code != 0 else ""
    return {"what": what, "result": result or failure + reason, **others}


def _training_row(machine: Machine, settings: Settings, what: str, steps: int, *devices: str) -> Row:
    """Train, and return a row with the median speed in the second half of the steps and the peak memory of all GPUs."""
    attempt = re.sub(r"\W+", "-", what).strip("-")
    settings = replace(settings, log_every=max(1, steps // TURNS))
    with Samples(lambda: sum(gpu.used for gpu in find_gpus())) as used:
        ended = machine.train(settings, attempt, steps, *devices)
    records = read_records(machine.work / attempt_directory(attempt) / METRICS)
    rates = [record["target_tokens_per_s"] for record in records if "target_tokens_per_s" in record]
    result = f"{median_rate(rates):,.0f} tokens/s" if rates and ended.code == 0 else ""
    gib = max(used.values) / 2**30 if machine.is_real else None
    return _row(what, ended, result, rates=rates, used_gib=gib)


def _torch_rate(machine: Machine, settings: Settings, steps: int) -> str:
    peer = PyTorch(Path(str(machine.flags.pytorch)), machine.work, len(os.sched_getaffinity(0)))
    if not (machine.work / "words.src").exists():
        machine.pairs.write(machine.work, "words")
    device = "cuda" if machine.is_real else "cpu"
    if not machine.left:
        return NO_TIME
    try:
        rate = peer.rate(settings, "words", steps, settings.learning.precision, device, machine.timeout())
        return f"{rate:,.0f} tokens/s"
    except UserError as error:
        return str(error)


def _last_line(ended: Ended, word: str) -> str:
    """Return the last output line that contains a word, or ""."""
    lines = [line.strip("= ") for line in ended.output.splitlines() if word in line]
    return lines[-1] if lines else ""


BENCHMARK = Benchmark(
    "gpu",
    GpuBenchmark,
    "Check and measure this project on the GPUs of this machine, and print a report for copying.",
    measure,
)
