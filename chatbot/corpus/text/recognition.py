"""jieba's recognition of words that are in no dictionary, by the same hidden Markov model and several times as fast.

Each character begins a word (B), is in its middle (M), ends it (E) or is a word by itself (S). Only two states can
stand before each state, so the Viterbi search (Viterbi, 1967) is written out for the four of them; jieba's own goes
through tables of tables (https://github.com/fxsjy/jieba, finalseg). A test compares the two.
"""

from collections.abc import Iterator

from jieba import finalseg

NEVER = finalseg.MIN_FLOAT
BEGIN, MIDDLE, END, SINGLE = "BMES"

_START = finalseg.start_P
_EMIT = {
    character: tuple(finalseg.emit_P[state].get(character, NEVER) for state in "BMES")
    for character in set().union(*finalseg.emit_P.values())
}
_NEVER_SEEN = (NEVER,) * 4
(_BM, _BE), (_MM, _ME), (_EB, _ES), (_SB, _SS) = (
    tuple(finalseg.trans_P[before][after] for after in afters)
    for before, afters in (("B", "ME"), ("M", "ME"), ("E", "BS"), ("S", "BS"))
)


def recognised(run: str) -> tuple[str, ...]:
    """The words of a run of characters that the dictionary holds no words of."""
    words: list[str] = []
    for number, block in enumerate(finalseg.re_han.split(run)):
        if number % 2:
            for word in _words_of(block):
                words.extend(word if word in finalseg.Force_Split_Words else [word])
        else:
            words.extend(filter(None, finalseg.re_skip.split(block)))
    return tuple(words)


def _words_of(block: str) -> Iterator[str]:
    done = 0
    for at, state in enumerate(states_of(block), start=1):
        if state in "ES":
            yield block[done:at]
            done = at
    if done < len(block):
        yield block[done:]


def states_of(block: str) -> list[str]:
    """[characters] the most probable state of each. Of two equal ones the later letter, as in jieba."""
    emitted = _EMIT.get(block[0], _NEVER_SEEN)
    b, m, e, s = (_START[state] + p for state, p in zip("BMES", emitted, strict=True))
    before: list[tuple[str, str, str, str]] = []  # of each next character, the best state before B, M, E and S
    for character in block[1:]:
        to_b, to_m, to_e, to_s = _EMIT.get(character, _NEVER_SEEN)
        b_from_e, b_from_s = e + _EB + to_b, s + _SB + to_b
        m_from_b, m_from_m = b + _BM + to_m, m + _MM + to_m
        e_from_b, e_from_m = b + _BE + to_e, m + _ME + to_e
        s_from_e, s_from_s = e + _ES + to_s, s + _SS + to_s
        before.append(
            (
                SINGLE if b_from_s >= b_from_e else END,
                MIDDLE if m_from_m >= m_from_b else BEGIN,
                MIDDLE if e_from_m >= e_from_b else BEGIN,
                SINGLE if s_from_s >= s_from_e else END,
            )
        )
        b, m = max(b_from_s, b_from_e), max(m_from_m, m_from_b)
        e, s = max(e_from_m, e_from_b), max(s_from_s, s_from_e)
    states = [SINGLE if s >= e else END]
    for choices in reversed(before):
        states.append(choices["BMES".index(states[-1])])
    return states[::-1]
