"""Finite automata that accept the token sequences that a search can generate, with or without banned words.

Banned words are excluded in every tokenisation: as one token, as several tokens, as bytes, and inside longer tokens.
For this purpose, an automaton for valid UTF-8 is combined with an Aho-Corasick automaton (1975) of the words' bytes.
"""

import functools
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.cleaning import removed_characters
from chatbot.corpus.vocabulary import EOS, Vocabulary
from chatbot.decoding.array_functions import INFINITY, Array, functions_of
from chatbot.errors import UserError

# The maximum number of transitions (states times vocabulary size). A transition takes 9 bytes of memory.
MAX_SIZE = 1 << 25
# The distance to the end of a reply if the end cannot be reached. It exceeds the length of any reply.
UNREACHABLE = 1 << 40
# The lead bytes of UTF-8 sequences with 0, 1, 2 and 3 continuation bytes, and the lowest valid code point of each.
_LEADS = ((range(0x80), 0), (range(0xC0, 0xE0), 0x80), (range(0xE0, 0xF0), 0x800), (range(0xF0, 0xF5), 0x10000))
# Control characters (Unicode category Cc) in UTF-8.
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_NONE = -1  # marks a forbidden byte


class Automaton(NamedTuple):
    """A finite automaton that accepts sequences of token ids. The initial state is 0.

    A sequence can only end in a state that allows EOS. This also holds for sequences that end at the maximum length.
    """

    allowed: npt.NDArray[np.bool_]  # whether a state allows a token, [states, vocabulary]
    next_states: npt.NDArray[np.int32]  # state after each token, 0 if forbidden, [states, vocabulary]
    beginning: tuple[int, ...] = ()  # tokens without visible text that can precede a reply


class BoundedAutomaton:
    """An automaton that accepts sequences of 1 to max_length tokens.

    From every state, a state that allows EOS must be reachable by at least one token other than EOS.

    Args:
        automaton: An automaton that accepts sequences of any length.
        max_length: The maximum number of tokens, including EOS.

    Attributes:
        max_length: The maximum number of tokens, including EOS.
        start: The initial state.
    """

    def __init__(self, automaton: Automaton, max_length: int) -> None:
        self.max_length, self.start = max_length, len(automaton.allowed)
        # An additional initial state forbids EOS, because replies must not be empty.
        allowed = np.concatenate([automaton.allowed, automaton.allowed[:1]])  # [states, vocabulary]
        allowed[self.start, EOS] = False
        next_states = np.concatenate([automaton.next_states, automaton.next_states[:1]])
        # The minimum number of tokens between each token and the end of the sequence, [states, vocabulary].
        distance = _ids_to_end(automaton)[next_states]
        beginning = [*automaton.beginning]
        distance[self.start, beginning] = 1 + distance[self.start][allowed[self.start]].min()
        allowed[self.start, beginning] = True
        next_states[self.start, beginning] = self.start
        assert distance.max() < UNREACHABLE, "The automaton has a dead end."
        self._max_distance = int(distance.max())
        # Whether the sequence can still end in time after each token. There is a row for each number of remaining
        # tokens and each state: [(max_distance + 1) * states, vocabulary].
        self._in_time = np.concatenate([allowed & (distance <= left) for left in range(self._max_distance + 1)])
        self._next_states = next_states.astype(np.int64).reshape(-1)

    def allowed_logits(self, logits: Array, states: Array, positions: Array) -> Array:
        """Set the logits of forbidden tokens to -inf.

        A token is also forbidden if the sequence can no longer end within the maximum length after it.

        Args:
            logits: Logits, with shape [rows, vocabulary] and dtype float32.
            states: The state of each row, with shape [rows] and dtype int64.
            positions: The number of tokens so far, a scalar or with shape [rows].
        """
        functions = functions_of(logits)
        remaining = functions.minimum(self.max_length - 1 - positions, self._max_distance)
        rows = functions.int64(remaining * (self.start + 1)) + states
        return functions.where(functions.rows(self._in_time, rows), logits, -INFINITY)

    def states_after(self, states: Array, ids: Array) -> Array:
        """Return the state that each token leads to. All arrays have the same shape and dtype int64."""
        vocabulary = self._in_time.shape[1]
        return functions_of(states).rows(self._next_states, states * vocabulary + ids)


def _ids_to_end(automaton: Automaton) -> npt.NDArray[np.int64]:
    """Return the distance in tokens from each state to the next state that allows EOS, or UNREACHABLE, [states]."""
    distances = np.where(automaton.allowed[:, EOS], 0, UNREACHABLE)
    while True:
        next_distances = np.where(automaton.allowed, distances[automaton.next_states], UNREACHABLE).min(axis=1)
        shorter = np.minimum(distances, next_distances + 1)
        if (shorter == distances).all():
            return distances
        distances = shorter


def spelling_automaton(vocabulary: Vocabulary) -> Automaton:
    """Return an automaton that accepts every text of complete characters.

    State 0 is the state between two characters. Only this state allows EOS, character tokens and word tokens. Tokens
    with control characters are always forbidden, because a terminal would interpret them. Tokens without text are
    forbidden, too, unless they mark the beginning of a text.
    """
    after_byte = _states_after_bytes()
    dead_state = len(after_byte)  # state after a forbidden byte
    after_dead_state = np.full([1, 256], dead_state, np.int32)
    transitions = np.vstack([np.where(after_byte == _NONE, dead_state, after_byte), after_dead_state])
    texts = vocabulary.texts
    # A single space byte is forbidden, but spaces inside tokens are allowed, so they are replaced with an allowed byte.
    words = [text.replace(b" ", b"_") for text in texts[: vocabulary.first_byte]]
    tokens = _bytes_by_position([*words, *texts[vocabulary.first_byte :]])
    is_dead = np.arange(dead_state + 1) == dead_state
    after = np.stack([_after_tokens(s, transitions, is_dead, tokens, len(vocabulary)) for s in range(dead_state)])
    after[:, [i for i, text in enumerate(texts) if not text or _CONTROL.search(text)]] = -1
    after[0, EOS] = 0
    # A reply can begin with blank tokens, but must also contain other tokens.
    blank = [i for i, text in enumerate(texts) if text.isspace() and after[0, i] == 0]
    return Automaton(after >= 0, after.clip(min=0), (*vocabulary.beginning, *blank))


@functools.cache
def _states_after_bytes() -> npt.NDArray[np.int32]:
    """Return the state that each byte leads to, or _NONE, [states, 256].

    Each state represents a set of byte sequences that can complete the current character.
    """
    is_allowed = np.zeros(len(_LEADS[-1][0]) << 18, np.bool_)  # all code points that UTF-8 could encode
    is_allowed[: sys.maxunicode + 1] = True
    is_allowed[[ord(character) for character in removed_characters()]] = False
    rows = [np.full(256, _NONE, np.int32)]
    state_of: dict[bytes, int] = {}

    def state_before(completions: npt.NDArray[np.bool_]) -> int:
        """Return the state that allows exactly these completions, [64 ** continuation bytes]."""
        if len(completions) == 1:
            return 0
        key = completions.tobytes()
        if key not in state_of:
            state_of[key] = len(rows)
            rows.append(np.full(256, _NONE, np.int32))
            fill(rows[-1], range(0x80, 0xC0), completions)
        return state_of[key]

    def fill(row: npt.NDArray[np.int32], byte_range: range, completions: npt.NDArray[np.bool_]) -> None:
        for byte, completions_after in zip(byte_range, completions.reshape(len(byte_range), -1), strict=True):
            if completions_after.any():
                row[byte] = state_before(completions_after)

    for continuation_bytes, (leads, first) in enumerate(_LEADS):
        points = is_allowed[: len(leads) << 6 * continuation_bytes].copy()
        points[:first] = False
        fill(rows[0], leads, points)
    return np.stack(rows)


def without_words(automaton: Automaton, vocabulary: Vocabulary, words: Sequence[str], max_length: int) -> Automaton:
    """Restrict an automaton to replies that contain none of the given words.

    Args:
        automaton: The result of `spelling_automaton(vocabulary)`.
        vocabulary: The vocabulary of the replies.
        words: The banned words, cleaned like the training pairs.
        max_length: The maximum length of a reply in tokens.

    Raises:
        UserError: No reply avoids the words, or the automaton would be too large because there are too many words.
    """
    texts = [word.encode() for word in words]
    transitions, banned = _word_automaton(texts)  # [states, 256], [states]
    tokens = _bytes_by_position(vocabulary.texts)
    after_tokens = functools.cache(lambda state: _after_tokens(state, transitions, banned, tokens, len(vocabulary)))
    indices = {0: 0}  # Maps (spelling state * number of word states + word state) to the combined state.
    queue = [*indices]
    allowed = []
    next_states = []
    for pair in queue:  # The loop appends to the queue.
        spelling, state = divmod(pair, len(transitions))
        after = after_tokens(state)
        may_follow = automaton.allowed[spelling] & (after >= 0)
        pairs = automaton.next_states[spelling].astype(np.int64) * len(transitions) + np.where(may_follow, after, 0)
        states = np.zeros(len(vocabulary), np.int32)
        ids = np.flatnonzero(may_follow)
        ids = ids[ids != EOS]
        targets, inverse = np.unique(pairs[ids], return_inverse=True)
        queue += [target for target in targets.tolist() if target not in indices]
        reached = [indices.setdefault(target, len(indices)) for target in targets.tolist()]
        states[ids] = np.array(reached, np.int32)[inverse]
        allowed.append(may_follow)
        next_states.append(states)
        if len(indices) * len(vocabulary) > MAX_SIZE:
            raise UserError(f"--ban: too many words for the memory ({len(words):,}); ban fewer words")
    product_automaton = Automaton(np.stack(allowed), np.stack(next_states), automaton.beginning)
    result = _without_dead_ends(product_automaton, max_length)
    if not np.delete(result.allowed[0], EOS).any():
        raise UserError("--ban: these words exclude every possible reply; ban fewer words")
    return result


def _word_automaton(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Build an Aho-Corasick automaton that finds occurrences of texts.

    Returns:
        The state that each byte leads to, [states, 256], and whether a text ends in each state, [states].
    """
    prefixes = sorted({text[:end] for text in texts for end in range(len(text) + 1)}, key=lambda x: (len(x), x))
    states = {prefix: state for state, prefix in enumerate(prefixes)}  # shorter prefixes first
    transitions = np.zeros((len(states), 256), np.int32)
    for prefix in prefixes[1:]:
        transitions[states[prefix[:-1]], prefix[-1]] = states[prefix]
    distinct_texts = {*texts}
    ended = np.array([prefix in distinct_texts for prefix in prefixes])
    for state, prefix in enumerate(prefixes[1:], 1):
        shorter = next(states[suffix] for begin in range(len(prefix)) if (suffix := prefix[begin + 1 :]) in states)
        transitions[state] = np.where(transitions[state] > 0, transitions[state], transitions[shorter])
        ended[state] |= ended[shorter]
    return transitions, ended


def _bytes_by_position(texts: Sequence[bytes]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
    """Return, for each byte position, the indices of the texts that are long enough, and their bytes there."""
    ids = [*range(len(texts))]
    positions = []
    for position in range(max(map(len, texts))):
        ids = [i for i in ids if len(texts[i]) > position]
        positions.append((np.array(ids), np.array([texts[i][position] for i in ids], np.uint8)))
    return positions


def _after_tokens(
    state: int,
    transitions: npt.NDArray[np.int32],
    banned: npt.NDArray[np.bool_],
    tokens: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]],
    size: int,
) -> npt.NDArray[np.int32]:
    """Return the state that each token leads to, or -1 if a banned word ends in the token, [vocabulary]."""
    states = np.full(size, state, np.int32)
    is_banned = np.zeros(size, np.bool_)
    for ids, values in tokens:
        states[ids] = transitions[states[ids], values]
        is_banned[ids] |= banned[states[ids]]
    return np.where(is_banned, -1, states)


def _without_dead_ends(automaton: Automaton, max_length: int) -> Automaton:
    """Forbid tokens after which no reply can end within max_length tokens."""
    allowed = automaton.allowed & (_ids_to_end(automaton)[automaton.next_states] < max_length)
    # Even unreachable states need an allowed token.
    allowed[~allowed.any(axis=1), EOS] = True
    return automaton._replace(allowed=allowed)
