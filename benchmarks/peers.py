"""The systems that users would pick instead, each in a virtual environment of its own."""

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from chatbot.errors import UserError

# A report of onmt_train: ... bsz:  553/ 341/61; 1313/810 tok/s; ...; source and target tokens of a batch and a second.
REPORT = re.compile(r"bsz:\s*\d+/\s*(\d+)/\s*\d+;\s*\d+/\s*(\d+) tok/s")
TRANSLATED = re.compile(r"Total translation time \(s\): ([\d.]+)")
WARM_UP = 10


@dataclasses.dataclass(frozen=True)
class Peers:
    """Where they are. Raises UserError for what is not there.

    scripts: the folder with torch_seq2seq.py and opennmt.yaml. torch, opennmt: virtual environments.
    work: a folder with train.src and train.tgt, where they may write.
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
                raise UserError(f"{needed}: not there; see --peers, --torch and --opennmt in --help")

    def train_torch(self, steps: int, bf16: bool, vocabulary_size: int) -> float:
        """Real target tokens a second of the tuned PyTorch model."""
        command: list[object] = [self.torch / "bin/python", (self.scripts / "torch_seq2seq.py").resolve()]
        command += ["--source", "train.src", "--target", "train.tgt", "--steps", steps, "--warmup", WARM_UP]
        command += ["--vocab", vocabulary_size, "--threads", self.cores, *(["--bf16"] if bf16 else [])]
        return float(json.loads(self._run(command).splitlines()[-1])["target_tokens_per_s"])

    def train_opennmt(self, steps: int) -> float:
        """Real target tokens a second of onmt_train, its first steps left out."""
        said = self._run([self.opennmt / "bin/onmt_train", "-config", self._config(WARM_UP + steps)])
        reports = [(float(tokens), float(rate)) for tokens, rate in REPORT.findall(said)][1:]
        return sum(tokens for tokens, _ in reports) / sum(tokens / rate for tokens, rate in reports)

    def prepare_opennmt(self) -> None:
        """Build its vocabulary from train.src and train.tgt."""
        self._run([self.opennmt / "bin/onmt_build_vocab", "-config", self._config(WARM_UP), "-n_sample", -1])

    def translate(self, steps: int, questions: str, beam_size: int, batch_size: int, max_length: int) -> float:
        """Replies a second of onmt_translate to a file of questions, its start left out; steps: of the model."""
        command: list[object] = [
            self.opennmt / "bin/onmt_translate",
            "-model",
            f"run/model_step_{WARM_UP + steps}.pt",
            "-src",
            questions,
        ]
        command += ["-output", "replies", "-beam_size", beam_size, "-batch_size", batch_size]
        said = self._run([*command, "-max_length", max_length, "-report_time"])
        (seconds,) = TRANSLATED.findall(said)
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
            # onmt_translate's checkpoints are older than PyTorch's rule that they hold weights alone.
            env={**os.environ, "OMP_NUM_THREADS": str(self.cores), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        if done.returncode:
            raise UserError(f"{command[0]}: exit code {done.returncode}: {done.stdout[-400:]}")
        return done.stdout
