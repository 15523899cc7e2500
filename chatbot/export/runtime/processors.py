"""The processors of the decoding settings, with the state of the anti-language model."""

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.vocabulary import BOS
from chatbot.decoding.arrays.log_probabilities import Floats, Ids, log_softmax
from chatbot.decoding.arrays.processors import Generic, Prefix
from chatbot.export.runtime.model import ExportedModel, State
from chatbot.inference.array_decoding import processed


class Processors:
    """All processors of the decoding settings, for one search. hypotheses: their number at its start."""

    def __init__(self, model: ExportedModel, decoding: DecodingSettings, hypotheses: int) -> None:
        self._model, self._decoding = model, decoding
        # The state of the anti-language model. Its question is the begin symbol alone, as in `reply_search`.
        self._generic: State | None = model.encode([[BOS]]).repeated(hypotheses) if decoding.anti_lm else None

    def __call__(self, log_probs: Floats, position: int, ids: Ids, last: Ids) -> Floats:
        """Return the log-probabilities of the next id as the settings change them, [hypotheses, vocabulary].

        ids: [hypotheses, max_length], padded. last: [hypotheses].
        """
        generic: Generic | None = None
        if self._generic is not None and position < self._decoding.anti_lm_tokens:
            logits, self._generic, _ = self._model.step(self._generic, last)
            generic = Generic(slice(None), log_softmax(logits))
        return processed(self._decoding, log_probs, Prefix(np.full(len(ids), position, np.int32), ids), generic)

    def select(self, numbers: npt.NDArray[np.integer]) -> None:
        """Keep these hypotheses, in this order; one may be kept several times."""
        if self._generic is not None:
            self._generic = self._generic.with_parents(numbers)
