"""The settings of decoding: which search finds a reply, and what changes the probabilities of its tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatbot.config.corpus import AUTO, NONE
from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

SEARCH = "search"
TOKENS = "tokens"
RANKING = "ranking"
MOST_RETRIEVED = 1000
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
MOST_STOP_CHARACTERS = 100  # of a stop text


@dataclasses.dataclass(frozen=True)
class DecodingSettings(Flags):
    """The settings of decoding. The neutral ones are those of greedy search.

    A sampling flag, or a number of candidates, chooses sampling. Otherwise beam_size chooses beam search or greedy
    search. Raises UserError for settings that exclude each other.
    """

    beam_size: int | None = setting(
        None,
        "beam search: keep the N best hypotheses at each token; 1: greedy search",
        unset="5 without sampling",
        group=SEARCH,
        least=1,
        most=100,
    )
    length_penalty: float = setting(
        1.0, "beam search and ranking: prefer longer replies; the exponent of ((5 + length) / 6)", least=0, most=10
    )
    temperature: float | None = setting(
        None,
        "sampling: below 1, probable tokens become more probable, above 1 less",
        unset="1",
        above=0,
        most=100,
        remedy="for greedy search, set --beam-size 1",
    )
    top_k: int | None = setting(None, "sample from the N most probable tokens", unset="all", least=1)
    top_p: float | None = setting(
        None, "sample from the fewest tokens whose probabilities sum to R (nucleus)", unset="all", above=0, most=1
    )
    min_p: float | None = setting(
        None, "sample from tokens at least R times as probable as the most probable one", unset="all", above=0, most=1
    )
    candidates: int | None = setting(
        None, "sample N replies and give the one with the best score", unset="1", least=1, most=1000
    )
    seed: int = setting(1, "seed of sampling: the same seed and question give the same reply", least=0, most=2**31 - 1)
    repetition_penalty: float = setting(
        1.0, "multiply the log-probabilities of tokens that the reply has by R", group=TOKENS, least=1, most=100
    )
    frequency_penalty: float = setting(
        0.0, "subtract R nats from a token's log-probability for each time that the reply has it", least=-100, most=100
    )
    presence_penalty: float = setting(
        0.0, "subtract R nats from the log-probability of a token that the reply has", least=-100, most=100
    )
    no_repeat_ngram: int = setting(0, "no N tokens in a row occur twice in a reply; 0: they may", least=0, most=100)
    min_reply_length: int = setting(1, "minimum length of a reply in tokens, without the end symbol", least=1)
    ban: tuple[str, ...] = setting((), "no reply contains these words, not even within a longer word", metavar="WORD")
    stop: tuple[str, ...] = setting((), "a reply ends before the first of these texts", metavar="TEXT")
    anti_lm: float | None = setting(
        None, "subtract R times the log-probability without the question: fewer generic replies", least=0, most=10
    )
    anti_lm_tokens: int = setting(5, "with --anti-lm: change only the first N tokens of a reply", least=1)
    rerank: float | None = setting(
        None,
        "weight of the log-probability of the question given the reply, among several replies; for attempts that "
        "learned both directions",
        group=RANKING,
        least=0,
        most=100,
    )
    retrieve: str = setting(
        AUTO,
        "look up N replies to the most similar training questions first, of which the model chooses; what is generated "
        "answers other questions. auto: 30 with the default search of an attempt that has their index",
        metavar="auto|N|none",
    )
    min_score: float | None = setting(
        None,
        "say so where no reply has this score, of a search that compares several",
        unset="give any",
        least=-1000,
        most=1000,
    )
    fallback: str = setting(
        "我没听懂，换个说法？",
        "the reply in that case, and where nothing is found in an attempt without validation, one line",
        metavar="TEXT",
    )
    rules: str | None = setting(
        None,
        "fixed answers before everything else: a file of lines PATTERN<TAB>ANSWER; PATTERN is a regular expression",
        metavar="FILE",
    )
    n_best: int = setting(1, "in a terminal: print the N best replies with their scores", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (length := max(map(len, self.stop), default=0)) > MOST_STOP_CHARACTERS:
            raise UserError(f"--stop: a text has {length:,} characters; give texts of at most {MOST_STOP_CHARACTERS}")
        if self.retrieve not in (AUTO, NONE) and not 1 <= self.retrieved <= MOST_RETRIEVED:
            raise UserError(f"--retrieve {self.retrieve}: give auto, none, or a number from 1 to {MOST_RETRIEVED:,}")
        if self.samples and self.beams > 1:
            flag = next((name for name in SAMPLING if getattr(self, name) is not None), "candidates")
            raise UserError(f"--beam-size {self.beams} and {flag_of(flag)}: beam search does not sample; give one")
        if not self.fallback.strip():
            raise UserError("--fallback: a reply without visible characters; give a text")
        if self.anti_lm_tokens != DecodingSettings.anti_lm_tokens and self.anti_lm is None:
            raise UserError("--anti-lm-tokens: not used without --anti-lm; leave it out, or add that")
        if not self.chooses_search:
            return  # `over_default` replaces it
        if self.n_best > self.hypotheses:
            raise UserError(
                f"--n-best {self.n_best}: the search yields at most {self.hypotheses}; raise --beam-size or "
                "--candidates"
            )
        if self.min_score is not None and self.streams:
            raise UserError(
                "--min-score: a single reply is compared with none; add --beam-size, --candidates or --retrieve"
            )
        if self.rerank and self.hypotheses == 1:
            raise UserError("--rerank: there is one reply and nothing to rank; add --beam-size or --candidates")

    @property
    def chooses_search(self) -> bool:
        """Whether a search was chosen, in contrast to the default."""
        return self.samples or self.beam_size is not None

    @property
    def samples(self) -> bool:
        """Whether the search is sampling."""
        return any(getattr(self, name) is not None for name in (*SAMPLING, "candidates"))

    @property
    def beams(self) -> int:
        """The number of hypotheses of beam search, 1 in greedy search and sampling."""
        return self.beam_size or 1

    @property
    def hypotheses(self) -> int:
        """The number of replies that the search finds for a question."""
        return self.candidates or self.beams

    @property
    def retrieved(self) -> int:
        """The number of replies to training questions that are looked up, 0 for none; without a default search, too."""
        return int(self.retrieve) if self.retrieve.isascii() and self.retrieve.isdecimal() else 0

    @property
    def streams(self) -> bool:
        """Whether the first token of a reply is known before the last one, since no replies are compared."""
        return self.hypotheses == 1 and not self.retrieved

    @property
    def compares_samples(self) -> bool:
        """Whether the search samples several replies to a question."""
        return self.samples and self.hypotheses > 1


# The search of an attempt when no flag chooses one. Rated blind, its replies are better than samples, ranked or not
# (docs/experiments.md).
DEFAULT_SEARCH = {"beam_size": 5}
# Where training pairs can be looked up, what people wrote comes first.
WITH_RETRIEVAL = {**DEFAULT_SEARCH, "retrieve": "30"}
# Of one sample, where several replies are asked for that beam search does not have.
ONE_SAMPLE = {"top_k": 20, "temperature": 0.7}


def default_search(retrieves: bool) -> Mapping[str, Any]:
    """Return the default search of an attempt. retrieves: whether it has the index of its pairs."""
    return WITH_RETRIEVAL if retrieves else DEFAULT_SEARCH


def over_default(settings: DecodingSettings, default: Mapping[str, Any]) -> DecodingSettings:
    """Return the settings, with the default search if they choose none."""
    if settings.chooses_search:
        return settings
    chosen = {name for name in default if getattr(settings, name) != getattr(DecodingSettings, name)}
    return dataclasses.replace(settings, **{name: value for name, value in default.items() if name not in chosen})


def one_hypothesis(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of greedy search for those of beam search, and of one sample for those of several."""
    return one_sample(decoding) if decoding.samples else dataclasses.replace(without_search(decoding), beam_size=1)


def one_sample(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of one sample; for those of beam search, ONE_SAMPLE."""
    if not decoding.samples:
        return over_default(without_search(decoding), ONE_SAMPLE)
    search = {name: getattr(decoding, name) for name in SAMPLING}
    if not any(value is not None for value in search.values()):  # candidates alone sample from all tokens
        search["temperature"] = 1.0
    return dataclasses.replace(without_search(decoding), **search)


def without_search(decoding: DecodingSettings) -> DecodingSettings:
    """Return the settings without those of a search: only those of the tokens of a reply, such as banned words."""
    names = (
        "beam_size",
        "candidates",
        "rerank",
        "retrieve",
        "min_score",
        "fallback",
        "n_best",
    )
    neutral = {name: getattr(DecodingSettings, name) for name in (*names, *SAMPLING)}
    return dataclasses.replace(decoding, **neutral)
