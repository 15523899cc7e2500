"""Training by the peers, PyTorch and OpenNMT-py, on parallel files of tokens with the sizes of this project's settings.

Each reads NAME.src, NAME.tgt and NAME.vocabulary, which `TokenisedPairs.write` writes: all systems have the same tokens
and the same vocabulary. A token outside it is the token of unknown ones, which costs a model less than the word would.
So the likelihood is measured on characters in which rare ones are spelled in bytes: none of them is unknown.
"""

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import HERE
from benchmarks.processes import output_of
from chatbot.config.model import TRANSFORMER
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import flag_of, flatten

# A progress line of onmt_train: "bsz:  553/ 341/61; 1313/810 tok/s", source and target tokens a batch and a second.
REPORT = re.compile(r"bsz:\s*\d+/\s*(\d+)/\s*\d+;\s*\d+/\s*(\d+) tok/s")
VALIDATED = re.compile(r"Validation perplexity: (\S+)")
# Of a reply; the total, which it prints too, is rounded to tenths of a second.
TRANSLATED = re.compile(r"Average translation time \(ms\): ([\d.]+)")
WARM_UP_STEPS = 10
# More steps than any run has before its time is over.
ENDLESS = 10**9
# The settings that torch_model.py has flags for.
TORCH_FLAGS = (
    *("architecture", "num_layers", "embedding_size", "rnn_size", "heads", "feed_forward_size", "keep_prob"),
    *("batch_size", "learning_rate", "max_gradient_norm", "seed"),
)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best validation of a run."""

    nats: float  # the summed negative log-likelihood of the held-out replies, end symbols included
    step: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """A system in its environment.

    home: the folder of the environment. work: the folder with the text, where the system writes. cores: its threads.
    """

    home: Path
    work: Path
    cores: int

    def output(self, *command: object, seconds: float | None = None) -> str:
        """Run a program of the environment in the folder `work`; see `output_of`."""
        program, *arguments = command
        # OpenNMT-py's checkpoints hold more than weights, which PyTorch refuses to load by default.
        variables = {"OMP_NUM_THREADS": str(self.cores), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
        path = self.home / "bin" / str(program)
        return output_of([path, *arguments], self.work, seconds=seconds, environment={**os.environ, **variables})


class PyTorch(Peer):
    """The models of torch_model.py."""

    def rate(self, settings: Settings, text: str, steps: int, precision: str, device: str = "cpu") -> float:
        """Train on a text. Returns real target tokens a second."""
        measuring = "--steps", steps, "--warm-up", WARM_UP_STEPS, "--device", device
        output = self._output(settings, text, precision, *measuring)
        return float(json.loads(output.splitlines()[-1])["target_tokens_per_s"])

    def best(self, settings: Settings, text: str, held_out: str, seconds: float, every: int, precision: str) -> Best:
        """Train on a text for some seconds, with a validation on another one every so many steps."""
        output = self._output(
            settings, text, precision, "--quality", held_out, "--validate-every", every, seconds=seconds
        )
        records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return best_of("PyTorch", [Best(record["nats"], record["step"]) for record in records])

    def _output(
        self, settings: Settings, text: str, precision: str, *arguments: object, seconds: float | None = None
    ) -> str:
        values = flatten(settings)
        flags = [word for name in TORCH_FLAGS for word in (flag_of(name), values[name])]
        flags += ["--threads", self.cores, "--precision", precision, "--text", text, *arguments]
        return self.output("python", HERE / "torch_model.py", *flags, seconds=seconds)


class OpenNMT(Peer):
    """OpenNMT-py, in float32. Its LSTM projects from its units by a matrix of its own; its Transformer's is tied."""

    def rate(self, settings: Settings, text: str, steps: int) -> float:
        """Train on a text, and save the model. Returns real target tokens a second after the first steps."""
        every = min(steps, WARM_UP_STEPS)
        config = opennmt_config(settings, text) | {"train_steps": WARM_UP_STEPS + steps, "report_every": every}
        reports = [(float(tokens), float(rate)) for tokens, rate in REPORT.findall(self._train(config))]
        reports = reports[WARM_UP_STEPS // every :]
        return sum(tokens for tokens, _ in reports) / sum(tokens / rate for tokens, rate in reports)

    def best(self, settings: Settings, text: str, held_out: str, seconds: float, every: int) -> Best:
        """Train on a text for some seconds, with a validation on another one every so many steps.

        onmt_train prints the perplexity per token, end symbols included, whose logarithm times the tokens are the nats.
        """
        config = opennmt_config(settings, text) | {"train_steps": ENDLESS, "valid_steps": every}
        config["data"]["valid"] = {"path_src": f"{held_out}.src", "path_tgt": f"{held_out}.tgt"}
        replies = (self.work / f"{held_out}.tgt").read_text(encoding="utf-8").splitlines()
        tokens = sum(len(reply.split(" ")) + 1 for reply in replies)
        perplexities = VALIDATED.findall(self._train(config, seconds))
        return best_of(
            "OpenNMT-py", [Best(math.log(float(p)) * tokens, every * n) for n, p in enumerate(perplexities, 1)]
        )

    def translate(self, step: int, questions: str, max_length: int, beam_size: int, batch_size: int) -> float:
        """Reply by a model. Returns how many replies a second, without the program's start.

        step: at which the model was saved. questions: the name of a text.
        """
        command: list[object] = ["onmt_translate", "-model", f"model_step_{step}.pt", "-src", f"{questions}.src"]
        command += ["-output", "replies", "-max_length", max_length, "-report_time"]
        command += ["-beam_size", beam_size, "-batch_size", batch_size]
        (milliseconds,) = TRANSLATED.findall(self.output(*command))
        return 1000 / float(milliseconds)

    def _train(self, config: dict[str, Any], seconds: float | None = None) -> str:
        (self.work / "opennmt.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        return self.output("onmt_train", "-config", "opennmt.yaml", seconds=seconds)


def best_of(system: str, validations: list[Best]) -> Best:
    """Return the validation with the fewest nats. Raises UserError if there is none."""
    if not validations:
        raise UserError(f"{system}: no validation before its time was over; raise --quality-seconds")
    return min(validations, key=lambda validation: validation.nats)


def opennmt_config(settings: Settings, text: str) -> dict[str, Any]:
    """Return the configuration of onmt_train for the sizes of these settings, without the number of steps."""
    model, learning = settings.model, settings.learning
    config: dict[str, Any] = {
        "data": {"training": {"path_src": f"{text}.src", "path_tgt": f"{text}.tgt"}},
        "src_vocab": f"{text}.vocabulary",
        "tgt_vocab": f"{text}.vocabulary",
        "share_vocab": True,
        "src_vocab_size": ENDLESS,
        "tgt_vocab_size": ENDLESS,
        "share_embeddings": True,
        "word_vec_size": model.embedding_size,
        "layers": model.num_layers,
        "dropout": [1 - model.keep_prob],
        "batch_type": "sents",
        "batch_size": learning.batch_size,
        "bucket_size": 100 * learning.batch_size,
        "normalization": "tokens",
        "optim": "adam",
        "learning_rate": learning.learning_rate,
        "max_grad_norm": learning.max_gradient_norm,
        "seed": learning.seed,
        "valid_steps": ENDLESS,
        "save_checkpoint_steps": ENDLESS,
        "save_model": "model",
        "num_workers": 0,
    }
    if model.architecture == TRANSFORMER:
        return config | {
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "hidden_size": model.embedding_size,
            "heads": model.heads,
            "transformer_ff": model.feed_forward_size,
            "pos_ffn_activation_fn": "silu",
            "attention_dropout": [0.0],
            "add_qkvbias": True,
            "add_ffnbias": True,
            "position_encoding": True,
            "share_decoder_embeddings": True,
            "param_init": 0.0,
            "param_init_glorot": True,
        }
    return config | {
        "encoder_type": "rnn",
        "decoder_type": "rnn",
        "rnn_type": "LSTM",
        "hidden_size": model.rnn_size,
        "global_attention": "general",
        "input_feed": 0,
    }
