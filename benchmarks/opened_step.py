"""A training step of a new model, opened as a run opens it, and the flags of the sizes of measured models."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.benchmark import Recorded
from chatbot.config.corpus import LEAST_VOCABULARY
from chatbot.config.model import OF_RECURRENT, RECURRENT, TRANSFORMER, ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, GlobalBatch
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.flags import compose, replace, setting
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers

if TYPE_CHECKING:
    from chatbot.training.machines.team import Team
    from chatbot.training.metrics import Window


def architecture_flag() -> Any:
    """Return the field of a `Flags` class for the layers of the models; see `with_architecture`."""
    return setting(RECURRENT, "layers of the models", group="model", choices=(RECURRENT, TRANSFORMER))


def with_architecture(settings: Settings, architecture: str) -> Settings:
    """Return settings with these layers; a Transformer has none of the settings of recurrent ones."""
    if architecture == RECURRENT:
        return settings
    return replace(settings, architecture=architecture, **{name: getattr(ModelSettings, name) for name in OF_RECURRENT})


def plain(settings: Settings) -> Settings:
    """Return the settings of what other systems have, too: one direction, no dropout, their learning rate."""
    one_direction = {"bidirectional": False} if settings.model.architecture == RECURRENT else {}
    return replace(settings, keep_prob=1.0, learning_rate=0.001, **one_direction)


@dataclasses.dataclass(frozen=True)
class SizeFlags(Recorded):
    """Sizes of the model and of a batch. Raises UserError for a value out of its range."""

    rnn_size: int = setting(512, "units of each recurrent layer", group="model", least=2)
    num_layers: int = setting(2, "layers of each side", least=1)
    embedding_size: int = setting(256, "units of an embedding", least=1)
    vocabulary_size: int = setting(16_000, "maximum size of the vocabulary", least=LEAST_VOCABULARY)
    max_length: int = setting(20, "tokens of the longest question and reply", least=2)
    batch_size: int = setting(64, "pairs in a step", least=1)

    @property
    def settings(self) -> Settings:
        """The settings of the model."""
        sizes = ("rnn_size", "num_layers", "embedding_size", "max_length", "batch_size")
        return compose(Settings, **{name: getattr(self, name) for name in sizes})


@dataclasses.dataclass(frozen=True)
class TurnFlags(SizeFlags):
    """Sizes, and the extent of a measurement."""

    rounds: int = setting(5, "rounds of one turn each; medians over the rounds count", group="measuring", least=1)
    steps: int = setting(60, "steps in a turn", least=1)


def towers_of_machine(number: int | None = None) -> list[Tower]:
    """Open this many towers: on as many GPUs, or on the only GPU or the CPU, which is split.

    number: None: one on each GPU, or a single one. Raises UserError for more towers than several GPUs.
    """
    gpus = choose_gpus(None, None, find_gpus())
    return open_towers(gpus[:number], number if len(gpus) < 2 else None)


def pairs_of_one_length(settings: Settings, vocabulary: int, number: int, length: int | None = None) -> EncodedPairs:
    """Return drawn pairs of one length, so that all batches have one shape and no position is padding.

    The ids follow Zipf's law, as words do: so many different ones are looked up in a step as in text. length: of the
    questions, which have one token more than the replies; None: --max-length.
    """
    words = vocabulary - len(SPECIALS)
    drawn = np.random.default_rng(1).random((2, number, length or settings.model.max_length))
    rows = (np.exp(drawn * np.log(words)).astype(np.int64) - 1 + len(SPECIALS)).tolist()
    sources = Ragged.from_rows(rows[0])
    targets = Ragged.from_rows([row[:-1] for row in rows[1]])
    return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


class OpenedStep:
    """The training step of a new model, and batches of pairs without an end. Nothing is computed before it is asked.

    batch_size: of each machine. team: of several machines; None for this one alone. Make it after `open_towers`.
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
        from chatbot.training.new_model import built_model
        from chatbot.training.update import open_update

        team = team or ALONE
        learning = settings.learning
        with tf.device(towers[0].device):
            size = loss_size(settings, towers, team.machines)
            on_gpu = is_gpu(towers[0].device)  # also without one, where a graph is only traced
            self.model = built_model(
                settings.model, vocabulary, learning.seed, precision, loss_size=size, on_gpu=on_gpu
            )
        self.update = open_update(self.model, settings, towers, team)
        self.batches = Batches([pairs], learning.batch_size * team.machines, learning.seed)
        self._share = (self.update.num_shares, team.machine, team.machines)
        self._rate = learning.learning_rate

    def first_batch(self) -> GlobalBatch:
        """Return the first batch of this machine."""
        return next(self.batches.from_step(0, *self._share))

    @functools.cached_property
    def window(self) -> "Window":
        """The batches of training, prepared by a thread, in a new run's state of the step."""
        from chatbot.corpus.workers import prefetched
        from chatbot.training.metrics import Window

        self.update.scatter_state(self.update.gather_state())
        numbered = zip(self.batches.from_step(0, *self._share), itertools.count())
        return Window(prefetched(numbered, self.update.prepare), self.update.begin_copies)

    def turn(self, steps: int) -> dict[str, Any]:
        """Train for some steps, and wait for them. Returns the record of a run, and step_s, seconds a step."""
        self.window.restart()
        began = time.perf_counter()
        for _ in range(steps):
            self.update(self.window.next_batch(), self._rate)
        results = self.update.finished_steps()
        record = self.window.end(0, self._rate)(results)
        return {**record, "step_s": (time.perf_counter() - began) / steps}
