"""Settings of decoding: how replies are searched or sampled, and how token probabilities are changed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatbot.config.corpus import AUTO, NONE
from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

TOKENS = "tokens"
MAX_RETRIEVED = 1000
# The lowest value of --min-score, which every reply reaches.
MIN_SCORE = -1000.0
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
MAX_STOP_CHARACTERS = 100  # maximum number of characters in a stop string


@dataclasses.dataclass(frozen=True)
class DecodingSettings(Flags):
    """Settings of decoding. The defaults select greedy search.

    Replies are sampled if a sampling flag or --candidates is set. Otherwise, a --beam-size above 1 selects beam search.
    Raises UserError if settings exclude each other.
    """

    beam_size: int | None = setting(
        None,
        "number of hypotheses in beam search; 1 means greedy search",
        unset="5, or none when sampling",
        group="search",
        minimum=1,
        maximum=100,
    )
    length_penalty: float = setting(
        1.0,
        "exponent of the length penalty, ((5 + length) / 6) ** R; higher values favour longer replies",
        minimum=0,
        maximum=10,
    )
    temperature: float | None = setting(
        None,
        "softmax temperature for sampling; values below 1 favour probable tokens, values above 1 vary replies more",
        unset="1",
        above=0,
        maximum=100,
        remedy="for greedy search, set --beam-size 1",
    )
    top_k: int | None = setting(None, "sample from the N most probable tokens", unset="all", minimum=1)
    top_p: float | None = setting(
        None,
        "sample from the smallest set of tokens whose total probability reaches R (nucleus sampling)",
        unset="all",
        above=0,
        maximum=1,
    )
    min_p: float | None = setting(
        None,
        "sample from the tokens that are at least R times as probable as the most probable token",
        unset="all",
        above=0,
        maximum=1,
    )
    candidates: int | None = setting(
        None, "sample N replies and return the reply with the best score", unset="1", minimum=1, maximum=1000
    )
    seed: int = setting(
        1, "random seed for sampling; the same seed and question produce the same reply", minimum=0, maximum=2**31 - 1
    )
    repetition_penalty: float = setting(
        1.0, "multiply the log-probabilities of tokens already in the reply by R", group=TOKENS, minimum=1, maximum=100
    )
    frequency_penalty: float = setting(
        0.0,
        "subtract R nats from a token's log-probability for each earlier occurrence in the reply",
        minimum=-100,
        maximum=100,
    )
    presence_penalty: float = setting(
        0.0, "subtract R nats from the log-probabilities of tokens already in the reply", minimum=-100, maximum=100
    )
    no_repeat_ngram: int = setting(
        0, "prevent n-grams of N tokens from occurring twice in a reply; 0 means no restriction", minimum=0, maximum=100
    )
    min_reply_length: int = setting(1, "minimum length of a reply in tokens, not counting EOS", minimum=1)
    ban: tuple[str, ...] = setting(
        (), "words that must not occur in a reply, not even inside longer words", metavar="WORD"
    )
    stop: tuple[str, ...] = setting((), "strings that end a reply, which is cut off before the string", metavar="TEXT")
    anti_lm: float | None = setting(
        None,
        "subtract R times each token's log-probability without the question (anti-LM), which avoids generic replies",
        minimum=0,
        maximum=10,
    )
    anti_lm_tokens: int = setting(5, "number of tokens at the start of a reply to which --anti-lm applies", minimum=1)
    rerank: float | None = setting(
        None,
        "weight of the question's log-probability given the reply, when replies are ranked; requires an attempt "
        "trained in both directions",
        group="ranking",
        minimum=0,
        maximum=100,
    )
    retrieve: str = setting(
        AUTO,
        "number of replies to retrieve from similar training questions before a reply is generated; auto: 30 if the "
        "attempt has an index and no other search is chosen",
        metavar="auto|N|none",
    )
    min_score: float | None = setting(
        None,
        "minimum score of a reply; if no candidate reaches it, --fallback is sent",
        unset="no minimum, or that of an attempt trained without validation",
        minimum=MIN_SCORE,
        maximum=1000,
    )
    fallback: str = setting(
        "我没听懂，换个说法？",
        "reply that is sent if no candidate reaches --min-score, or if an attempt without validation retrieves nothing",
        metavar="TEXT",
    )
    rules: str | None = setting(
        None,
        "file of fixed answers that take precedence over the model: one PATTERN<TAB>ANSWER per line, where PATTERN is "
        "a regular expression",
        metavar="FILE",
    )
    n_best: int = setting(1, "number of replies to print in the terminal, best first, with their scores", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (length := max(map(len, self.stop), default=0)) > MAX_STOP_CHARACTERS:
            raise UserError(f"--stop: a string has {length:,} characters; use at most {MAX_STOP_CHARACTERS}")
        if self.retrieve not in (AUTO, NONE) and not 1 <= self.retrieved <= MAX_RETRIEVED:
            raise UserError(f"--retrieve {self.retrieve}: use auto, none, or a number from 1 to {MAX_RETRIEVED:,}")
        if self.samples and self.beams > 1:
            flag = next((name for name in SAMPLING if getattr(self, name) is not None), "candidates")
            raise UserError(f"--beam-size {self.beams} and {flag_of(flag)}: beam search does not sample; give one")
        if not self.fallback.strip():
            raise UserError("--fallback: the reply has no visible characters; use another text")
        if self.anti_lm_tokens != DecodingSettings.anti_lm_tokens and self.anti_lm is None:
            raise UserError("--anti-lm-tokens: not used without --anti-lm; leave it out, or add --anti-lm")
        if not self.chooses_search:
            return  # the other checks need a search, which `over_default` adds later
        if self.n_best > self.hypotheses:
            raise UserError(
                f"--n-best {self.n_best}: the search yields at most {self.hypotheses}; raise --beam-size or "
                "--candidates"
            )
        if self.min_score is not None and self.streams:
            raise UserError("--min-score: needs several candidates; add --beam-size, --candidates or --retrieve")
        if self.rerank and self.hypotheses == 1:
            raise UserError("--rerank: needs several replies to rank; add --beam-size or --candidates")

    @property
    def chooses_search(self) -> bool:
        """Whether a search was chosen explicitly."""
        return self.samples or self.beam_size is not None

    @property
    def samples(self) -> bool:
        """Whether replies are sampled."""
        return any(getattr(self, name) is not None for name in (*SAMPLING, "candidates"))

    @property
    def beams(self) -> int:
        """Beam size of the search. It is 1 for greedy search and sampling."""
        return self.beam_size or 1

    @property
    def hypotheses(self) -> int:
        """Number of replies that the search finds per question."""
        return self.candidates or self.beams

    @property
    def retrieved(self) -> int:
        """Number of training replies to retrieve. It is 0 if the setting is "none" or "auto"."""
        return int(self.retrieve) if self.retrieve.isascii() and self.retrieve.isdecimal() else 0

    @property
    def streams(self) -> bool:
        """Whether tokens can be streamed as they are generated, which requires that a single reply is generated."""
        return self.hypotheses == 1 and not self.retrieved

    @property
    def compares_samples(self) -> bool:
        """Whether the search samples several replies per question."""
        return self.samples and self.hypotheses > 1


# Default search of a trained model. In a blind rating, beam search produced better replies than sampling
# (docs/experiments.md).
DEFAULT_SEARCH = {"beam_size": 5}
# Default search of a trained model with an index of its training pairs. It also considers replies from training pairs.
DEFAULT_SEARCH_WITH_RETRIEVAL = {**DEFAULT_SEARCH, "retrieve": "30"}
# Default settings of sampling, for requests of several replies.
ONE_SAMPLE = {"top_k": 20, "temperature": 0.7}


def default_search(retrieves: bool) -> Mapping[str, Any]:
    """Return the default search, with or without retrieval of training pairs."""
    return DEFAULT_SEARCH_WITH_RETRIEVAL if retrieves else DEFAULT_SEARCH


def over_default(settings: DecodingSettings, default: Mapping[str, Any]) -> DecodingSettings:
    """Add the default search to the settings, unless the settings choose a search."""
    if settings.chooses_search:
        return settings
    chosen = {name for name in default if getattr(settings, name) != getattr(DecodingSettings, name)}
    return dataclasses.replace(settings, **{name: value for name, value in default.items() if name not in chosen})


def one_hypothesis(decoding: DecodingSettings) -> DecodingSettings:
    """Replace beam search with greedy search, and several samples with one."""
    return one_sample(decoding) if decoding.samples else dataclasses.replace(without_search(decoding), beam_size=1)


def one_sample(decoding: DecodingSettings) -> DecodingSettings:
    """Change the settings to draw a single sample. Greedy search and beam search are replaced with ONE_SAMPLE."""
    if not decoding.samples:
        return over_default(without_search(decoding), ONE_SAMPLE)
    search = {name: getattr(decoding, name) for name in SAMPLING}
    if not any(value is not None for value in search.values()):  # without other flags, --candidates uses all tokens
        search["temperature"] = 1.0
    return dataclasses.replace(without_search(decoding), **search)


def without_search(decoding: DecodingSettings) -> DecodingSettings:
    """Reset the settings of the search, but keep other settings, such as banned words."""
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
