"""A trained model as replies need it, computed by TensorFlow."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.attempts.trained import Trained
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS, EOS, Vocabulary
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.graph_search import run, search_all
from chatbot.decoding.interface import EMPTY_QUESTION, IsWanted, distinct, padded, prefix_numbers
from chatbot.decoding.reply_text import WordAttention, by_word
from chatbot.decoding.sampling import uniform_numbers
from chatbot.decoding.search import OF_HYPOTHESES, new_search
from chatbot.inference.replier import Replier, for_attempt
from chatbot.model.decoder import Alike, DecoderState
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, packed_array, specs_of

# After how many ids a search on a GPU checks whether all hypotheses are finished: the host waits for each check. Up to
# three ids are then computed in vain.
CHECK_INTERVAL_ON_GPU = 4


class TensorState(NamedTuple):
    """The state of some rows. tensors: with `rounded_up` rows and positions of questions.

    lengths: of their questions, [rows]. decoded: the tokens of their replies, [rows], also here so that the host
    need not wait for a GPU.
    """

    tensors: DecoderState
    lengths: npt.NDArray[np.int64]
    decoded: npt.NDArray[np.int64]


class TensorFlowModel:
    """The `chatbot.decoding.interface.Model` of a trained model. The states of rows stay on the device that computes.

    Each graph is traced once, at its first use. copies: the devices that share the batches of a search; None for the
    model's own.
    """

    def __init__(self, model: Seq2Seq, copies: DeviceCopies | None = None) -> None:
        self.model, self._copies = model, copies or DeviceCopies(model)

    def encode(self, questions: Sequence[Sequence[int]]) -> TensorState:
        """See `Model`."""
        lengths = np.array([len(question) for question in questions])
        ids = padded(questions, rounded_up(int(lengths.max())))[_filled(np.arange(len(questions)))]
        with self.model.placed():
            return TensorState(self.graphs.encode(self.model.sequences(ids)), lengths, np.zeros_like(lengths))

    def step(self, state: TensorState, last: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], TensorState]:
        """See `Model`."""
        with self.model.placed():
            logits, changed = self.graphs.step(state.tensors, _filled(last))
        after = state._replace(tensors={**state.tensors, **changed}, decoded=state.decoded + 1)
        return logits.numpy()[: len(last)], after

    def take(self, states: Sequence[TensorState], rows: npt.NDArray[np.int64]) -> TensorState:
        """See `Model`. Questions are padded to the longest of them, and caches on the left to that of most tokens."""
        lengths, decoded = (
            np.concatenate(x)[rows] for x in zip(*((y.lengths, y.decoded) for y in states), strict=True)
        )
        first = len(states[0].lengths)
        width = np.int32(rounded_up(int(lengths.max(initial=1))))
        rows = np.where(rows < first, rows, rows - first + rounded_up(first))
        function = self.graphs.take if len(states) == 1 else self.graphs.take_of_both
        with self.model.placed():
            tensors = function([x.tensors for x in states], _filled(rows), width, np.int32(decoded.max(initial=0)))
        return TensorState(tensors, lengths, decoded)

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> "GraphSearcher":
        """See `Model`."""
        return GraphSearcher(self.model, self._copies, decoding, automaton)

    def attention(self, question: Sequence[int], reply: Sequence[int]) -> npt.NDArray[np.float32]:
        """See `Model`."""
        return attention_weights(self.model, [question], [reply])[0]

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], begin: int
    ) -> npt.NDArray[np.float32]:
        """See `Model`."""
        target_in = padded([[begin, *ids] for ids in targets])
        target_out = padded([[*ids, EOS] for ids in targets])
        different, rows = distinct(sources)
        with self.model.placed():
            source = self.model.sequences(padded(different))
            target = self.model.sequences(target_in)
            expected = packed_array(target_out, target.packing, 0).astype(np.int64)
            prefixes = packed_array(padded(prefix_numbers(rows.tolist(), targets)), target.packing, 0)
            _, *alike = np.unique(prefixes, return_index=True, return_inverse=True)
            result: npt.NDArray[np.float32] = self.scoring_graph(source, target, expected, rows, *alike).numpy()
        return result

    @functools.cached_property
    def scoring_graph(self) -> Any:
        """The graph of `log_probabilities`. It is called as it was traced: TensorFlow checks less then."""
        with self.model.placed():
            sequences = specs_of(self.model.sequences(np.ones([1, 1])))
            signature = [sequences, sequences, *[tf.TensorSpec([None], tf.int64)] * 4]

            def score(
                source: Sequences, target: Sequences, expected: tf.Tensor, rows: tf.Tensor, *alike: tf.Tensor
            ) -> tf.Tensor:
                return log_probabilities(self.model, source, target, expected, rows, Alike(*alike))

            return tf.function(score, input_signature=signature, autograph=False).get_concrete_function()

    @functools.cached_property
    def graphs(self) -> "RowGraphs":
        """The graphs that generate token by token."""
        model = self.model

        def step(state: DecoderState, last: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
            logits, after = model.step(state, last)
            return tf.cast(logits, tf.float32), {name: x for name, x in after.items() if name in OF_HYPOTHESES}

        def graph(function: Any, *signature: Any) -> Any:
            traced = tf.function(function, input_signature=signature, autograph=False)
            traced.get_concrete_function()
            return traced

        with model.placed():
            encode = graph(model.encode, specs_of(model.sequences(np.ones([1, 1]))))
            outputs = encode.get_concrete_function().structured_outputs
            state = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), outputs)
            numbers = tf.TensorSpec([None], tf.int64)
            size = tf.TensorSpec([], tf.int32)
            return RowGraphs(
                encode,
                graph(step, state, numbers),
                graph(_select_rows, [state], numbers, size, size),
                graph(_select_rows, [state, state], numbers, size, size),
            )


class RowGraphs(NamedTuple):
    """The functions of `Model` as graphs. take, take_of_both: from one state, from two."""

    encode: Any
    step: Any
    take: Any
    take_of_both: Any


class GraphSearcher:
    """The search of decoding settings as a graph, which is traced once for questions of any number and length."""

    def __init__(
        self, model: Seq2Seq, copies: DeviceCopies, decoding: DecodingSettings, automaton: BoundedAutomaton
    ) -> None:
        self._model = model
        self._copies = copies
        self._decoding = decoding
        self._automaton = automaton
        self._waiting: dict[int, IsWanted] = {}  # by the number of a call
        self._numbers = itertools.count()
        with model.placed():
            specs = [tf.TensorSpec([], tf.int32), specs_of(model.sequences(np.ones([1, 1])))]
        if decoding.samples:
            specs.append(tf.TensorSpec([None, decoding.hypotheses, automaton.max_length], tf.float32))

        def decode(number: tf.Tensor, source: Sequences, *uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def is_wanted() -> tf.Tensor:
                with tf.device("CPU"):
                    return tf.ensure_shape(tf.numpy_function(self._is_wanted, [number], tf.bool), [])

            return search_graph(model, decoding, automaton, source, uniform[0] if uniform else None, is_wanted)

        self.graph = copies.graph(decode, specs)

    def __call__(
        self, batches: Sequence[Sequence[Sequence[int]]], seeds: Sequence[Sequence[int]], is_wanted: IsWanted
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]:
        """See `Searcher`."""
        call = next(self._numbers) % 2**31
        self._waiting[call] = is_wanted

        def compute(weights: list[tf.Tensor], numbers: Iterator[int]) -> list[tuple[int, Any]]:
            return [(i, self._search(weights, call, seeds[i], batches[i])) for i in numbers]

        try:
            of_devices = self._copies.run(compute, range(len(batches)))
        finally:
            del self._waiting[call]
        return [batch for _, batch in sorted(itertools.chain(*of_devices), key=lambda numbered: numbered[0])]

    def _is_wanted(self, number: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        return np.array(self._waiting[int(number)]())

    def _search(
        self, weights: list[tf.Tensor], call: int, seeds: Sequence[int], questions: Sequence[Sequence[int]]
    ) -> Any:
        assert all(questions), "an empty question"
        arguments: list[Any] = [np.int32(call), self._model.sequences(padded(questions))]
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
    uniform: tf.Tensor | None = None,
    is_wanted: Callable[[], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ids [rows, hypotheses, max_length] int32, padded, and scores [rows, hypotheses] float32, in a graph.

    source: the questions. uniform: for sampling, [rows, candidates, max_length] float32 in [0, 1).
    is_wanted: see `search_all`.
    """

    def encoded(questions: Sequences) -> DecoderState:
        state = model.encode(questions)
        # bool is in the host's memory in a loop on a GPU.
        return {**state, "mask": tf.cast(state["mask"], tf.float32)}

    generic = encoded(model.sequences(np.array([EMPTY_QUESTION]))) if decoding.anti_lm else None
    search, start = new_search(decoding, automaton, model.step, encoded(source), generic, uniform)
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


def log_probabilities(
    model: Seq2Seq,
    source: Sequences,
    target_in: Sequences,
    targets: tf.Tensor,
    rows: tf.Tensor | None = None,
    alike: Alike | None = None,
) -> tf.Tensor:
    """Return the log-probability of each row of targets, [rows].

    targets: [tokens] int64, packed as target_in. rows, alike: as in `Seq2Seq.decoded` and `log_probabilities`.
    N-grams are left out: they do not depend on the source.
    """
    log_probs = model.log_probabilities(model.decoded(source, target_in, rows=rows), targets, alike)  # [tokens]
    of_positions = tf.gather(log_probs, target_in.packing.to_padded)  # [rows, time], any values at padding
    return tf.reduce_sum(tf.where(target_in.mask, of_positions, 0.0), axis=-1)


def replier_of(trained: Trained, decoding: DecodingSettings, model: TensorFlowModel | None = None) -> Replier:
    """Return the replier of a trained model. Banned words are cleaned as the training pairs were.

    model: that of `trained`, which repliers may share. Raises UserError for decoding settings that it does not admit.
    """
    decoding = for_attempt(decoding, trained.settings)
    model = model or TensorFlowModel(trained.model)
    return Replier(model, trained.vocabulary, trained.settings.model, decoding, trained.retrieval)


def attention_weights(
    model: Seq2Seq, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float32]]:
    """Return the weights of each question's ids at each id of its reply and at the end symbol: [reply + 1, question].

    The decoder reads the replies as in training (teacher forcing). questions, replies: ids, of at least one question;
    each question has at least one. The model must have attention.
    """
    rows = padded(questions), padded([[BOS, *reply] for reply in replies])
    with model.placed():
        weights = model.attention_weights(*map(model.sequences, rows))  # [rows, target, source]
    weights = weights.numpy().astype(np.float32)
    return [
        row[: len(reply) + 1, : len(question)] for row, question, reply in zip(weights, questions, replies, strict=True)
    ]


def word_attention(
    model: Seq2Seq, vocabulary: Vocabulary, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[WordAttention]:
    """Return the attention of each reply, word by word; the arguments are those of `attention_weights`."""
    weights = attention_weights(model, questions, replies)
    return [by_word(vocabulary, *row) for row in zip(questions, replies, weights, strict=True)]


def rounded_up(size: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: memory is kept for each size that TensorFlow has seen."""
    step = 1 << max(0, size.bit_length() - 2)
    return -(-size // step) * step


def _filled(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows with the last one repeated, up to a rounded number. Nobody reads the results of these."""
    return np.pad(rows, (0, rounded_up(len(rows)) - len(rows)), mode="edge") if len(rows) else rows


def _select_rows(states: list[DecoderState], rows: tf.Tensor, width: tf.Tensor, decoded: tf.Tensor) -> DecoderState:
    def fitted(name: str, x: Any) -> Any:
        if name == "cells":
            return tf.nest.map_structure(lambda cell: _last(cell, decoded) if len(cell.shape) == 4 else cell, x)
        return x if name in OF_HYPOTHESES else _fitted(x, width)

    of_states = ({name: fitted(name, x) for name, x in state.items()} for state in states)
    selected: DecoderState = tf.nest.map_structure(lambda *parts: tf.gather(tf.concat(parts, axis=0), rows), *of_states)
    return selected


def _fitted(of_question: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Return a part of the state of questions, [rows, source, ...], with as many positions: cut or padded."""
    cut = of_question[:, :width]
    missing = width - tf.shape(cut)[1]
    return tf.pad(cut, [[0, 0], [0, missing], *[[0, 0]] * (len(cut.shape) - 2)])


def _last(cache: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Return a cache with as many positions, the last ones: cut or padded."""
    size = tf.shape(cache)[2]
    cut = cache[:, :, tf.maximum(size - positions, 0) :]
    return tf.pad(cut, [[0, 0], [0, 0], [tf.maximum(positions - size, 0), 0], [0, 0]])
