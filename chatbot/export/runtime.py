"""An export for ONNX Runtime, which replies by arrays of NumPy. Nothing here imports TensorFlow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.attempts.files import CONFIG, DICTIONARY, NGRAMS, RETRIEVAL, VOCABULARY
from chatbot.attempts.settings import stored_settings
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import ONNX, THREADS_VARIABLE
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BOS, EOS, PAD, Vocabulary, load_vocabulary
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.interface import EMPTY_QUESTION, Floats, IsWanted, Rows, Searcher, distinct, padded
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import load_ngrams
from chatbot.decoding.sampling import uniform_numbers
from chatbot.decoding.search import OF_HYPOTHESES, State, new_search, search_arrays
from chatbot.errors import UserError
from chatbot.export.manifest import Manifest, damaged, read_manifest
from chatbot.flags import replace
from chatbot.inference.rows import LEAVING_SHARE
from chatbot.retrieval.index import Retrieval, load_retrieval

Array = npt.NDArray[Any]

CELL, NEXT = "cell_", "next_"  # the names of cells in the graphs, before and after a step


class OnnxModel:
    """The `chatbot.decoding.interface.Model` of a folder with encode.onnx and step.onnx.

    ngrams: what is mixed in, if any. Raises UserError if ONNX Runtime is not installed or cannot read the files.
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
        options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0  # 0: as many as cores
        # int8 weights are converted to float32 once, when the graph is loaded, and not at each step.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # The calls are short: a thread that waits for the next one would only take a core from others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._encode, self._step = (
                onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
                for name in ("encode.onnx", "step.onnx")
            )
        except Exception as error:  # ONNX Runtime raises classes of its own, derived from Exception
            raise damaged(folder, error) from None

    def encode(self, questions: Rows) -> State:
        """See `Model`."""
        results = _run(self._encode, {"ids": padded(questions).astype(np.int64)})
        state: State = {name: x for name, x in results.items() if not name.startswith(CELL)}
        if self._ngrams is not None:
            state["history"] = self._ngrams.begins(results["mask"])
        return {**state, "cells": _cells(results, CELL)}

    def step(self, state: State, last: npt.NDArray[np.int64]) -> tuple[Floats, State]:
        """See `Model`. The hypotheses of a question are one after another, as many for each."""
        logits, state, _ = self._stepped(state, last)
        if self._ngrams is None:
            return logits, state
        history = self._ngrams.next_history(state["history"], last)
        by_ngrams = self._ngrams.probabilities(history)
        return self._ngrams.mixed(NumpyFunctions.log_softmax(logits), by_ngrams), {**state, "history": history}

    def take(self, states: Sequence[State], rows: npt.NDArray[np.int64]) -> State:
        """See `Model`. Questions are padded to the longest of them, and caches on the left to that of most tokens."""
        lengths = np.concatenate([state["mask"].sum(axis=1) for state in states])[rows]
        width = int(lengths.max(initial=1))

        def rows_of(name: str) -> Any:
            parts = [state[name] for state in states]
            if name == "cells":
                return _joined_cells(parts, rows)
            fitted = parts if name in OF_HYPOTHESES else [_fitted(x, width) for x in parts]
            return np.concatenate(fitted)[rows]

        return {name: rows_of(name) for name in states[0]}

    def attention(self, question: Sequence[int], reply: Sequence[int]) -> Floats:
        """See `Model`."""
        state = self.encode([question])
        rows = []
        for last in (BOS, *reply):
            _, state, weights = self._stepped(state, np.array([last]))
            assert weights is not None
            rows.append(weights[0, : len(question)])
        return np.stack(rows)

    def searcher(self, decoding: DecodingSettings, automaton: BoundedAutomaton) -> Searcher:
        """See `Model`."""

        @np.errstate(all="ignore")  # logarithms of 0 and differences of infinities are meant
        def search_batch(questions: Rows, seeds: Sequence[int], is_wanted: IsWanted) -> tuple[Array, Floats]:
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

    def log_probabilities(self, sources: Rows, targets: Rows, begin: int) -> Floats:
        """See `Model`."""
        different, rows = distinct(sources)
        ids = padded([[*target, EOS] for target in targets])
        lengths = (ids != PAD).sum(axis=1)
        order = np.argsort(-lengths, kind="stable")  # those that end first are the last rows, and left out
        state = self.take([self.encode(different)], rows[order])
        last = np.full(len(sources), begin)
        values = np.zeros(len(sources), np.float32)
        for position, expected in enumerate(ids[order].T):
            number = int((lengths > position).sum())
            if number < (1 - LEAVING_SHARE) * len(last):
                state = self.take([state], np.arange(number))
                last = last[:number]
            logits, state, _ = self._stepped(state, last)
            last = expected[: len(last)]
            unfinished = order[:number]
            values[unfinished] += NumpyFunctions.log_softmax(logits[:number])[np.arange(number), last[:number]]
        return values

    def _stepped(self, state: State, last: npt.NDArray[np.int64]) -> tuple[Floats, State, Floats | None]:
        """Return the logits without n-grams, the state, and the attention weights, [hypotheses, source], if any."""
        cells = {f"{CELL}{i}": x for i, x in enumerate(state["cells"])}
        results = _run(self._step, {**state, "last": last.astype(np.int32), **cells})
        return results["logits"], {**state, "cells": _cells(results, NEXT)}, results.get("attention")


def _run(session: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a graph by name. arrays: by name; the graph takes those that it knows."""
    inputs = {x.name for x in session.get_inputs()}
    feed = {name: x for name, x in arrays.items() if name in inputs}
    return dict(zip((x.name for x in session.get_outputs()), session.run(None, feed), strict=True))


def _fitted(of_question: Array, width: int) -> Array:
    """Return a part of the state of questions, [rows, source, ...], with as many positions."""
    cut = of_question[:, :width]
    return np.pad(cut, [(0, 0), (0, width - cut.shape[1]), *[(0, 0)] * (cut.ndim - 2)])


def _joined_cells(states: Sequence[list[Array]], rows: npt.NDArray[np.int64]) -> list[Array]:
    """Return the cells of some rows of one or two states."""
    joined = [np.concatenate(cells)[rows] for cells in zip(*states, strict=True) if cells[0].ndim < 4]
    if len(joined) == len(states[0]):
        return joined
    decoded = int(joined[0].max(initial=0))  # of a Transformer, all but the position are caches
    caches = zip(*(state[:-1] for state in states), strict=True)
    return [*(np.concatenate([_last(x, decoded) for x in parts])[rows] for parts in caches), *joined]


def _last(cache: Array, positions: int) -> Array:
    """Return a cache, [rows, heads, positions, size], with as many positions, the last ones: cut or padded."""
    size = cache.shape[2]
    padding = [(0, 0), (0, 0), (max(positions - size, 0), 0), (0, 0)]
    return np.pad(cache[:, :, max(size - positions, 0) :], padding)


def _cells(results: Mapping[str, Array], prefix: str) -> list[Array]:
    """Return the cells among the results, in the order of their numbers."""
    return [results[f"{prefix}{i}"] for i in range(sum(name.startswith(prefix) for name in results))]


class Export(NamedTuple):
    """An export that has been read."""

    manifest: Manifest
    settings: Settings
    vocabulary: Vocabulary
    model: OnnxModel
    retrieval: Retrieval | None  # the training pairs, if the attempt has their index


def load_export(folder: Path) -> Export:
    """Read an export for ONNX Runtime. Nothing in its files is executed but their graphs.

    Raises UserError for a folder that is missing, damaged, or no such export, and for a package that is missing.
    """
    manifest = read_manifest(folder)
    if manifest.format != ONNX:
        raise UserError(
            f"{folder}: in the format {manifest.format}, which chat.py does not read; talk to the attempt with "
            "--attempt, or export it with --format onnx"
        )
    settings = stored_settings(folder / CONFIG)
    if settings.corpus.dictionary is not None:
        settings = replace(settings, dictionary=str(folder.absolute() / DICTIONARY))
    vocabulary = load_vocabulary(folder / VOCABULARY)
    mixture = None
    if order := settings.model.ngrams:
        mixture = NgramMixture(load_ngrams(folder / NGRAMS, len(vocabulary), order), settings.model.ngram_weight)
    return Export(
        manifest, settings, vocabulary, OnnxModel(folder, mixture), load_retrieval(folder / RETRIEVAL, vocabulary)
    )
