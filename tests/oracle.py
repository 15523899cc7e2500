"""A slow reference implementation of decoding: each search, setting and ranking, one id at a time in plain Python.

The oracle knows a model as a function of a question and the ids so far, and knows ids by the text that they spell.
"""

import codecs
import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.cleaning import removed_characters
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import ASK, BOS, EOS, SPECIALS, Vocabulary

REMOVED = removed_characters()  # no reply spells one of these in bytes

Ids = Sequence[int]
Array = npt.NDArray[np.float64]
# (ids of a question, ids of the reply so far after a begin symbol) -> the log-probability of each next id
NextId = Callable[[Ids, Ids], Array]
# (ids of the reply so far after a begin symbol) -> the probability of each next id
NgramProbabilities = Callable[[Ids], Array]


def normalised(scores: npt.ArrayLike) -> Array:
    """Return the log-softmax of logits, which can be -inf."""
    x = np.asarray(scores, np.float64)
    return np.asarray(x - x.max() - np.log(np.exp(x - x.max()).sum()))


def likelihood(next_id: NextId, source: Ids, target: Ids, begin: int = BOS) -> float:
    """Return the log-probability of a target and EOS, token by token."""
    ids = [begin, *target, EOS]
    return sum(float(next_id(source, ids[:place])[ids[place]]) for place in range(1, len(ids)))


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before the stop text that ends first; the longest one if several end there."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)].rstrip()
    return text


@functools.cache
def character_after(pending: bytes, added: bytes, is_byte: bool) -> bytes | None:
    """Return the incomplete character after more bytes are added to one; None if they cannot follow it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(pending + added)
    except UnicodeDecodeError:
        return None
    if (pending and not is_byte) or (is_byte and not REMOVED.isdisjoint(text)):
        return None
    begun = decoder.getstate()[0]
    can_end = not begun or any(character_after(begun, bytes([byte]), True) is not None for byte in range(0x80, 0xC0))
    return begun if can_end else None


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """The ids of a reply, with EOS if it is finished, and their log-probability with all settings."""

    ids: tuple[int, ...] = ()
    log_prob: float = 0.0

    @property
    def is_finished(self) -> bool:
        return EOS in self.ids

    def score(self, decoding: DecodingSettings) -> float:
        """Return the score in beam search."""
        return self.log_prob / length_penalty(len(self.ids), decoding)


def length_penalty(length: int, decoding: DecodingSettings) -> float:
    return float(((5 + length) / 6) ** decoding.length_penalty)


@dataclasses.dataclass(frozen=True, eq=False)
class Oracle:
    """Computes the replies of a model. ngrams: mixed in with `ngram_weight`, except when replies are ranked."""

    next_id: NextId
    vocabulary: Vocabulary
    max_length: int
    ngrams: NgramProbabilities | None = None
    ngram_weight: float = 0.0

    @functools.cached_property
    def spelled(self) -> list[bytes | None]:
        """The bytes of each id; None if the id cannot be in a reply."""
        vocabulary = self.vocabulary
        words = [token.replace(SPACE, " ").encode() for token in vocabulary.tokens[: vocabulary.first_mark]]
        no_marks: list[bytes | None] = [None] * (vocabulary.first_byte - vocabulary.first_mark)
        return [*[None] * len(SPECIALS), *words[len(SPECIALS) :], *no_marks, *(bytes([byte]) for byte in range(256))]

    @functools.cached_property
    def pending(self) -> Callable[[tuple[int, ...]], bytes | None]:
        """Maps ids to the incomplete character at their end; to None if they spell no text."""

        @functools.cache
        def after(ids: tuple[int, ...]) -> bytes | None:
            if not ids:
                return b""
            before, spelled = after(ids[:-1]), self.spelled[ids[-1]]
            if before is None or spelled is None:
                return None
            return character_after(before, spelled, ids[-1] >= self.vocabulary.first_byte)

        return after

    def can_begin(self, ids: Ids, decoding: DecodingSettings) -> bool:
        """Return whether a reply can begin with these ids: with whole characters, within the length, not banned."""
        pending = self.pending(tuple(ids[:-1] if ids[-1] == EOS else ids))
        if pending is None:
            return False
        if ids[-1] == EOS:
            return len(ids) > 1 and not pending
        lead = pending[0] if pending else 0
        missing = sum(lead >= least for least in (0x80, 0xE0, 0xF0)) + bool(pending) - len(pending)
        text = b"".join(self.spelled[i] or b"" for i in ids if decoding.ban).decode(errors="ignore")
        return len(ids) + missing <= self.max_length and not any(word in text for word in decoding.ban)

    def distribution(self, source: Ids, ids: Ids) -> Array:
        """Return the log-probabilities of the next id, before any setting."""
        log_probs = self.next_id(source, [BOS, *ids])
        if self.ngrams is None:
            return log_probs
        shares = (1 - self.ngram_weight) * np.exp(log_probs) + self.ngram_weight * self.ngrams([BOS, *ids])
        return np.asarray(np.log(shares))

    def scores(self, decoding: DecodingSettings, source: Ids, ids: Ids) -> Array:
        """Return the log-probabilities of the next id after all settings."""
        possible = [self.can_begin([*ids, i], decoding) for i in range(len(self.vocabulary))]
        scores = normalised(np.where(possible, self.distribution(source, ids), -np.inf))
        for i in {*ids}:
            scores[i] *= decoding.repetition_penalty
            scores[i] -= decoding.presence_penalty
        for i in ids:
            scores[i] -= decoding.frequency_penalty
        if decoding.anti_lm and len(ids) < decoding.anti_lm_tokens:
            scores = scores - decoding.anti_lm * self.distribution([BOS], ids)
        if size := decoding.no_repeat_ngram:
            earlier = {tuple(ids[place : place + size]) for place in range(len(ids) - size + 1)}
            is_repeat = [tuple([*ids, i][-size:]) in earlier for i in range(len(scores))]
            scores = self._unless_empty(np.where(is_repeat, -np.inf, scores), scores)
        if len(ids) < decoding.min_reply_length:
            without_end = np.where(np.arange(len(scores)) == EOS, -np.inf, scores)
            scores = self._unless_empty(without_end, scores)
        return scores

    @staticmethod
    def _unless_empty(scores: Array, before: Array) -> Array:
        return scores if np.isfinite(scores).any() else before

    def greedy(self, decoding: DecodingSettings, source: Ids) -> Hypothesis:
        """Choose the most probable id at each step."""
        return self._extend(decoding, source, lambda scores, _: int(scores.argmax()))

    def sample(self, decoding: DecodingSettings, source: Ids, uniform: npt.NDArray[np.float32]) -> Hypothesis:
        """Choose the id where the cumulative distribution passes the uniform number of the step."""

        def draw(scores: Array, place: int) -> int:
            sums = np.exp(normalised(truncated(decoding, scores))).cumsum()
            return int((sums <= uniform[place]).sum())

        return self._extend(decoding, source, draw)

    def _extend(self, decoding: DecodingSettings, source: Ids, choose: Callable[[Array, int], int]) -> Hypothesis:
        found = Hypothesis()
        while not found.is_finished and len(found.ids) < self.max_length:
            scores = self.scores(decoding, source, found.ids)
            i = choose(scores, len(found.ids))
            found = Hypothesis((*found.ids, i), found.log_prob + float(scores[i]))
        return found

    def beams(self, decoding: DecodingSettings, source: Ids) -> list[Hypothesis]:
        """Run beam search over a list of hypotheses."""
        beam = [Hypothesis()]
        for _ in range(self.max_length):
            continued = [old for old in beam if old.is_finished]
            for old in beam:
                if old.is_finished:
                    continue
                scores = self.scores(decoding, source, old.ids)
                possible = np.flatnonzero(np.isfinite(scores)).tolist()
                continued += [Hypothesis((*old.ids, i), old.log_prob + float(scores[i])) for i in possible]
            beam = sorted(continued, key=lambda found: -found.score(decoding))[: decoding.beams]
        return beam

    def hypotheses(self, decoding: DecodingSettings, source: Ids, seed: int | None = None) -> list[tuple[Ids, float]]:
        """Return the ids that the search finds, with their scores."""
        source = source[: self.max_length]
        if decoding.beams > 1:
            return [(found.ids, found.score(decoding)) for found in self.beams(decoding, source)]
        if not decoding.samples:
            found = self.greedy(decoding, source)
            return [(found.ids, found.log_prob)]
        generator = np.random.default_rng([decoding.seed if seed is None else seed, *source])
        numbers = generator.random((decoding.hypotheses, self.max_length), np.float32)
        sampled = [self.sample(decoding, source, row) for row in numbers]
        ranks = [length_penalty(len(found.ids), decoding) if len(sampled) > 1 else 1.0 for found in sampled]
        return [(found.ids, found.log_prob / rank) for found, rank in zip(sampled, ranks, strict=True)]

    def candidates(self, decoding: DecodingSettings, source: Ids, seed: int | None = None) -> list[tuple[str, float]]:
        """Return the distinct replies to a question with their scores, the best first."""
        best: dict[str, tuple[float, Ids]] = {}
        for ids, score in sorted(self.hypotheses(decoding, source, seed), key=lambda item: -item[1]):
            text = before_stop(self.vocabulary.text(i for i in ids if i != EOS), decoding.stop)
            best.setdefault(text, (score, [i for i in ids if i != EOS]))
        distinct = {text: item for text, item in best.items() if text} or best
        question, replies = source[: self.max_length], list[tuple[str, float]]()
        for text, (score, ids) in distinct.items():
            if decoding.rerank:
                said = [n for n in range(1, len(ids) + 1) if text.startswith(self.vocabulary.text(ids[:n]))]
                reverse = likelihood(self.next_id, ids[: max(said, default=1)], question, ASK)
                score += decoding.rerank * reverse / length_penalty(len(question) + 1, decoding)
            replies.append((text, score))
        return sorted(replies, key=lambda reply: -reply[1])


def truncated(decoding: DecodingSettings, scores: Array) -> Array:
    """Apply the temperature, then each truncation of sampling in turn."""
    scores = scores / (1.0 if decoding.temperature is None else decoding.temperature)
    if decoding.top_k is not None:
        scores = keep_only(scores, scores >= np.sort(scores)[-decoding.top_k])
    if decoding.top_p is not None:
        scores = keep_only(scores, nucleus(scores, decoding.top_p))
    if decoding.min_p is not None:
        scores = keep_only(scores, scores >= scores.max() + np.log(decoding.min_p))
    return scores


def keep_only(scores: Array, selected: npt.NDArray[np.bool_]) -> Array:
    return np.where(selected, scores, -np.inf)


def nucleus(scores: Array, mass: float) -> npt.NDArray[np.bool_]:
    """Select the most probable ids that sum to a mass, including ties with the last one."""
    places = np.argsort(-scores, kind="stable")
    sums = np.exp(normalised(scores))[places].cumsum()
    last = scores[places[min(int((sums < mass).sum()), len(sums) - 1)]]
    return np.asarray(np.isfinite(scores) & (scores >= last - 1e-4))
