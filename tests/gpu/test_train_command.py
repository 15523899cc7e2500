"""`train.py` on four stand-in GPUs, from the command to its files: ways to train, resuming, and GPUs that fail."""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

import chatbot
from chatbot.errors import EXIT_LOST
from chatbot.training.profiling import REPEATS
from tests.commands import ROOT, python, run
from tests.gpu import standin
from tests.gpu.process import STANDIN_MEMORY
from tests.in_process import Called
from tests.training.attempts import metrics, saved_step, weights

pytestmark = pytest.mark.gpu

CHAT_FILE = ROOT / "tests/data/chat.tsv"
FLAGS = (
    "--data", "pairs.tsv", "--rnn-size", "16", "--embedding-size", "8",
    "--vocabulary-size", "300", "--batch-size", "16", "--keep-prob", "1.0", "--precision", "float32",
    "--learning-rate", "0.01", "--log-every", "1", "--save-every", "4", "--no-bidirectional",
    "--preset", "none",
)  # fmt: skip
VALIDATED = "--validation", "held_out.tsv", "--validate-every", "12", "--probe", "probe.txt"
STEPS, LAST, LOST_AT = 12, 16, 7
QUESTION = "你好"
BACKWARD = "CudnnRNNBackpropV3"
KERNELS = 2  # of BACKWARD in a step of a tower: encoder and decoder
AFTER_SAVE = 4 * KERNELS + REPEATS * KERNELS  # of BACKWARD before step 5: at the checkpoint, towers are timed


def gpus(visible: str | None = None, **variables: object) -> dict[str, str]:
    """Return the environment of a command with four stand-in GPUs.

    visible: CUDA_VISIBLE_DEVICES. variables: those of `standin.environment`.
    """
    environment = {**standin.environment(4, **{"memory": STANDIN_MEMORY, **variables}), "PYTHONPATH": str(ROOT)}
    return environment if visible is None else {**environment, "CUDA_VISIBLE_DEVICES": visible}


def train(*flags: str, visible: str | None = None, **variables: object) -> Called:
    """Run train.py with FLAGS and others. visible, variables: as for `gpus`."""
    completed = run("train.py", *FLAGS, *flags, environment=gpus(visible, **variables))
    ended = Called(completed.returncode, completed.stdout.decode(), completed.stderr.decode())
    print(ended.out, ended.err)
    assert "Traceback" not in ended.err
    return ended


def losses(attempt: str, steps: int = STEPS) -> list[float]:
    """Return the losses of the first steps of an attempt."""
    return [line["loss"] for line in metrics(attempt)[:steps]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory of all commands, with pairs to train and to validate on."""
    folder = tmp_path_factory.mktemp("commands")
    lines = CHAT_FILE.read_text().splitlines(keepends=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pairs.tsv").write_text("".join(lines[:100]))
        Path("held_out.tsv").write_text("".join(lines[100:120]))
        Path("probe.txt").write_text(f"{QUESTION}\n")
        yield folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Called:
    """A run of STEPS steps on four GPUs, one of which another process uses, and another one of which is slow."""
    flags = *VALIDATED, "--gpus", "0,1,2,3", "--deterministic", "--attempt", "whole", "--steps", str(STEPS)
    return train(*flags, used="1:3000", faults="slow gpu=3 factor=20", trace=Path("trace").absolute())


@pytest.fixture(scope="module")
def resumed(folder: Path) -> tuple[Called, int, Called]:
    """The same run, in which a GPU falls off the bus at step LOST_AT; the step of its checkpoint; the command again.

    The others wait for the lost one in NCCL.
    """
    flags = *VALIDATED, "--gpus", "0,1,2,3", "--deterministic", "--attempt", "lost", "--steps", str(LAST)
    number = AFTER_SAVE + (LOST_AT - 5) * KERNELS + 1
    return train_in_haste("fallen", number, *flags), saved_step("lost"), train(*flags)


def train_in_haste(fault: str, number: int, *flags: str) -> Called:
    """Train with a fault of GPU 1 at this one of its kernels BACKWARD. The watch's minutes pass in six seconds."""
    program = (
        "from chatbot import commands; from chatbot.training import watch; "
        "watch.TICK = 0.1; raise SystemExit(commands.main('train'))"
    )
    faults = f"{fault} gpu=1 operation={BACKWARD} number={number}"
    completed = python(program, *FLAGS, *flags, environment=gpus(faults=faults))
    print(completed.stderr)
    return Called(completed.returncode, completed.stdout, completed.stderr)


def test_run_shows_its_gpus_and_the_loss_of_each(whole: Called) -> None:
    assert whole.code == 0
    rows = [line.split() for line in whole.out.splitlines()]
    for i in range(4):
        assert [str(i), f"gpu_{i}", f"/GPU:{i}", "Stand-in", "GPU", "8.0", "GiB"] in rows
        reader = EventAccumulator(f"tensorboard/whole/gpu_{i}", size_guidance={TENSORS: 0}).Reload()
        assert [event.step for event in reader.Tensors("loss")] == list(range(1, STEPS + 1))
    for line in metrics("whole")[:STEPS]:
        assert len(set(line["tower_losses"])) == 4
    (warning,) = (line for line in whole.err.splitlines() if "other processes" in line)
    assert warning.startswith("Warning: GPU 1: other processes use 2.9 of its 8.0 GiB")
    assert len(warning) < 200
    assert f"  {QUESTION}" in whole.out  # with the reply to it, after the validation


def test_copies_of_the_weights_are_summed_by_nccl(whole: Called) -> None:
    """That is the default of several GPUs."""
    kernels = [line.split()[:2] for line in Path("trace").read_text().splitlines()]
    sums = [gpu for gpu, operation in kernels if operation == "NcclAllReduce"]
    assert sorted(set(sums)) == ["0", "1", "2", "3"]
    assert len(sums) % (4 * STEPS) == 0


def test_slow_gpu_is_named_and_has_a_curve(whole: Called) -> None:
    (warning,) = (line for line in whole.err.splitlines() if "wait for it" in line)
    assert warning.startswith("Warning: gpu_3 takes ")
    saved = [line for line in metrics("whole")[:STEPS] if "tower_seconds" in line]
    assert [line["step"] for line in saved] == [4, 8, 12]
    assert all(len(line["tower_seconds"]) == 4 and np.argmax(line["tower_seconds"]) == 3 for line in saved)
    curve = EventAccumulator("tensorboard/whole/gpu_3").Reload().Tensors("throughput/tower_seconds")
    assert [event.step for event in curve] == [4, 8, 12]


def test_silent_gpu_ends_the_run_and_the_same_command_resumes(
    whole: Called, resumed: tuple[Called, int, Called]
) -> None:
    """To the bit."""
    lost, saved, again = resumed
    (line,) = (line for line in lost.err.splitlines() if "no progress" in line)
    assert line.startswith(f"Step {LOST_AT} has made no progress for 60 seconds. ")
    assert "NCCL_DEBUG=INFO" in line
    assert len(line) < 200
    assert lost.err.splitlines()[-1] == (
        "error: GPU 1 does not answer (GPU is lost); the same command resumes from the last checkpoint. "
        "See `dmesg` (Xid); --gpus can leave it out"
    )
    assert lost.code == EXIT_LOST
    assert saved == 4
    assert again.code == 0
    assert "Resuming from step 4 of checkpoints/lost." in again.out
    names = "loss", "tower_losses", "gradient_norm"
    for record, other in zip(metrics("lost")[:STEPS], metrics("whole")[:STEPS], strict=True):
        assert [record[name] for name in names] == [other[name] for name in names]


def test_replica_that_fails_in_the_exchange_does_not_block_the_others(folder: Path) -> None:
    """Memory runs out on one of four GPUs, in one graph with the exchange, at a size that had enough in several.

    The next process trains such batches in several graphs, in which the same lack of memory divides the shares.
    """
    flags = *VALIDATED, "--gpus", "0,1,2,3", "--attempt", "waiting", "--steps", "4", "--step-timeout", "1"
    of_second_step = KERNELS + 1
    ended = train_in_haste("memory", of_second_step, *flags)
    assert ended.code == EXIT_LOST
    assert "error: step 2 has made no progress for 60 seconds (--step-timeout)" in ended.err
    again = train_in_haste("memory", of_second_step, *flags)
    assert again.code == 0
    assert (again.out + again.err).count("shares of this size are now split into pieces") == 1
    assert saved_step("waiting") == 4


def test_loss_uses_the_memory_that_other_processes_leave(folder: Path) -> None:
    """The logits of all 10,000 tokens of the batch have 400 MB, a twentieth of the GPU, of which little is free."""
    characters = np.random.default_rng(1).permutation(np.tile(np.arange(0x4E00, 0x4E00 + 10_000), 2))
    texts = ["".join(map(chr, row)) for row in characters.reshape(-1, 20)]
    Path("wide.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in zip(texts[::2], texts[1::2], strict=True)))
    flags = "--data", "wide.tsv", "--tokenizer", "char", "--vocabulary-size", "11000", "--max-length", "22"
    of_run = "--batch-size", "500", "--steps", "2", "--attempt", "wide", "--gpus", "0", "--validation", "none"
    ended = train(*flags, *of_run, used="0:7100", faults=f"memory gpu=0 bytes={300 << 20}")
    assert ended.code == 0
    assert "now split into pieces" not in ended.out + ended.err


def test_attempt_resumes_on_a_mig_instance_and_then_in_two_processes(
    whole: Called, resumed: tuple[Called, int, Called]
) -> None:
    """As with the same four GPUs throughout."""
    instance = "MIG-00000000-0001-0000-0000-000000000000"
    flags = "--attempt", "whole", "--steps", str(STEPS + 2)
    one = train(*flags, visible=instance, memory=14336, mig="0:2", used="0:300")
    assert one.code == 0
    assert "Stand-in GPU MIG 1g  2.0 GiB" in one.out
    assert f"Warning: GPU {instance}: other processes use 0.3 of its 2.0 GiB" in one.err
    two = train("--gpus", "0,1,2,3", "--local-workers", "2", "--attempt", "whole", "--steps", str(LAST))
    assert two.code == 0
    assert "Synchronous training on 2 workers with 2 towers each." in two.out
    assert [len(line["tower_losses"]) for line in metrics("whole")] == [4] * STEPS + [1] * 2 + [4] * 2
    np.testing.assert_allclose(losses("whole", LAST), losses("lost", LAST), rtol=1e-5)
    for weight, other in zip(weights("whole"), weights("lost"), strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-5)


def test_chat_on_a_gpu_replies_as_on_the_cpu(whole: Called, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    arguments = "--attempt", "whole", "--retrieve", "none"
    completed = run("chat.py", *arguments, stdin=f"{QUESTION}\n".encode(), environment=gpus(trace=trace))
    assert completed.returncode == 0, completed.stderr
    bot = chatbot.load("checkpoints/whole", retrieve="none")
    assert completed.stdout.decode().splitlines() == [bot.reply(QUESTION)]
    assert "0 CudnnRNNV3" in trace.read_text()


def test_asynchronous_worker_computes_on_its_gpu(whole: Called, tmp_path: Path) -> None:
    """A single worker trains as one device does: it reads the weights after its own last step."""
    trace = tmp_path / "trace"
    flags = "--validation", "none", "--asynchronous", "--gpus", "2", "--attempt", "asynchronous", "--steps", str(STEPS)
    ended = train(*flags, trace=trace)
    assert ended.code == 0
    assert {line.split()[0] for line in trace.read_text().splitlines()} == {"2"}
    np.testing.assert_allclose(losses("asynchronous"), losses("whole"), rtol=1e-5)


def test_run_goes_on_after_failures_of_cudnn_and_of_memory(whole: Called) -> None:
    """In steps and in the last validation, with the losses of a run without them."""
    faults = (
        f"cudnn gpu=3 operation={BACKWARD} number={KERNELS * 2 + 1}",
        f"memory gpu=1 operation={BACKWARD} number={AFTER_SAVE + KERNELS + 1}",
        "memory gpu=0 operation=Log",
    )
    flags = *VALIDATED, "--gpus", "0,1,2,3", "--attempt", "faults", "--steps", str(STEPS)
    ended = train(*flags, faults=";".join(faults))
    assert ended.code == 0
    assert (ended.out + ended.err).count("shares of this size are now split into pieces") == 1
    assert "Possibly out of memory ((0) INTERNAL:  Failed to call DoRnnBackward" in ended.out + ended.err
    assert ended.err.count("out of memory in validation; continuing on gpu_0 alone") == 1
    np.testing.assert_allclose(losses("faults"), losses("whole"), rtol=1e-5)
    actual, expected = (metrics(attempt)[STEPS - 1] for attempt in ("faults", "whole"))
    for name in ("nats_per_token", "relevance_at_1"):
        assert actual[f"validation.{name}"] == pytest.approx(expected[f"validation.{name}"], rel=1e-5)


def test_gpu_that_fails_in_a_step_ends_the_run(folder: Path) -> None:
    """The variables are on a GPU, where none waits for the failed one in NCCL.

    TensorFlow may abort the process.
    """
    fault = f"lost gpu=1 operation={BACKWARD} number={2 * KERNELS + 1}"
    flags = "--variable-update", "parameter_server", "--validation", "none", "--steps", "4"
    ended = train("--gpus", "0,1", *flags, faults=fault)
    if ended.code == -signal.SIGABRT:
        assert "Unexpected Event status" in ended.err
        return
    assert ended.code == EXIT_LOST
    (line,) = (line for line in ended.err.splitlines() if line.startswith("error: "))
    assert line.startswith("error: one of the GPUs 0, 1 failed (CUDA_ERROR_LAUNCH_FAILED); the same command resumes")
    assert len(line) < 200
