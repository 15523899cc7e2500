"""Trains a comparable model with PyTorch, in a separate virtual environment.

PyTorch reads files that `TokenisedPairs.write` has written, so both systems have the same tokens and vocabulary. For
comparing the likelihood, the tokens are characters and bytes, because a model predicts the unknown token more easily
than the word that it replaces.

The environment is created once from the requirements beside this file. They are pinned by `uv pip compile --universal`,
without the CUDA packages, which pip installs if PyTorch needs them.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import filelock

from benchmarks.benchmark import log
from benchmarks.processes import output_of, python
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of, flatten

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-torch.txt"
# A file that exists in an environment after all packages have been installed.
COMPLETE = "complete"
WARM_UP_STEPS = 10
# The settings for which torch_model.py has flags.
TORCH_FLAGS = (
    *("architecture", "num_layers", "embedding_size", "rnn_size", "heads", "feed_forward_size", "keep_prob"),
    *("batch_size", "learning_rate", "max_gradient_norm", "seed"),
)


def environment(environments: str | None) -> Path:
    """Return the folder of PyTorch's virtual environment, after creating it if necessary.

    The folder's name contains a hash of the requirements and of Python's version. A lock prevents two processes from
    creating the same environment. Raises UserError if the packages cannot be installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(environments or cache / "duida" / "peers").absolute()
    key = f"{REQUIREMENTS.read_text(encoding='utf-8')}{sys.version}"
    home = folder / f"torch-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{home}.lock"):
            if not (home / COMPLETE).exists():
                log(f"{home}: installing the packages once, which takes minutes")
                shutil.rmtree(home, ignore_errors=True)
                output_of(python("-m", "venv", home), folder)
                install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                output_of([*install, "-r", REQUIREMENTS.absolute()], folder)
                (home / COMPLETE).touch()
    except OSError as error:
        raise UserError(f"--environments {folder}: {error.strerror}; use a writable folder") from None
    return home


@dataclasses.dataclass(frozen=True)
class Best:
    """The validation with the lowest loss in a training run."""

    nats: float  # total negative log-likelihood of the held-out replies, including EOS
    step: int


@dataclasses.dataclass(frozen=True)
class PyTorch:
    """Runs torch_model.py.

    Attributes:
        home: The folder of the environment.
        work: The folder with the tokenised pairs.
        cores: The number of CPU threads to use.
    """

    home: Path
    work: Path
    cores: int

    def rate(
        self,
        settings: Settings,
        text: str,
        steps: int,
        precision: str,
        device: str = "cpu",
        seconds: float | None = None,
    ) -> float:
        """Train for some steps, and return the target tokens per second, without padding.

        Raises UserError if PyTorch fails, or has not finished after `seconds`.
        """
        measuring = "--steps", steps, "--warm-up", WARM_UP_STEPS, "--device", device
        output = self._output(settings, text, precision, *measuring, seconds=seconds)
        if not (lines := [line for line in output.splitlines() if line.startswith("{")]):
            raise UserError("PyTorch: no result within its time; increase --minutes")
        return float(json.loads(lines[-1])["target_tokens_per_s"])

    def best(self, settings: Settings, text: str, held_out: str, seconds: float, every: int, precision: str) -> Best:
        """Train for some seconds, validate every `every` steps, and return the validation with the lowest loss.

        Raises UserError if the time was too short for a validation.
        """
        output = self._output(
            settings, text, precision, "--quality", held_out, "--validate-every", every, seconds=seconds
        )
        records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if not records:
            raise UserError("PyTorch: no validation within its time; increase --quality-seconds")
        return min((Best(record["nats"], record["step"]) for record in records), key=lambda best: best.nats)

    def _output(
        self, settings: Settings, text: str, precision: str, *arguments: object, seconds: float | None = None
    ) -> str:
        values = flatten(settings)
        flags = [word for name in TORCH_FLAGS for word in (flag_of(name), values[name])]
        flags += ["--threads", self.cores, "--precision", precision, "--text", text, *arguments]
        command = [self.home / "bin" / "python", HERE / "torch_model.py", *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.cores)}
        return output_of(command, self.work, seconds=seconds, environment=environment)
