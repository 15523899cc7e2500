"""Greedy search, sampling and beam search of an export, all rows at the same position."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.hypotheses import (
    Hypotheses,
    appended,
    best_first,
    coverage_penalty,
    extended,
    first_hypotheses,
    scores,
)
from chatbot.decoding.processors import Prefix, processed
from chatbot.decoding.sampling import picked
from chatbot.export.runtime.onnx_model import Floats, OnnxModel, State


def search(
    model: OnnxModel,
    start: State,
    automaton: BoundedAutomaton,
    decoding: DecodingSettings,
    uniform: Floats | None = None,
) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]:
    """Yield the ids [rows, hypotheses, max_length], padded, and scores [rows, hypotheses] after each position.

    The best hypotheses come first. The search ends when all hypotheses have ended. Rows that have are no longer
    computed.

    start: of one hypothesis for each row. Several rows may share a single question. uniform: for sampling,
    [rows, max_length] in [0, 1).
    """
    rows, number = len(start.cells[0]), decoding.beams
    first = first_hypotheses(number, decoding.diverse_groups, automaton)
    hypotheses = Hypotheses(*(np.repeat(x, rows, axis=0) for x in first))
    ids, of_ids = hypotheses.ids.copy(), hypotheses.log_probs.copy()
    state, numbers = start.repeated(number), np.arange(rows)  # of the rows that have not ended
    generic = model.encode([[BOS]]).repeated(rows * number) if decoding.anti_lm else None
    attention = np.float32(0)  # sums, [hypotheses, source]
    for position in range(automaton.max_length):
        last = hypotheses.last.reshape(-1)
        logits, state = model.step(state, last)
        log_probs = NumpyFunctions.log_softmax(
            automaton.allowed_logits(logits, hypotheses.states.reshape(-1), np.int64(position))
        )
        without_question = None
        if generic is not None and position < decoding.anti_lm_tokens:
            logits, generic = model.step(generic, last)
            without_question = NumpyFunctions.log_softmax(logits)
        prefix = Prefix(np.full((len(last), 1), position), hypotheses.ids.reshape(len(last), -1))
        log_probs = processed(decoding, log_probs, prefix, without_question)
        if number == 1:
            drawn = None if uniform is None else uniform[numbers, position, None]
            chosen = picked(decoding, log_probs, drawn)
            hypotheses = appended(automaton, hypotheses, log_probs, chosen, position)
        else:
            coverage = None
            if decoding.coverage_penalty:
                assert state.attention is not None
                attention = attention + state.attention
                mask = np.repeat(state.question["mask"], len(last) // len(state.question["mask"]), axis=0)
                coverage = coverage_penalty(attention, mask, decoding).reshape(-1, number)
            log_probs = log_probs.reshape(-1, number, log_probs.shape[-1])
            hypotheses, parents = extended(decoding, automaton, hypotheses, log_probs, coverage, position)
            parents = (np.arange(len(parents))[:, None] * number + parents).reshape(-1)
            state = state.of_hypotheses(parents)
            generic = None if generic is None else generic.of_hypotheses(parents)
            attention = attention[parents] if attention.ndim else attention
        ids[numbers], of_ids[numbers] = hypotheses.ids, scores(decoding, hypotheses)
        yield best_first(decoding, ids, of_ids) if decoding.diverse_groups > 1 else (ids, of_ids)

        going = np.flatnonzero(hypotheses.are_finished.min(axis=1) == 0)
        if len(going) == len(numbers):
            continue
        if not len(going):
            return
        of_rows = (going[:, None] * number + np.arange(number)).reshape(-1)
        numbers, hypotheses = numbers[going], Hypotheses(*(x[going] for x in hypotheses))
        state = state.of_questions(going, of_rows)
        generic = None if generic is None else generic.of_hypotheses(of_rows)
        attention = attention[of_rows] if attention.ndim else attention
