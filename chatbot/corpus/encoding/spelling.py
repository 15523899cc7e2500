"""The sequences of ids that a reply may have, as a finite automaton: characters that are spelled in bytes are complete.

The byte sequences are those of the Unicode Standard's table 3-7, so a character has one spelling, and no lone surrogate
and nothing above U+10FFFF has any. White space and control characters, which cleaning removes, have none either, so a
reply stays on one line.
"""

import functools
import re
import sys

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.vocabulary import EOS, SPECIALS, Vocabulary
from chatbot.corpus.text.cleaning import removed_characters

# For 0, 1, 2 and 3 continuation bytes: the lead bytes, and the first code point that needs so many.
_LEADS = ((range(0x80), 0), (range(0xC0, 0xE0), 0x80), (range(0xE0, 0xF0), 0x800), (range(0xF0, 0xF5), 0x10000))
# The category Cc of Unicode.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NONE = -1  # the byte must not follow


def spelling_automaton(vocabulary: Vocabulary) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """Return the ids that may follow in each state, and the state after each of them, both [states, vocabulary].

    State 0, the first one, is between characters. Only there EOS, characters and words may follow. PAD, BOS, UNK,
    ASK, the marks of turns and tokens with control characters, which a terminal would obey, are in no reply. A
    vocabulary without bytes has state 0 alone.
    """
    after_byte = _states_after_bytes() if vocabulary.has_bytes else np.zeros((1, 0), np.int32)  # [states, bytes]
    allowed = np.zeros((len(after_byte), len(vocabulary)), np.bool_)
    allowed[0, [EOS, *range(len(SPECIALS), vocabulary.first_mark)]] = True
    allowed[0, [i for i, token in enumerate(vocabulary.tokens) if _CONTROL.search(token)]] = False
    allowed[:, vocabulary.first_byte :] = after_byte != _NONE
    next_states = np.zeros(allowed.shape, np.int32)
    next_states[:, vocabulary.first_byte :] = after_byte.clip(min=0)
    return allowed, next_states


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
        for byte, rest in zip(following, completions.reshape(len(following), -1), strict=True):
            if rest.any():
                row[byte] = state_before(rest)

    for continuation_bytes, (leads, first) in enumerate(_LEADS):
        points = spelled[: len(leads) << 6 * continuation_bytes].copy()
        points[:first] = False
        fill(rows[0], leads, points)
    return np.stack(rows)
