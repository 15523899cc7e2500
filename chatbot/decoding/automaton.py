"""The sequences of ids that a search may generate, as a finite automaton; those without banned words.

The automaton of banned words knows every spelling of a word: as one token, in several, in bytes, and within longer
tokens. It is the product of the spelling automaton and that of Aho and Corasick (1975) for the bytes of the words.
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

# The maximum size of the automaton, states * vocabulary, which takes 9 bytes each.
LARGEST = 1 << 25
# A number of ids that no reply has.
FAR = 1 << 40
# For 0, 1, 2 and 3 continuation bytes: the lead bytes, and the first code point that needs so many.
_LEADS = ((range(0x80), 0), (range(0xC0, 0xE0), 0x80), (range(0xE0, 0xF0), 0x800), (range(0xF0, 0xF5), 0x10000))
# The category Cc of Unicode.
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_NONE = -1  # the byte must not follow


class Automaton(NamedTuple):
    """The sequences of ids that a search may generate, as a finite automaton. Its state before the first id is 0.

    A sequence may end, by the end symbol or at the maximum length, in the states that allow the end symbol.
    """

    allowed: npt.NDArray[np.bool_]  # [states, vocabulary]
    next_states: npt.NDArray[np.int32]  # [states, vocabulary], 0 for ids that are not allowed
    beginning: tuple[int, ...] = ()  # ids with which a sequence may begin, without a text or of spaces, as if without


class BoundedAutomaton:
    """An automaton for sequences of 1 to max_length ids.

    Each state must lead to one that allows the end symbol. A state that allows it needs another allowed id, too, by
    which it stays in such a state.

    max_length: in ids, the end symbol counts. start: the state before the first id.
    """

    def __init__(self, automaton: Automaton, max_length: int) -> None:
        self.max_length, self.start = max_length, len(automaton.allowed)
        # The start is another state, since the end is not allowed there: a reply is not empty.
        allowed = np.concatenate([automaton.allowed, automaton.allowed[:1]])  # [states, vocabulary]
        allowed[self.start, EOS] = False
        next_states = np.concatenate([automaton.next_states, automaton.next_states[:1]])
        # The number of ids that must follow an id before the sequence may end, [states, vocabulary].
        following = _ids_to_end(automaton)[next_states]
        beginning = [*automaton.beginning]
        following[self.start, beginning] = 1 + following[self.start][allowed[self.start]].min()
        allowed[self.start, beginning] = True
        next_states[self.start, beginning] = self.start
        assert following.max() < FAR, "no end can be reached"
        self._most = int(following.max())
        # The ids after which the sequence can end in time, [(most + 1) * states, vocabulary], by the ids left.
        self._in_time = np.concatenate([allowed & (following <= remaining) for remaining in range(self._most + 1)])
        self._next_states = next_states.astype(np.int64).reshape(-1)

    def allowed_logits(self, logits: Array, states: Array, positions: Array) -> Array:
        """Return the logits, -inf where an id may not follow, or could not be followed by an end in time.

        logits: [rows, vocabulary] float32. states: [rows] int64. positions: 0 at the first id, [rows] or a scalar.
        """
        functions = functions_of(logits)
        remaining = functions.minimum(self.max_length - 1 - positions, self._most)
        rows = functions.int64(remaining * (self.start + 1)) + states
        return functions.where(functions.rows(self._in_time, rows), logits, -INFINITY)

    def states_after(self, states: Array, ids: Array) -> Array:
        """Return the states after these ids, int64, in the shape of both. states, ids: int64."""
        vocabulary = self._in_time.shape[1]
        return functions_of(states).rows(self._next_states, states * vocabulary + ids)


def _ids_to_end(automaton: Automaton) -> npt.NDArray[np.int64]:
    """Return the least number of ids between each state and one that allows the end, [states]; FAR if none is left."""
    numbers = np.where(automaton.allowed[:, EOS], 0, FAR)
    while True:
        following = np.where(automaton.allowed, numbers[automaton.next_states], FAR).min(axis=1)
        smaller = np.minimum(numbers, following + 1)
        if (smaller == numbers).all():
            return numbers
        numbers = smaller


def spelling_automaton(vocabulary: Vocabulary) -> Automaton:
    """Return the automaton of all texts.

    State 0, the first one, is between characters. Only there EOS, characters and words may follow. Tokens without a
    text, but for those that begin texts, and tokens with control characters, which a terminal would obey, are in no
    reply.
    """
    after_byte = _states_after_bytes()
    never = len(after_byte)  # the state after a byte that must not follow
    following = np.vstack([np.where(after_byte == _NONE, never, after_byte), np.full([1, 256], never, np.int32)])
    texts = vocabulary.bytes_of_tokens()
    # A space is in tokens, and not a byte by itself.
    words = [text.replace(b" ", b"_") for text in texts[: vocabulary.first_byte]]
    tokens = _bytes_by_place([*words, *texts[vocabulary.first_byte :]])
    is_never = np.arange(never + 1) == never
    after = np.stack([_after_tokens(s, following, is_never, tokens, len(vocabulary)) for s in range(never)])
    after[:, [i for i, text in enumerate(texts) if not text or _CONTROL.search(text)]] = -1
    after[0, EOS] = 0
    blank = [i for i, text in enumerate(texts) if text.isspace() and after[0, i] == 0]  # no reply consists of these
    return Automaton(after >= 0, after.clip(min=0), (*vocabulary.beginning, *blank))


@functools.cache
def _states_after_bytes() -> npt.NDArray[np.int32]:
    """Return the state after each byte, or _NONE, [states, 256]. A state stands for what may complete a character."""
    spelled = np.zeros(len(_LEADS[-1][0]) << 18, np.bool_)  # by code point, up to the end of the last lead byte's
    spelled[: sys.maxunicode + 1] = True
    spelled[[ord(character) for character in removed_characters()]] = False
    rows = [np.full(256, _NONE, np.int32)]
    numbers: dict[bytes, int] = {}

    def state_before(completions: npt.NDArray[np.bool_]) -> int:
        """Return the state in which these may follow. completions: [64 ** continuation bytes] by their values."""
        if len(completions) == 1:
            return 0
        key = completions.tobytes()
        if key not in numbers:
            numbers[key] = len(rows)
            rows.append(np.full(256, _NONE, np.int32))
            fill(rows[-1], range(0x80, 0xC0), completions)
        return numbers[key]

    def fill(row: npt.NDArray[np.int32], following: range, completions: npt.NDArray[np.bool_]) -> None:
        for byte, completions_after in zip(following, completions.reshape(len(following), -1), strict=True):
            if completions_after.any():
                row[byte] = state_before(completions_after)

    for continuation_bytes, (leads, first) in enumerate(_LEADS):
        points = spelled[: len(leads) << 6 * continuation_bytes].copy()
        points[:first] = False
        fill(rows[0], leads, points)
    return np.stack(rows)


def without_words(automaton: Automaton, vocabulary: Vocabulary, words: Sequence[str], max_length: int) -> Automaton:
    """Return the automaton of the replies that contain none of these words.

    automaton: `spelling_automaton(vocabulary)`. words: cleaned. max_length: of a reply, in tokens.
    Raises UserError if the words leave no reply, or are too many for memory.
    """
    texts = [word.encode() for word in words]
    following, banned = _occurrences(texts)  # [states, 256], [states]
    tokens = _bytes_by_place(vocabulary.bytes_of_tokens())
    after_tokens = functools.cache(lambda state: _after_tokens(state, following, banned, tokens, len(vocabulary)))
    numbers = {0: 0}  # of the states, by pairs: spelling state * number of states of the words + state of the words
    waiting = [*numbers]
    allowed = []
    next_states = []
    for pair in waiting:  # to which new ones are added
        spelling, state = divmod(pair, len(following))
        after = after_tokens(state)
        may_follow = automaton.allowed[spelling] & (after >= 0)
        pairs = automaton.next_states[spelling].astype(np.int64) * len(following) + np.where(may_follow, after, 0)
        states = np.zeros(len(vocabulary), np.int32)
        ids = np.flatnonzero(may_follow)
        ids = ids[ids != EOS]
        kinds, which = np.unique(pairs[ids], return_inverse=True)
        waiting += [kind for kind in kinds.tolist() if kind not in numbers]
        reached = [numbers.setdefault(kind, len(numbers)) for kind in kinds.tolist()]
        states[ids] = np.array(reached, np.int32)[which]
        allowed.append(may_follow)
        next_states.append(states)
        if len(numbers) * len(vocabulary) > LARGEST:
            raise UserError(f"--ban: {len(words):,} words are too many for memory; give fewer")
    found = Automaton(np.stack(allowed), np.stack(next_states), automaton.beginning)
    product = _without_dead_ends(found, max_length)
    if not np.delete(product.allowed[0], EOS).any():
        raise UserError("--ban: these words leave nothing to reply; give fewer")
    return product


def _occurrences(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return the automaton of Aho and Corasick: the state after each byte, and the states in which a text has ended.

    Both are over states: [states, 256], [states].
    """
    prefixes = sorted({text[:end] for text in texts for end in range(len(text) + 1)}, key=lambda x: (len(x), x))
    states = {prefix: state for state, prefix in enumerate(prefixes)}  # the shorter ones first
    following = np.zeros((len(states), 256), np.int32)
    for prefix in prefixes[1:]:
        following[states[prefix[:-1]], prefix[-1]] = states[prefix]
    whole = {*texts}
    ended = np.array([prefix in whole for prefix in prefixes])
    for state, prefix in enumerate(prefixes[1:], 1):
        shorter = next(states[suffix] for begin in range(len(prefix)) if (suffix := prefix[begin + 1 :]) in states)
        following[state] = np.where(following[state] > 0, following[state], following[shorter])
        ended[state] |= ended[shorter]
    return following, ended


def _bytes_by_place(texts: Sequence[bytes]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
    """Return for each place the ids of the texts that have a byte there, and these bytes."""
    ids = [*range(len(texts))]
    places = []
    for place in range(max(map(len, texts))):
        ids = [i for i in ids if len(texts[i]) > place]
        places.append((np.array(ids), np.array([texts[i][place] for i in ids], np.uint8)))
    return places


def _after_tokens(
    state: int,
    following: npt.NDArray[np.int32],
    banned: npt.NDArray[np.bool_],
    tokens: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]],
    size: int,
) -> npt.NDArray[np.int32]:
    """Return the state after each token, -1 where a banned word ends in it: [vocabulary].

    tokens: `_bytes_by_place`. size: of the vocabulary.
    """
    states = np.full(size, state, np.int32)
    is_banned = np.zeros(size, np.bool_)
    for ids, values in tokens:
        states[ids] = following[states[ids], values]
        is_banned[ids] |= banned[states[ids]]
    return np.where(is_banned, -1, states)


def _without_dead_ends(automaton: Automaton, max_length: int) -> Automaton:
    """Forbid the ids after which no reply of max_length ids can end."""
    allowed = automaton.allowed & (_ids_to_end(automaton)[automaton.next_states] < max_length)
    # A state that is never reached has one id, as every state needs.
    allowed[~allowed.any(axis=1), EOS] = True
    return automaton._replace(allowed=allowed)
