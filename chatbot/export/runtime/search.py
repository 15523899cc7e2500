"""Greedy search, sampling and beam search in NumPy: the twins of `chatbot.decoding.search` and `beam`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.vocabulary import BOS, EOS, PAD
from chatbot.decoding.arrays.log_probabilities import Floats, Ids, allowed_logits, log_softmax
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.export.runtime.model import ExportedModel, State
from chatbot.export.runtime.processors import Processors

# (log_probs [hypotheses, vocabulary], position, the numbers of the hypotheses) -> the next ids.
Pick = Callable[[Floats, int, npt.NDArray[np.int64]], Ids]


def search(
    model: ExportedModel, start: State, automaton: BoundedAutomaton, decoding: DecodingSettings, pick: Pick
) -> Iterator[tuple[Ids, Floats]]:
    """Yield the ids [hypotheses, max_length], padded, and their scores [hypotheses] after each position.

    The arrays are the same ones each time. The search ends when all hypotheses have ended. Those that have are no
    longer computed.

    start: with a question for each hypothesis, or one question for all.
    """
    rows, max_length = len(start.cells[0]), automaton.last + 1
    ids, scores = np.full((rows, max_length), PAD, np.int32), np.zeros(rows, np.float32)
    numbers = np.arange(rows)  # of the hypotheses that have not ended
    last, states = np.full(rows, BOS, np.int32), np.full(rows, automaton.start)
    state, processors = start, Processors(model, decoding, rows)
    for position in range(max_length):
        logits, state, _ = model.step(state, last)
        log_probs = allowed_log_probs(automaton, logits, states, position)
        log_probs = processors(log_probs, position, ids[numbers], last)
        picked = pick(log_probs, position, numbers)
        ids[numbers, position] = picked
        scores[numbers] += log_probs[np.arange(len(numbers)), picked]
        yield ids, scores
        going = np.flatnonzero(picked != EOS)
        if not len(going):
            return
        last, states = picked[going], automaton.next_states[states[going], picked[going]]
        if len(going) < len(numbers):
            numbers, state = numbers[going], state.of_hypotheses(going)
            processors.select(going)


def allowed_log_probs(automaton: BoundedAutomaton, logits: Floats, states: Ids, position: int) -> Floats:
    """Return the log-probabilities of the next id, -inf where it may not follow: [hypotheses, vocabulary]."""
    return log_softmax(allowed_logits(automaton, logits, states, np.full(len(states), position, np.int32)))


def beam_search(
    model: ExportedModel,
    start: State,
    automaton: BoundedAutomaton,
    decoding: DecodingSettings,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return ids [questions, beams, max_length], padded, and scores [questions, beams], the best first.

    start: with one hypothesis for each question. is_over: asked after each position, whether nobody waits any more.
    """
    rows, beams, max_length = len(start.cells[0]), decoding.beams, automaton.last + 1
    state, processors = start.repeated(beams), Processors(model, decoding, rows * beams)
    every = np.arange(rows)[:, None]  # [rows, 1]
    group = beams // decoding.diverse_groups
    ids = np.full((rows, beams, max_length), PAD, np.int32)
    # All beams of a group start equal. Only the first may be extended, or each hypothesis would appear several times.
    alone = np.where(np.arange(beams) % group == 0, 0.0, -np.inf).astype(np.float32)
    log_probs, lengths = np.tile(alone, (rows, 1)), np.zeros((rows, beams), np.int32)
    finished, states = np.zeros((rows, beams), np.bool_), np.full((rows, beams), automaton.start)
    attended = bonus = np.zeros((rows, beams), np.float32)
    sums: Any = np.float32(0)  # of attention, [rows * beams, source]
    for position in range(max_length):
        last = np.full(rows * beams, BOS, np.int32) if position == 0 else ids[:, :, position - 1].reshape(-1)
        logits, state, attention = model.step(state, last)
        following = allowed_log_probs(automaton, logits, states.reshape(-1), position)
        following = processors(following, position, ids.reshape(-1, max_length), last)
        vocabulary = following.shape[-1]
        following = following.reshape(rows, beams, vocabulary)
        # A finished hypothesis has one continuation: padding, at no cost.
        padding = np.where(np.arange(vocabulary) == PAD, 0, -np.inf).astype(np.float32)
        following = log_probs[:, :, None] + np.where(finished[:, :, None], padding, following)
        lengths = lengths + ~finished
        if decoding.coverage_penalty and attention is not None:
            sums = sums + attention
            attended = np.where(finished, bonus, _coverage(decoding, state, sums).reshape(rows, beams))
        ranks = following / length_penalty(lengths, decoding)[:, :, None] + attended[:, :, None]
        parents, next_ids = _continued(ranks, following, lengths, attended, decoding, group)
        log_probs = following[every, parents, next_ids]
        states = automaton.next_states[states[every, parents], next_ids]
        # An impossible hypothesis has any ids. It stays in a state that allows others, or its row would become NaN.
        states = np.where(np.isinf(log_probs), 0, states)
        ids, lengths, bonus = ids[every, parents], lengths[every, parents], attended[every, parents]
        ids[:, :, position] = next_ids
        finished = finished[every, parents] | (next_ids == EOS)
        chosen = (every * beams + parents).reshape(-1)
        state = state.with_parents(chosen)
        processors.select(chosen)
        if sums.ndim:
            sums = sums[chosen]
        if finished.all() or is_over():
            break
    scores = log_probs / length_penalty(lengths, decoding) + bonus
    order = np.argsort(-scores, axis=-1, kind="stable")
    return ids[every, order], scores[every, order]


def length_penalty(lengths: npt.NDArray[np.integer], decoding: DecodingSettings) -> Floats:
    """Return the length penalty of Wu et al. (2016)."""
    return ((5 + lengths.astype(np.float32)) / np.float32(6)) ** np.float32(decoding.length_penalty)


def _coverage(decoding: DecodingSettings, state: State, sums: Floats) -> Floats:
    """Return the coverage penalty of Wu et al. (2016), [hypotheses]. sums: of attention, [hypotheses, source]."""
    mask = state.question["mask"]
    mask = np.repeat(mask, len(sums) // len(mask), axis=0)
    logarithms = np.where(mask, np.log(sums.clip(1e-9, 1)), np.float32(0))
    return np.float32(decoding.coverage_penalty) * logarithms.sum(axis=-1)


def _continued(
    ranks: Floats, following: Floats, lengths: Ids, attended: Floats, decoding: DecodingSettings, group: int
) -> tuple[Ids, Ids]:
    """Return the parents and the last ids of the best continuations of each group, both [rows, beams].

    ranks: of all continuations, [rows, beams, vocabulary]. The others are what it was computed of.
    """
    parents: list[Ids] = []
    next_ids: list[Ids] = []
    rows, beams, vocabulary = ranks.shape
    for first in range(0, beams, group):
        part = slice(first, first + group)
        of_group = ranks[:, part]
        if first:
            times = np.zeros((rows, vocabulary), np.float32)
            np.add.at(times, (np.arange(rows)[:, None], np.concatenate(next_ids, axis=1)), 1)
            times[:, PAD] = 0  # finished hypotheses may agree
            loss = np.float32(decoding.diversity) * times
            penalty = length_penalty(lengths[:, part], decoding)
            of_group = (following[:, part] - loss[:, None]) / penalty[:, :, None] + attended[:, part, None]
        best = np.stack([_largest(row, group) for row in of_group.reshape(rows, -1)])
        parents.append(first + best // vocabulary)
        next_ids.append((best % vocabulary).astype(np.int32))
    return np.concatenate(parents, axis=1), np.concatenate(next_ids, axis=1)


def _largest(values: Floats, number: int) -> npt.NDArray[np.int64]:
    """Return the places of the largest values, the largest first; of equal ones, the first, as tf.math.top_k."""
    least = np.partition(values, -number)[-number]
    places = np.flatnonzero(values >= least)
    return places[np.argsort(-values[places], kind="stable")[:number]]
