"""Replies without certain words, by an automaton over ids that follows the text of a reply byte by byte.

The automaton knows every spelling of a word: as one token, in several, in bytes, and as a part of longer tokens. It is
the product of the spelling automaton and the automaton of Aho and Corasick (1975) for the banned words.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import EOS, SPECIALS, Vocabulary
from chatbot.decoding.automaton import Automaton
from chatbot.errors import UserError

# The maximum size of the automaton, states * vocabulary, which takes 9 bytes each.
LARGEST = 1 << 25


def without_words(automaton: Automaton, vocabulary: Vocabulary, words: Sequence[str], max_length: int) -> Automaton:
    """Return the automaton of the replies that contain none of these words.

    automaton: `spelling_automaton(vocabulary)`. words: cleaned. max_length: of a reply, in tokens.
    Raises UserError if the words leave no reply, or are too many for memory.
    """
    texts = [word.encode() for word in words]
    following, banned = _occurrences(texts)  # [states, 256], [states]
    tokens = _token_bytes(vocabulary)
    rows: dict[int, npt.NDArray[np.int32]] = {}  # by the state of the words: the state after each token, or -1
    numbers = {(0, 0): 0}
    waiting, allowed, next_states = deque(numbers), [], []
    while waiting:
        spelling, state = waiting.popleft()
        if state not in rows:
            rows[state] = _after_tokens(state, following, banned, tokens)
        after = rows[state]
        may_follow = automaton.allowed[spelling] & (after >= 0)
        pairs = automaton.next_states[spelling].astype(np.int64) * len(following) + np.where(may_follow, after, 0)
        states = np.zeros(len(vocabulary), np.int32)
        ids = np.flatnonzero(may_follow)
        ids = ids[ids != EOS]
        kinds, which = np.unique(pairs[ids], return_inverse=True)
        reached = []
        for kind in kinds.tolist():
            pair = divmod(kind, len(following))
            if pair not in numbers:
                numbers[pair] = len(numbers)
                waiting.append(pair)
            reached.append(numbers[pair])
        states[ids] = np.array(reached, np.int32)[which]
        allowed.append(may_follow)
        next_states.append(states)
        if len(numbers) * len(vocabulary) > LARGEST:
            raise UserError(f"--ban: {len(words):,} words are too many for memory; give fewer")
    product = _without_dead_ends(Automaton(np.stack(allowed), np.stack(next_states)), max_length)
    if not np.delete(product.allowed[0], EOS).any():
        raise UserError("--ban: these words leave nothing to reply; give fewer")
    return product


def _occurrences(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return the automaton of Aho and Corasick: the state after each byte, and the states in which a text has ended.

    Both are over states: [states, 256], [states].
    """
    children: list[dict[int, int]] = [{}]
    ended = [False]
    for text in texts:
        state = 0
        for byte in text:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                ended.append(False)
            state = children[state][byte]
        ended[state] = True
    following = np.zeros((len(children), 256), np.int32)
    shorter = [0] * len(children)  # the longest proper suffix that is a state, too
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            following[state] = following[shorter[state]]
            ended[state] = ended[state] or ended[shorter[state]]
        for byte, child in children[state].items():
            shorter[child] = int(following[state, byte]) if state else 0
            following[state, byte] = child
            waiting.append(child)
    return following, np.array(ended)


def _token_bytes(vocabulary: Vocabulary) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
    """Return for each place the ids of the tokens that have a byte there, and these bytes."""
    texts = [b""] * len(SPECIALS)
    texts += [token.replace(SPACE, " ").encode() for token in vocabulary.tokens[len(SPECIALS) : vocabulary.first_byte]]
    texts += [bytes([byte]) for byte in range(len(vocabulary) - vocabulary.first_byte)]
    ids = np.arange(len(texts))
    places = []
    for place in range(max(map(len, texts))):
        ids = ids[[len(texts[i]) > place for i in ids]]
        places.append((ids, np.array([texts[i][place] for i in ids], np.uint8)))
    return places


def _after_tokens(
    state: int,
    following: npt.NDArray[np.int32],
    banned: npt.NDArray[np.bool_],
    tokens: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]],
) -> npt.NDArray[np.int32]:
    """Return the state after each token, -1 where a banned word ends in it: [vocabulary]. tokens: `_token_bytes`."""
    size = 1 + max(int(ids.max()) for ids, _ in tokens)
    states = np.full(size, state, np.int32)
    found = np.zeros(size, np.bool_)
    for ids, values in tokens:
        states[ids] = following[states[ids], values]
        found[ids] |= banned[states[ids]]
    return np.where(found, -1, states)


def _without_dead_ends(automaton: Automaton, max_length: int) -> Automaton:
    """Forbid the ids after which no reply of max_length ids can end."""
    states = len(automaton.allowed)
    far = max_length + states
    distances = np.where(automaton.allowed[:, EOS], 0, far)  # ids before the end, [states]
    while True:
        after = np.where(automaton.allowed, distances[automaton.next_states], far)  # [states, vocabulary]
        nearer = np.minimum(distances, 1 + after.min(axis=1))
        if (nearer == distances).all():
            break
        distances = nearer
    allowed = automaton.allowed & (distances[automaton.next_states] < max_length)
    # A state that is never reached has one id, as every state needs.
    allowed[~allowed.any(axis=1), EOS] = True
    return Automaton(allowed, automaton.next_states)
