"""The search for one reply, one token a call, so that its text can be shown while it is generated."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from chatbot.corpus.encoding.vocabulary import EOS
from chatbot.decoding.graph_search import Progress
from chatbot.inference.reply_search import Encoded, ReplySearch


class TokenStream:
    """Runs a search of one hypothesis token by token on its model's device. Two graphs are traced, at the first use.

    search: a search with one hypothesis. specs: the tf.TensorSpec of its arguments.
    """

    def __init__(self, search: ReplySearch, specs: Sequence[Any]) -> None:
        def begin(*arguments: Any) -> tuple[Encoded, Progress]:
            encoded = search.encode(arguments[0])
            return encoded, search.start(encoded)

        def advance(encoded: Encoded, progress: Progress, *uniform: tf.Tensor) -> Progress:
            return search.run(encoded, uniform[0][:, 0] if uniform else None, progress, progress.position + 1, None)

        self._max_length, self._placed = search.automaton.max_length, search.model.placed
        self._begin = tf.function(begin, input_signature=specs, autograph=False)
        with self._placed():
            outputs = self._begin.get_concrete_function().structured_outputs
        state = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)
        self._advance = tf.function(advance, input_signature=[*state, *specs[1:]], autograph=False)

    @property
    def traces(self) -> int:
        """The number of times that a step was traced."""
        return self._advance.experimental_get_tracing_count()

    def ids(self, arguments: Sequence[Any]) -> Iterator[int]:
        """Yield the ids of the reply one by one, until it is finished. arguments: of one question."""
        with self._placed():
            encoded, progress = self._begin(*arguments)
        for _ in range(self._max_length):
            with self._placed():
                progress = self._advance(encoded, progress, *arguments[1:])
            last = int(progress.hypotheses.last.numpy()[0, 0])  # the only copy from a GPU to the host
            yield last
            if last == EOS:
                return
