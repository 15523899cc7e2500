"""Runs a trained model with TensorFlow to generate replies."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.trained import Trained
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS
from chatbot.decoding.array_functions import Floats, Ids
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.graph_search import run, search_all
from chatbot.decoding.interface import EMPTY_QUESTION, IdRows, IsWanted, distinct_rows, number_prefixes, pad_rows
from chatbot.decoding.sampling import uniform_numbers
from chatbot.decoding.search import HYPOTHESIS_PARTS, new_search, select_rows
from chatbot.inference.replier import Replier, for_attempt
from chatbot.model.decoder import DecoderState, SharedDistributions
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, pack_array, unsized_specs

# On a GPU, a search checks every so many tokens whether all hypotheses are finished. Frequent checks would be slow,
# because the host waits for the GPU each time.
CHECK_INTERVAL_ON_GPU = 4


class TensorState(NamedTuple):
    """The decoder state of several rows.

    Attributes:
        tensors: The state tensors. `round_up_size` determines the padded number of rows and of question positions.
        lengths: The lengths of the questions, with shape [rows].
        decoded: The number of tokens in each reply, with shape [rows], stored on the host.
    """

    tensors: DecoderState
    lengths: Ids
    decoded: Ids


class TensorFlowModel:
    """A `chatbot.decoding.interface.Model` for a trained model. Its states remain on the model's device.

    Args:
        model: The trained model.
        copies: Copies of the model on several devices, each of which searches some of the batches. None uses only the
            model's own device.
    """

    def __init__(self, model: Seq2Seq, copies: DeviceCopies | None = None) -> None:
        self.model, self._copies = model, copies or DeviceCopies(model)

    def encode(self, questions: IdRows) -> TensorState:
        """See `Model`."""
        lengths = np.array([len(question) for question in questions])
        ids = pad_rows(questions, round_up_size(int(lengths.max())))[_fill_rows(np.arange(len(questions)))]
        with self.model.placed():
            return TensorState(self.graphs.encode(self.model.sequences(ids)), lengths, np.zeros_like(lengths))

    def step(self, state: TensorState, last: Ids) -> tuple[Floats, TensorState]:
        """See `Model`."""
        with self.model.placed():
            logits, changed = self.graphs.step(state.tensors, _fill_rows(last))
        after = state._replace(tensors={**state.tensors, **changed}, decoded=state.decoded + 1)
        return logits.numpy()[: len(last)], after

    def take(self, states: Sequence[TensorState], rows: Ids) -> TensorState:
        """See `Model`. The longest row determines the width: questions are padded on the right, caches on the left."""
        lengths, decoded = (
            np.concatenate(x)[rows] for x in zip(*((y.lengths, y.decoded) for y in states), strict=True)
        )
        first = len(states[0].lengths)
        width = np.int32(round_up_size(int(lengths.max(initial=1))))
        rows = np.where(rows < first, rows, rows - first + round_up_size(first))
        function = self.graphs.take if len(states) == 1 else self.graphs.take_two
        with self.model.placed():
            tensors = function([x.tensors for x in states], _fill_rows(rows), width, np.int32(decoded.max(initial=0)))
        return TensorState(tensors, lengths, decoded)

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> "GraphSearcher":
        """See `Model`."""
        return GraphSearcher(self.model, self._copies, decoding, automaton)

    def attention(self, questions: IdRows, replies: IdRows) -> list[Floats]:
        """See `Model`. The replies are fed to the decoder by teacher forcing."""
        rows = pad_rows(questions), pad_rows([[BOS, *reply] for reply in replies])
        with self.model.placed():
            weights = self.model.attention_weights(*map(self.model.sequences, rows))  # [rows, target, source]
        weights = weights.numpy().astype(np.float32)
        return [
            row[: len(reply) + 1, : len(question)]
            for row, question, reply in zip(weights, questions, replies, strict=True)
        ]

    def log_probabilities(self, sources: IdRows, targets: IdRows, begin: int) -> Floats:
        """See `Model`."""
        target_in = pad_rows([[begin, *ids] for ids in targets])
        target_out = pad_rows([[*ids, EOS] for ids in targets])
        distinct_sources, rows = distinct_rows(sources)
        with self.model.placed():
            source = self.model.sequences(pad_rows(distinct_sources))
            target = self.model.sequences(target_in)
            expected = pack_array(target_out, target.packing, 0).astype(np.int64)
            prefixes = pack_array(pad_rows(number_prefixes(rows.tolist(), targets)), target.packing, 0)
            _, *alike = np.unique(prefixes, return_index=True, return_inverse=True)
            result: Floats = self._scoring_graph(source, target, expected, rows, *alike).numpy()
        return result

    @functools.cached_property
    def _scoring_graph(self) -> Any:
        """The graph of `log_probabilities`. It is a concrete function, which is faster to call."""
        with self.model.placed():
            sequences = unsized_specs(self.model.sequences(np.ones([1, 1])))
            signature = [sequences, sequences, *[tf.TensorSpec([None], tf.int64)] * 4]

            def score(
                source: Sequences, target: Sequences, expected: tf.Tensor, rows: tf.Tensor, *alike: tf.Tensor
            ) -> tf.Tensor:
                return target_log_probabilities(self.model, source, target, expected, rows, SharedDistributions(*alike))

            return tf.function(score, input_signature=signature, autograph=False).get_concrete_function()

    @functools.cached_property
    def graphs(self) -> "RowGraphs":
        """The graphs that generate replies token by token."""
        model = self.model

        def step(state: DecoderState, last: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
            logits, after = model.step(state, last)
            return tf.cast(logits, tf.float32), {name: x for name, x in after.items() if name in HYPOTHESIS_PARTS}

        def graph(function: Any, *signature: Any) -> Any:
            traced = tf.function(function, input_signature=signature, autograph=False)
            traced.get_concrete_function()
            return traced

        with model.placed():
            encode = graph(model.encode, unsized_specs(model.sequences(np.ones([1, 1]))))
            outputs = encode.get_concrete_function().structured_outputs
            state = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), outputs)
            numbers = tf.TensorSpec([None], tf.int64)
            size = tf.TensorSpec([], tf.int32)
            return RowGraphs(
                encode,
                graph(step, state, numbers),
                graph(select_rows, [state], numbers, size, size),
                graph(select_rows, [state, state], numbers, size, size),
            )


class RowGraphs(NamedTuple):
    """The TensorFlow graphs that implement the methods of `Model`.

    Attributes:
        encode: Implements `Model.encode`.
        step: Implements `Model.step`.
        take: Implements `Model.take` for one state.
        take_two: Implements `Model.take` for two states.
    """

    encode: Any
    step: Any
    take: Any
    take_two: Any


class GraphSearcher:
    """A search as a TensorFlow graph. One trace suffices for any number and length of questions."""

    def __init__(
        self, model: Seq2Seq, copies: DeviceCopies, decoding: DecodingSettings, automaton: BoundedAutomaton
    ) -> None:
        self._model = model
        self._copies = copies
        self._decoding = decoding
        self._automaton = automaton
        self._callbacks: dict[int, IsWanted] = {}  # the callback of each running call, by call number
        self._calls = itertools.count()
        with model.placed():
            specs = [tf.TensorSpec([], tf.int32), unsized_specs(model.sequences(np.ones([1, 1])))]
        if decoding.samples:
            specs.append(tf.TensorSpec([None, decoding.hypotheses, automaton.max_length], tf.float32))

        def decode(number: tf.Tensor, source: Sequences, *uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def is_wanted() -> tf.Tensor:
                with tf.device("CPU"):
                    return tf.ensure_shape(tf.numpy_function(self._is_wanted, [number], tf.bool), [])

            return search_graph(model, decoding, automaton, source, uniform[0] if uniform else None, is_wanted)

        self.graph = copies.graph(decode, specs)

    def __call__(
        self, batches: Sequence[IdRows], seeds: IdRows, is_wanted: IsWanted
    ) -> list[tuple[npt.NDArray[np.int32], Floats]]:
        """See `Searcher`."""
        call = next(self._calls) % 2**31
        self._callbacks[call] = is_wanted

        def compute(weights: list[tf.Tensor], numbers: Iterator[int]) -> list[tuple[int, Any]]:
            return [(i, self._search(weights, call, seeds[i], batches[i])) for i in numbers]

        try:
            results = self._copies.run(compute, range(len(batches)))
        finally:
            del self._callbacks[call]
        return [batch for _, batch in sorted(itertools.chain(*results), key=lambda numbered: numbered[0])]

    def _is_wanted(self, number: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        return np.array(self._callbacks[int(number)]())

    def _search(self, weights: list[tf.Tensor], call: int, seeds: Sequence[int], questions: IdRows) -> Any:
        assert all(questions), "A question has no ids."
        arguments: list[Any] = [np.int32(call), self._model.sequences(pad_rows(questions))]
        if self._decoding.samples:
            sizes = self._decoding.hypotheses, self._automaton.max_length
            arguments.append(uniform_numbers(seeds, questions, *sizes))
        ids, scores = self.graph(weights, *arguments)
        return ids.numpy(), scores.numpy()


def search_graph(
    model: Seq2Seq,
    decoding: DecodingSettings,
    automaton: BoundedAutomaton,
    source: Sequences,
    uniform: tf.Tensor | None,
    is_wanted: Callable[[], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Build the graph of a search for replies.

    Args:
        model: The model.
        decoding: The decoding settings.
        automaton: The automaton that accepts the allowed replies.
        source: The questions.
        uniform: Random numbers in [0, 1) for sampling, with shape [rows, candidates, max_length] and dtype float32.
        is_wanted: A callback that returns False to abort the search; see `search_all`.

    Returns:
        Padded ids, with shape [rows, hypotheses, max_length] and dtype int32, and scores, with shape
        [rows, hypotheses] and dtype float32.
    """

    def encode(questions: Sequences) -> DecoderState:
        state = model.encode(questions)
        # The mask is converted to float32, because TensorFlow keeps bool tensors of a GPU loop in host memory.
        return {**state, "mask": tf.cast(state["mask"], tf.float32)}

    generic = encode(model.sequences(np.array([EMPTY_QUESTION]))) if decoding.anti_lm else None
    search, start = new_search(decoding, automaton, model.step, encode(source), generic, uniform)
    check_interval = CHECK_INTERVAL_ON_GPU if model.on_gpu else 1
    length = automaton.max_length
    if decoding.hypotheses == 1:
        hypotheses = run(search, start, length, check_interval).hypotheses
        ids = hypotheses.ids
        scores = hypotheses.log_probs
    else:
        ids, scores = search_all(search, start, check_interval, is_wanted)
    shape = [tf.shape(search.question["mask"])[0], decoding.hypotheses]
    return tf.cast(tf.reshape(ids, [*shape, length]), tf.int32), tf.reshape(scores, shape)


def target_log_probabilities(
    model: Seq2Seq,
    source: Sequences,
    target_in: Sequences,
    targets: tf.Tensor,
    rows: tf.Tensor | None = None,
    alike: SharedDistributions | None = None,
) -> tf.Tensor:
    """Return the log-probability of each target given its source, with shape [rows].

    The n-gram probabilities are not included, because they do not depend on the source.

    Args:
        model: The model.
        source: The source sequences.
        target_in: The decoder inputs, which are the targets shifted right.
        targets: The target ids, with shape [tokens] and dtype int64, packed like `target_in`.
        rows: The index of each target's source, as in `Seq2Seq.decoded`.
        alike: The positions with equal prefixes, which have the same next-token distribution.
    """
    log_probs = model.log_probabilities(model.decoded(source, target_in, rows=rows), targets, alike)  # [tokens]
    by_position = tf.gather(log_probs, target_in.packing.to_padded)  # [rows, time], with arbitrary values at padding
    return tf.reduce_sum(tf.where(target_in.mask, by_position, 0.0), axis=-1)


def replier_for(trained: Trained, decoding: DecodingSettings, model: TensorFlowModel | None = None) -> Replier:
    """Return a replier for a trained model. `for_attempt` checks and adapts the decoding settings.

    Args:
        trained: The trained model.
        decoding: The decoding settings.
        model: An existing `Model` of `trained` to reuse. None creates a new one.

    Raises:
        UserError: The attempt does not support the decoding settings.
    """
    decoding = for_attempt(decoding, trained.settings, trained.vocabulary)
    model = model or TensorFlowModel(trained.model)
    return Replier(model, trained.vocabulary, trained.settings.model, decoding, trained.retrieval)


def round_up_size(size: int) -> int:
    """Round up to one of 1, 2, 3, 4, 6, 8, 12, 16, ... TensorFlow retains memory for each distinct size."""
    step = 1 << max(0, size.bit_length() - 2)
    return -(-size // step) * step


def _fill_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pad an array to `round_up_size` rows by repeating its last row. The results of the added rows are ignored."""
    return np.pad(rows, (0, round_up_size(len(rows)) - len(rows)), mode="edge") if len(rows) else rows
