"""Training by PyTorch, on parallel files of tokens with the sizes of this project's settings.

It reads NAME.src, NAME.tgt and NAME.vocabulary, which `TokenisedPairs.write` writes: both systems have the same tokens
and the same vocabulary. A token outside it is the token of unknown ones, which costs a model less than the word would.
So the likelihood is measured on characters in which rare ones are spelled in bytes: none of them is unknown.

Its packages are in a virtual environment, made once from the requirements beside this file. They are pinned by
`uv pip compile --universal`, without the CUDA packages of PyTorch, which pip installs if the build of PyTorch that the
index gives needs them.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import filelock

from benchmarks.benchmark import log
from benchmarks.processes import output_of, python
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of, flatten, setting

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements-torch.txt"
# A file in an environment that is complete.
COMPLETE = "complete"
WARM_UP_STEPS = 10
# The settings that torch_model.py has flags for.
TORCH_FLAGS = (
    *("architecture", "num_layers", "embedding_size", "rnn_size", "heads", "feed_forward_size", "keep_prob"),
    *("batch_size", "learning_rate", "max_gradient_norm", "seed"),
)


def environments_flag() -> Any:
    """Return the field of a `Flags` class for the folder of the environment."""
    text = "folder of PyTorch's virtual environment, which is made once; default: duida/peers in the user's cache"
    return setting(None, text, group="peers", metavar="FOLDER")


def environment(environments: str | None) -> Path:
    """Return the folder of PyTorch's environment, which is made if it is not there or not complete.

    environments: a value of `environments_flag`. The folder's name has a hash of the requirements and of Python's
    version. Processes that need the same environment wait for each other. Raises UserError if the packages cannot be
    installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(environments or cache / "duida" / "peers").absolute()
    key = f"{REQUIREMENTS.read_text(encoding='utf-8')}{sys.version}"
    home = folder / f"torch-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{home}.lock"):
            if not (home / COMPLETE).exists():
                log(f"{home}: installing the packages, once; this takes minutes")
                shutil.rmtree(home, ignore_errors=True)
                output_of(python("-m", "venv", home), folder)
                install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                output_of([*install, "-r", REQUIREMENTS.absolute()], folder)
                (home / COMPLETE).touch()
    except OSError as error:
        raise UserError(f"--environments {folder}: {error.strerror}; give a folder that can be written") from None
    return home


@dataclasses.dataclass(frozen=True)
class Best:
    """The best validation of a run."""

    nats: float  # the summed negative log-likelihood of the held-out replies, end symbols included
    step: int


@dataclasses.dataclass(frozen=True)
class PyTorch:
    """The models of torch_model.py.

    home: the folder of the environment. work: the folder with the text. cores: the number of threads.
    """

    home: Path
    work: Path
    cores: int

    def rate(self, settings: Settings, text: str, steps: int, precision: str, device: str = "cpu") -> float:
        """Train on a text. Returns real target tokens a second."""
        measuring = "--steps", steps, "--warm-up", WARM_UP_STEPS, "--device", device
        output = self._output(settings, text, precision, *measuring)
        return float(json.loads(output.splitlines()[-1])["target_tokens_per_s"])

    def best(self, settings: Settings, text: str, held_out: str, seconds: float, every: int, precision: str) -> Best:
        """Train on a text for some seconds, with a validation on another one every so many steps.

        Raises UserError if there is no validation.
        """
        output = self._output(
            settings, text, precision, "--quality", held_out, "--validate-every", every, seconds=seconds
        )
        records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if not records:
            raise UserError("PyTorch: no validation before its time was over; raise --quality-seconds")
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
