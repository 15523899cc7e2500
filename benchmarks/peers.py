"""OpenNMT-py and a tuned PyTorch model, for comparison, each in a separate virtual environment."""

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from chatbot.errors import UserError

# A progress line of onmt_train: "bsz:  553/ 341/61; 1313/810 tok/s", source and target tokens a batch and a second.
REPORT = re.compile(r"bsz:\s*\d+/\s*(\d+)/\s*\d+;\s*\d+/\s*(\d+) tok/s")
TRANSLATED = re.compile(r"Total translation time \(s\): ([\d.]+)")
WARM_UP_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Peers:
    """Paths of the other systems. Raises UserError for a path that does not exist.

    scripts: the folder with torch_seq2seq.py and opennmt.yaml. torch, opennmt: virtual environments.
    work: the folder with train.src and train.tgt, where the systems write. cores: threads of each system.
    """

    scripts: Path
    torch: Path
    opennmt: Path
    work: Path
    cores: int

    def __post_init__(self) -> None:
        for needed in (
            self.scripts / "torch_seq2seq.py",
            self.scripts / "opennmt.yaml",
            self.torch / "bin/python",
            self.opennmt / "bin/onmt_train",
        ):
            if not needed.exists():
                raise UserError(f"{needed}: not found; see --peers, --torch and --opennmt in --help")

    def train_torch(self, steps: int, vocabulary_size: int, *, bf16: bool, tied: bool) -> float:
        """Train the tuned PyTorch model. Returns real target tokens a second.

        bf16: use bfloat16 where PyTorch's autocast does. tied: use the embedding as the projection too, as this project
        does.
        """
        command: list[object] = [self.torch / "bin/python", (self.scripts / "torch_seq2seq.py").resolve()]
        command += ["--source", "train.src", "--target", "train.tgt", "--steps", steps, "--warmup", WARM_UP_STEPS]
        command += ["--vocab", vocabulary_size, "--threads", self.cores]
        command += [flag for flag, given in (("--bf16", bf16), ("--tied", tied)) if given]
        return float(json.loads(self._run(command).splitlines()[-1])["target_tokens_per_s"])

    def train_opennmt(self, steps: int) -> float:
        """Run onmt_train. Returns real target tokens a second, without the first report."""
        output = self._run([self.opennmt / "bin/onmt_train", "-config", self._config(WARM_UP_STEPS + steps)])
        reports = [(float(tokens), float(rate)) for tokens, rate in REPORT.findall(output)][1:]
        return sum(tokens for tokens, _ in reports) / sum(tokens / rate for tokens, rate in reports)

    def prepare_opennmt(self) -> None:
        """Build OpenNMT-py's vocabulary from train.src and train.tgt."""
        self._run([self.opennmt / "bin/onmt_build_vocab", "-config", self._config(WARM_UP_STEPS), "-n_sample", -1])

    def translate(self, steps: int, questions: str, beam_size: int, batch_size: int, max_length: int) -> float:
        """Run onmt_translate on a file of questions with the model of `steps` steps. Returns replies a second.

        The start of the program is not counted.
        """
        command: list[object] = [
            self.opennmt / "bin/onmt_translate",
            "-model",
            f"run/model_step_{WARM_UP_STEPS + steps}.pt",
            "-src",
            questions,
        ]
        command += ["-output", "replies", "-beam_size", beam_size, "-batch_size", batch_size]
        output = self._run([*command, "-max_length", max_length, "-report_time"])
        (seconds,) = TRANSLATED.findall(output)
        return len((self.work / questions).read_text(encoding="utf-8").splitlines()) / float(seconds)

    def _config(self, steps: int) -> str:
        text = (self.scripts / "opennmt.yaml").read_text(encoding="utf-8")
        text = re.sub(r"train_steps: \d+", f"train_steps: {steps}", text)
        text = re.sub(r"report_every: \d+", "report_every: 10", text)
        (self.work / "opennmt.yaml").write_text(text, encoding="utf-8")
        return "opennmt.yaml"

    def _run(self, command: Sequence[object]) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.work,
            # OpenNMT-py's checkpoints hold more than weights, which PyTorch refuses to load by default.
            env={**os.environ, "OMP_NUM_THREADS": str(self.cores), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        if done.returncode:
            raise UserError(f"{command[0]}: exit code {done.returncode}: {done.stdout[-400:]}")
        return done.stdout
