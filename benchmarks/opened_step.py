"""Runs training steps of a new model for benchmarks, and defines flags for model sizes."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.benchmark import Recorded
from chatbot.config.corpus import MIN_VOCABULARY
from chatbot.config.model import RECURRENT, RECURRENT_SETTINGS, TRANSFORMER, ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.flags import compose, replace, setting
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers

if TYPE_CHECKING:
    from chatbot.training.machines.team import Team
    from chatbot.training.metrics import Window


def architecture_flag() -> Any:
    """Return a dataclass field for the flag --architecture; see `with_architecture`."""
    return setting(RECURRENT, "type of the encoder and the decoder", group="model", choices=(RECURRENT, TRANSFORMER))


def with_architecture(settings: Settings, architecture: str) -> Settings:
    """Return the settings with another architecture. Settings that do not apply to it are reset to their defaults."""
    if architecture == RECURRENT:
        return settings
    return replace(
        settings, architecture=architecture, **{name: getattr(ModelSettings, name) for name in RECURRENT_SETTINGS}
    )


def plain(settings: Settings) -> Settings:
    """Return settings that PyTorch's peer model also supports: no dropout, and a unidirectional encoder."""
    one_direction = {"bidirectional": False} if settings.model.architecture == RECURRENT else {}
    return replace(settings, keep_prob=1.0, learning_rate=0.001, **one_direction)


@dataclasses.dataclass(frozen=True)
class SizeFlags(Recorded):
    """Flags for the sizes of the model and of a batch. Raises UserError if a value is out of range."""

    rnn_size: int = setting(512, "number of units in each recurrent layer", group="model", minimum=2)
    num_layers: int = setting(2, "number of layers in the encoder and in the decoder", minimum=1)
    embedding_size: int = setting(256, "size of the token embeddings", minimum=1)
    vocabulary_size: int = setting(
        16_000, "maximum size of the vocabulary of bytes, characters and words", minimum=MIN_VOCABULARY
    )
    max_length: int = setting(20, "maximum number of tokens in a question and in a reply", minimum=2)
    batch_size: int = setting(64, "number of pairs per step", minimum=1)

    @property
    def settings(self) -> Settings:
        """The settings of the model."""
        sizes = ("rnn_size", "num_layers", "embedding_size", "max_length", "batch_size")
        return compose(Settings, **{name: getattr(self, name) for name in sizes})


@dataclasses.dataclass(frozen=True)
class TurnFlags(SizeFlags):
    """Flags for model sizes and for the number of measured rounds and steps."""

    rounds: int = setting(
        5, "number of rounds, each with one turn per system; the median is reported", group="measuring", minimum=1
    )
    steps: int = setting(60, "number of training steps per turn", minimum=1)


def towers_of_machine(number: int | None) -> list[Tower]:
    """Open towers (model replicas) on several GPUs, or on parts of a single GPU or the CPU.

    Args:
        number: The number of towers; None for one tower per GPU.

    Raises:
        UserError: If there are several GPUs, but fewer than `number`.
    """
    gpus = choose_gpus()
    return open_towers(gpus[:number], number if len(gpus) < 2 else None)


def pairs_of_one_length(settings: Settings, vocabulary: int, number: int, length: int | None = None) -> EncodedPairs:
    """Return random pairs of equal length, so that all batches have the same shape and no padding.

    The frequencies of tokens follow Zipf's law, as in real text.

    Args:
        settings: The settings of the model.
        vocabulary: The size of the vocabulary.
        number: The number of pairs.
        length: The number of tokens of a question, by default --max-length. Replies have one token less.
    """
    words = vocabulary - len(SPECIALS)
    drawn = np.random.default_rng(1).random((2, number, length or settings.model.max_length))
    rows = (np.exp(drawn * np.log(words)).astype(np.int64) - 1 + len(SPECIALS)).tolist()
    sources = Ragged.from_rows(rows[0])
    targets = Ragged.from_rows([row[:-1] for row in rows[1]])
    return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


class OpenedStep:
    """A new model with its training step and an endless stream of batches.

    `open_towers` must be called before an object is created. With several machines, each uses the batch size in the
    settings. The first training step is slow, because it traces the graph.

    Attributes:
        stream: The batches of this machine. It can be replaced before the first step.
    """

    def __init__(
        self,
        settings: Settings,
        pairs: EncodedPairs,
        vocabulary: int,
        towers: Sequence[Tower],
        precision: str = "float32",
        team: "Team | None" = None,
    ) -> None:
        import tensorflow as tf

        from chatbot.model.operations import is_gpu
        from chatbot.training.machines.team import ALONE
        from chatbot.training.memory import loss_size
        from chatbot.training.new_model import build_model
        from chatbot.training.update import open_update

        team = team or ALONE
        learning = settings.learning
        with tf.device(towers[0].device):
            size = loss_size(settings, towers, team.machines)
            on_gpu = is_gpu(towers[0].device)  # tracing a graph for GPUs requires no GPU
            self.model = build_model(
                settings.model, vocabulary, learning.seed, precision, loss_size=size, on_gpu=on_gpu
            )
        self.update = open_update(self.model, settings, towers, team)
        self.batches = Batches([pairs], learning.batch_size * team.machines, learning.seed)
        self._share = (self.update.num_shares, team.machine, team.machines)
        self.stream: Iterator[GlobalBatch] = self.batches.from_step(0, *self._share)
        self._rate = learning.learning_rate

    def first_batch(self) -> GlobalBatch:
        """Return this machine's first batch."""
        return next(self.batches.from_step(0, *self._share))

    @functools.cached_property
    def window(self) -> "Window":
        """The training batches, prepared by a background thread. The first access initialises the training state."""
        from chatbot.corpus.workers import prefetched
        from chatbot.training.metrics import Window

        self.update.scatter_state(self.update.gather_state())
        return Window(prefetched(zip(self.stream, itertools.count()), self.update.prepare), self.update.begin_copies)

    def turn(self, steps: int) -> dict[str, Any]:
        """Train for this number of steps.

        Returns:
            The record that a run would write to metrics.jsonl, and "step_s", the seconds per step.
        """
        self.window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            self.update(self.window.next_batch(), self._rate)
        results = self.update.finished_steps()
        record = self.window.end(0, self._rate)(results)
        return {**record, "step_s": (time.perf_counter() - began) / steps}
