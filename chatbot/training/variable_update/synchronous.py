"""The synchronous step: every tower computes, gradients meet, every copy of the weights gets the same update.

The ways of doing that differ in two things only: how many copies of the weights there are, and how
sums meet (`Exchange`). So each of them is a few lines that make a `Synchronous`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices import Tower
from chatbot.training.exchange import Exchange
from chatbot.training.gradients import Share, Sums, accumulated, gradient_function
from chatbot.training.variable_update.replica import Replica, Values


class StepResult(NamedTuple):
    """What a step leaves on the devices; nothing is copied to the host until somebody looks."""

    loss_sums: tf.Tensor  # [towers of all machines] float32, nats
    weight_sums: tf.Tensor  # [towers of all machines] float32, real target tokens
    examples: tf.Tensor  # scalar float32, pairs in the global batch
    gradient_norm: tf.Tensor  # scalar, of the averaged gradient before clipping


class Synchronous:
    """A training step over replicas, each a copy of the weights with the towers that read it.

    replicas: those of this process.
    exchange: how sums meet; None where there is nobody to meet.
    accumulate: into how many pieces each share is cut, which are computed one after another.
    staged: apply the gradients of a step while the next one computes, so that their exchange is hidden:
    w[t+1] = w[t] - update(gradient of batch t-1 at w[t-1]).
    machine, machines: of several processes with as many towers each, which this is.
    """

    def __init__(
        self,
        model: Seq2Seq,
        replicas: Sequence[tuple[Replica, Sequence[Tower]]],
        seed: int,
        exchange: Exchange | None = None,
        accumulate: int = 1,
        staged: bool = False,
        machine: int = 0,
        machines: int = 1,
    ) -> None:
        self._model, self._replicas, self._seed = model, list(replicas), seed
        self._exchange: Exchange = exchange or (lambda parts: parts)
        self._alone = exchange is None and len(replicas) == 1
        self._towers = [tower for _, towers in replicas for tower in towers]
        self._machine, self._machines = machine, machines
        shared = gradient_function(model)
        self.gradients = [gradient_function(model, t.parts) if t.parts else shared for t in self._towers]
        self._staged = staged
        self._pending: list[Sums] | None = None  # computed, and not applied yet
        self._updates = 0  # as the replicas count them
        self._ended: list[StepResult] = []
        self._update, self._report = _graph(self._updated), _graph(self._reported)
        self._meet, self._read = _graph(self._met), _graph(self._values)
        self._accumulate = accumulate
        self._cut(accumulate)

    def _cut(self, pieces: int) -> None:
        """Compute each share in so many pieces from now on."""
        self._pieces = pieces
        self._compute = _graph(lambda shares, number: self._computed(shares, number, self._values()))
        self._whole = _graph(
            lambda shares, number, rate: self._updated(*self._computed(shares, number, self._values()), rate)
        )
        self._overlap = _graph(self._overlapped)
        self.traced: dict[tuple[Any, ...], Any] = {}

    @property
    def traces(self) -> int:
        """How often a step was traced: once a bucket, and once more for the first of staged steps."""
        return sum(f.experimental_get_tracing_count() for f in (self._compute, self._whole, self._overlap))

    @property
    def tower_names(self) -> list[str]:
        """Of the towers of this process, one for each share."""
        return [tower.name for tower in self._towers]

    @property
    def num_shares(self) -> int:
        """How many shares a step takes in this process."""
        return len(self._towers)

    def finished_steps(self) -> list[StepResult]:
        """The results of the steps since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def __call__(self, shares: Sequence[Share], number: int, rate: float) -> None:
        """Train on one global batch.

        shares: one for each tower of this process, all of one bucket's shape. number: the step, from 0.
        rate: the learning rate. Raises UserError when memory does not suffice however small the pieces.
        """
        inputs = tuple(map(tuple, shares)), tf.constant(number)
        step = self._overlapping_step if self._staged else self._step
        while True:
            try:
                self._ended.append(step(inputs, tf.constant(rate, tf.float32)))
                return
            except tf.errors.ResourceExhaustedError as error:
                self._make_room(max(len(share[0]) for share in shares), number, error)

    def _step(self, inputs: tuple[Any, ...], rate: tf.Tensor) -> StepResult:
        """Two calls where replicas meet, so that what meets was computed whole: memory runs out in the first.

        One replica takes one call: gradients are scaled where they stand, and Python is asked once.
        """
        if self._alone:
            result = self._function(self._whole, (*inputs, rate))(*inputs, rate)
        else:
            sums, report = self._function(self._compute, inputs)(*inputs)
            result = self._update(sums, report, rate)
        self._updates += 1
        return result

    def _overlapping_step(self, inputs: tuple[Any, ...], rate: tf.Tensor) -> StepResult:
        if self._pending is None:
            self._pending, report = self._function(self._compute, inputs)(*inputs)
            return self._report(report)
        inputs = *inputs, self._read(), self._pending, rate
        self._pending, result = self._function(self._overlap, inputs)(*inputs)
        self._updates += 1
        return result

    def _function(self, function: Any, inputs: tuple[Any, ...]) -> Any:
        """The function traced for this bucket, whatever the number of rows."""
        shares, *rest = inputs
        shape = shares[0][0].shape[1], shares[0][1].shape[1]
        key = (function is self._compute, *shape)
        if key not in self.traced:
            self.traced[key] = function.get_concrete_function(tuple(share_spec(*shape) for _ in shares), *rest)
        return self.traced[key]

    def _make_room(self, rows: int, number: int, error: tf.errors.ResourceExhaustedError) -> None:
        """Cut shares into twice as many pieces; the batch stays what it was. Raises UserError where that is no help."""
        kept = "the last checkpoint is kept, and the same command goes on from it"
        if self._replicas[0][0].updates.numpy() != self._updates or (self._staged and self._machines > 1):
            raise UserError(
                f"out of memory while the weights were updated, at step {number}; {kept}: first free memory on the "
                "device"
            ) from error
        if self._pieces >= rows:
            raise UserError(
                f"out of memory at step {number}, with one pair at a time; {kept} where there is more memory; "
                "a smaller --max-length, --rnn-size or --vocabulary-size, and another --attempt, begin a smaller model"
            ) from error
        if self._pieces == self._accumulate:
            tqdm.write(
                "Out of memory: shares are cut into pieces from here on, computed one after another. Batches stay as "
                "large as before. Said once; --accumulate with a smaller --batch-size does it from the start."
            )
        self._cut(2 * self._pieces)

    def _values(self) -> list[list[tf.Tensor]]:
        """The weights of each replica as they are now."""
        return [[tf.identity(weight) for weight in replica.weights] for replica, _ in self._replicas]

    def _computed(
        self, shares: Sequence[Share], number: tf.Tensor, values: list[list[tf.Tensor]]
    ) -> tuple[list[Sums], tf.Tensor]:
        """The sums of each tower; and [3, towers of all machines] losses, weights and pairs of those here."""
        step_seed = tf.random.experimental.stateless_fold_in([self._seed, 0], number)
        first, sums = self._machine * len(self._towers), []
        owners = [at for at, (_, towers) in enumerate(self._replicas) for _ in towers]
        for i, (tower, owner, share) in enumerate(zip(self._towers, owners, shares, strict=True)):
            with tf.device(tower.device):
                seed = tf.random.experimental.stateless_fold_in(step_seed, first + i)
                sums.append(accumulated(self.gradients[i], values[owner], share, seed, self._pieces, tower.device))
        with tf.device(self._replicas[0][0].home):
            # A tower without a share of its own has a row without weight.
            pairs = [tf.math.count_nonzero(weights[:, 0], dtype=tf.float32) for *_, weights in shares]
            here = tf.stack([[s.loss for s in sums], [s.weight for s in sums], pairs])  # [3, towers]
            after = len(self._towers) * self._machines - first - len(sums)
            return sums, tf.pad(here, [[0, 0], [first, after]])

    def _met(self, sums: Sequence[Sums], report: tf.Tensor) -> list[tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]]:
        """For each replica the gradients, tokens and report of all."""
        parts, rest = [], list(sums)
        for at, (replica, towers) in enumerate(self._replicas):
            own, rest = rest[: len(towers)], rest[len(towers) :]
            gradients = []
            for weight, *terms in zip(replica.weights, *(s.gradients for s in own), strict=True):
                with tf.device(weight.device):
                    gradients.append(tf.add_n(terms))
            with tf.device(replica.home):
                said = tf.identity(report) if at == 0 else tf.zeros_like(report)
                parts.append([*gradients, tf.add_n([s.weight for s in own]), said])
        return [(gradients, tokens, said) for *gradients, tokens, said in self._exchange(parts)]

    def _updated(self, sums: Sequence[Sums], report: tf.Tensor, rate: tf.Tensor) -> StepResult:
        met = self._met(sums, report)
        norms = [
            replica.apply(gradients, tokens, rate)
            for (replica, _), (gradients, tokens, _) in zip(self._replicas, met, strict=True)
        ]
        return _result(met[0][2], norms[0])

    def _overlapped(
        self,
        shares: Sequence[Share],
        number: tf.Tensor,
        values: list[list[tf.Tensor]],
        pending: Sequence[Sums],
        rate: tf.Tensor,
    ) -> tuple[list[Sums], StepResult]:
        """Two halves that nothing ties together.

        values: the weights, read in a call before this one: in one graph with tf.distribute's reduction, after
        TensorFlow's optimizer of graphs, some were read after their update.
        """
        sums, report = self._computed(shares, number, values)
        return sums, self._updated(pending, report, rate)

    def _reported(self, report: tf.Tensor) -> StepResult:
        parts = [[report], *([tf.zeros_like(report)] for _ in self._replicas[1:])]
        return _result(self._exchange(parts)[0][0], tf.constant(0.0))

    def gather_state(self) -> Values:
        """Put the weights into the model; returns what else a checkpoint must hold, the same on every machine."""
        state = self._replicas[0][0].gather_state()
        if self._staged:
            gradients: Any = [tf.zeros_like(w) for w in self._model.trainable_variables]
            tokens = tf.constant(0.0)
            if self._pending is not None:
                gradients, tokens, _ = self._meet(self._pending, tf.zeros([3, len(self._towers) * self._machines]))[0]
            state += [tensor.numpy() for tensor in (*gradients, tokens)]
        return state

    def scatter_state(self, state: Values) -> None:
        """Copy machine 0's model and state, as `gather_state` returns it, to every replica of every machine."""
        weights = [variable.value for variable in self._model.trainable_variables]
        if self._machines > 1:
            mine = [tf.cast(value, tf.float64) for value in (*weights, *state)]  # which holds every kind exactly
            if self._machine > 0:
                mine = [tf.zeros_like(value) for value in mine]
            parts = [mine, *([tf.zeros_like(value) for value in mine] for _ in self._replicas[1:])]
            theirs = [tensor.numpy() for tensor in _graph(self._exchange)(parts)[0]]
            for weight, value in zip(weights, theirs, strict=False):
                weight.assign(value.astype(np.float32))
            state = [new.astype(old.dtype) for old, new in zip(state, theirs[len(weights) :], strict=True)]
        if self._staged:
            state, (*gradients, tokens) = state[: -len(weights) - 1], state[-len(weights) - 1 :]
            self._pending = self._as_pending(gradients, tokens) if tokens > 0 else None
        for replica, _ in self._replicas:
            replica.scatter_state(state)
        self._updates = int(state[0])

    def _as_pending(self, gradients: Values, tokens: Any) -> list[Sums]:
        """Sums of all towers as if the first one, of machine 0, had computed them and the others nothing."""
        sums = []
        for i, tower in enumerate(self._towers):
            share = 1.0 if (self._machine, i) == (0, 0) else 0.0
            with tf.device(tower.device):
                scaled = [tf.constant(share * gradient) for gradient in gradients]
                sums.append(Sums(tf.constant(0.0), tf.constant(share * tokens), scaled))
        return sums


def _graph(function: Callable[..., Any]) -> Any:
    """A tf.function. Its Python has no branch on a tensor, so AutoGraph would only make the tracing longer."""
    return tf.function(function, autograph=False)


def _result(report: tf.Tensor, norm: tf.Tensor) -> StepResult:
    losses, weights, pairs = tf.unstack(report)
    return StepResult(losses, weights, tf.reduce_sum(pairs), norm)


def share_spec(source_length: int, target_length: int) -> tuple[tf.TensorSpec, ...]:
    """A share of a bucket: the lengths are static, the number of rows is not."""
    return (
        tf.TensorSpec([None, source_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.int32),
        tf.TensorSpec([None, target_length], tf.float32),
    )
