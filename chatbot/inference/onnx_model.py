"""Runs an exported model with ONNX Runtime. TensorFlow is not required."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import THREADS_VARIABLE
from chatbot.corpus.vocabulary import BOS, EOS, PAD
from chatbot.decoding.array_functions import Floats, Ids, NumpyFunctions
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.interface import EMPTY_QUESTION, IdRows, IsWanted, Searcher, distinct_rows, pad_rows
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.sampling import uniform_numbers
from chatbot.decoding.search import State, new_search, search_arrays, select_rows
from chatbot.errors import UserError
from chatbot.inference.row_batch import COMPACT_FRACTION

Array = npt.NDArray[Any]

# The file names of the two graphs.
ENCODE = "encode.onnx"
STEP = "step.onnx"
# The name prefixes of the decoder's state tensors before and after a step.
CELL = "cell_"
NEXT = "next_"


class OnnxModel:
    """A `chatbot.decoding.interface.Model` that runs encode.onnx and step.onnx.

    Args:
        folder: The folder that contains the two graphs.
        ngrams: The n-gram mixture to apply to the output of the graphs, if any.

    Raises:
        UserError: ONNX Runtime is not installed.
        Exception: ONNX Runtime cannot read the files.
    """

    def __init__(self, folder: Path, ngrams: NgramMixture | None) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError:
            remedy = "run `pip install onnxruntime`"
            raise UserError(f"{folder}: ONNX Runtime is not installed; {remedy}") from None
        self._ngrams = ngrams
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        threads = os.environ.get(THREADS_VARIABLE, "")
        options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0  # 0 uses all cores.
        # Convert int8 weights to float32 once when the graph is loaded, not at each step.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Threads must not spin between calls, because that would only occupy the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._encode, self._step = (
            onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
            for name in (ENCODE, STEP)
        )

    def encode(self, questions: IdRows) -> State:
        """See `Model`."""
        results = _run_graph(self._encode, {"ids": pad_rows(questions).astype(np.int64)})
        state: State = {name: x for name, x in results.items() if not name.startswith(CELL)}
        if self._ngrams is not None:
            state["history"] = self._ngrams.begins(results["mask"])
        return {**state, "cells": _cells(results, CELL)}

    def step(self, state: State, last: Ids) -> tuple[Floats, State]:
        """See `Model`. All questions have the same number of hypotheses, which are adjacent."""
        logits, state, _ = self._run_step(state, last)
        if self._ngrams is None:
            return logits, state
        history = self._ngrams.next_history(state["history"], last)
        by_ngrams = self._ngrams.probabilities(history)
        return self._ngrams.mixed(NumpyFunctions.log_softmax(logits), by_ngrams), {**state, "history": history}

    def take(self, states: Sequence[State], rows: Ids) -> State:
        """See `Model`. The longest row determines the width: questions are padded on the right, caches on the left."""
        lengths = np.concatenate([state["mask"].sum(axis=1) for state in states])[rows]
        decoded = 0
        if states[0]["cells"][0].ndim == 4:  # A Transformer has 4-D caches. The last state tensor is their length.
            decoded = int(np.concatenate([state["cells"][-1] for state in states])[rows].max(initial=0))
        return select_rows(states, rows, int(lengths.max(initial=1)), decoded)

    def attention(self, questions: IdRows, replies: IdRows) -> list[Floats]:
        """See `Model`."""
        return [self._attention(*pair) for pair in zip(questions, replies, strict=True)]

    def _attention(self, question: Sequence[int], reply: Sequence[int]) -> Floats:
        state = self.encode([question])
        rows = []
        for last in (BOS, *reply):
            _, state, weights = self._run_step(state, np.array([last]))
            assert weights is not None
            rows.append(weights[0, : len(question)])
        return np.stack(rows)

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """See `Model`."""

        @np.errstate(all="ignore")  # Forbidden tokens cause log(0) and inf - inf.
        def search_batch(questions: IdRows, seeds: Sequence[int], is_wanted: IsWanted) -> tuple[Array, Floats]:
            generic = self.encode([EMPTY_QUESTION]) if decoding.anti_lm else None
            uniform = None
            if decoding.samples:
                uniform = uniform_numbers(seeds, questions, decoding.hypotheses, automaton.max_length)
            search, start = new_search(decoding, automaton, self.step, self.encode(questions), generic, uniform)
            ids, scores = search_arrays(search, start, is_wanted)
            return ids.reshape(len(questions), -1, automaton.max_length), scores.reshape(len(questions), -1)

        return lambda batches, seeds, is_wanted: [
            search_batch(*batch, is_wanted) for batch in zip(batches, seeds, strict=True)
        ]

    def log_probabilities(self, sources: IdRows, targets: IdRows, begin: int) -> Floats:
        """See `Model`."""
        distinct_sources, rows = distinct_rows(sources)
        ids = pad_rows([[*target, EOS] for target in targets])
        lengths = (ids != PAD).sum(axis=1)
        order = np.argsort(-lengths, kind="stable")  # Shorter targets come last, so finished rows can be sliced off.
        state = self.take([self.encode(distinct_sources)], rows[order])
        last = np.full(len(sources), begin)
        values = np.zeros(len(sources), np.float32)
        for position, expected in enumerate(ids[order].T):
            count = int((lengths > position).sum())
            if count < (1 - COMPACT_FRACTION) * len(last):
                state = self.take([state], np.arange(count))
                last = last[:count]
            logits, state, _ = self._run_step(state, last)
            last = expected[: len(last)]
            pairs = order[:count]
            values[pairs] += NumpyFunctions.log_softmax(logits[:count])[np.arange(count), last[:count]]
        return values

    def _run_step(self, state: State, last: Ids) -> tuple[Floats, State, Floats | None]:
        """Return the logits without n-grams, the next state, and the attention weights if the model has attention."""
        cells = {f"{CELL}{i}": x for i, x in enumerate(state["cells"])}
        results = _run_graph(self._step, {**state, "last": last.astype(np.int32), **cells})
        return results["logits"], {**state, "cells": _cells(results, NEXT)}, results.get("attention")


def _run_graph(session: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run a graph and return its outputs by name. Arrays that the graph does not accept are ignored."""
    inputs = {x.name for x in session.get_inputs()}
    feed = {name: x for name, x in arrays.items() if name in inputs}
    return dict(zip((x.name for x in session.get_outputs()), session.run(None, feed), strict=True))


def _cells(results: Mapping[str, Array], prefix: str) -> list[Array]:
    """Return the results whose names have this prefix, ordered by number."""
    return [results[f"{prefix}{i}"] for i in range(sum(name.startswith(prefix) for name in results))]
