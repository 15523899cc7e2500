"""From the body of a request, as OpenAI declares it, to questions to the engine.

Fields of requests that are not here are ignored; null is the default.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chatbot.chat.server.errors import ApiError
from chatbot.config.decoding import MOST_STOP_CHARACTERS, ONE_SAMPLE, SAMPLING, DecodingSettings, over_default
from chatbot.inference.questions import Question
from chatbot.inference.text_responder import MAX_CHARACTERS

MOST_REPLIES, MOST_PROMPTS, MOST_STOPS, MOST_TOP_LOG_PROBS = 32, 32, 16, 20
# Log-probabilities that a request may have for each token, over all of its replies.
MOST_LOG_PROBS = 1024
# Messages of a chat, and parts of a message.
MOST_MESSAGES, MOST_PARTS = 2000, 200
# Below it, probabilities overflow, and greedy search gives the same reply.
LEAST_TEMPERATURE = 0.01
SEEDS = 2**31
# The seed that some clients send for any, as llama.cpp has it.
RANDOM = -1
# A number without effect, which fits in 32 bits, for larger ones.
MOST_TOKENS = 2**31 - 1


# In JSON, 2.0 is an integer, too.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
StopText = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]
# A question, the turns before it that are read, the oldest first, and the reply before it, whatever is read.
Asked = tuple[str, tuple[str, ...], str]


class Body(BaseModel):
    """A part of a body: no text is converted to a number, and the other way round."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class ContentPart(Body):
    """A part of a message. Parts without text, such as images, are ignored."""

    type: str
    text: str | None = None


class Message(Body):
    """A message of a chat. Those of users and of the assistant are its turns, and the others are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """The text of the content."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.type == "text" and part.text)


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class DecodingFields(Body):
    """The fields of both protocols. If none of temperature, top_p, top_k and min_p is given, the model's own search
    finds the replies.
    """

    model: str | None = Field(None, description="An id of /v1/models; without one, the first of them")
    n: Annotated[int, Field(ge=1, le=MOST_REPLIES), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="0: greedy search")
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), WHOLE] | None = Field(None, description="0 or -1: all tokens")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, WHOLE] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a reply. A reply is one line of printable text, so other texts never occur in it."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(text for text in texts if text and text.isprintable())

    @property
    def most_tokens(self) -> int | None:
        """The maximum number of tokens of a reply."""
        most = self.max_completion_tokens or self.max_tokens
        return None if most is None else min(most, MOST_TOKENS)


class ChatRequest(DecodingFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOG_PROBS), WHOLE] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """The number of alternatives for each token; None: no log-probabilities are needed."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def replies(self) -> int:
        """The number of replies that the request asks for."""
        return self.n or 1

    def asked(self, turns: int) -> list[Asked]:
        """Return the last question of the user, at most as many turns before it, and the reply before it.

        Consecutive messages of one role are one turn. Messages after the last one of the user are ignored; without one,
        the question is empty.
        """
        merged: list[tuple[str, list[str]]] = []  # the newest first, as the texts of each
        for message in reversed(self.messages):
            if message.role not in {"user", "assistant"} or (not merged and message.role == "assistant"):
                continue
            if merged and merged[-1][0] == message.role:
                merged[-1][1].append(message.text)
            elif len(merged) <= max(1, turns):
                merged.append((message.role, [message.text]))
            else:
                break
        question, *before = [_joined(parts) for _, parts in merged] or [""]
        return [(question, tuple(before[:turns][::-1]), before[0] if before else "")]


def _joined(parts: Sequence[str]) -> str:
    """Return the texts of a turn, the newest first, as lines, the newest last: as many as are read at all."""
    ends = itertools.accumulate(len(part) + 1 for part in parts)
    number = sum(end <= MAX_CHARACTERS for end in ends)
    return "\n".join(parts[: max(1, number)][::-1])[:MAX_CHARACTERS]


class CompletionRequest(DecodingFields):
    """The body of /v1/completions. Each prompt is a question without turns before it."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOG_PROBS), WHOLE] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """The number of alternatives for each token; None: no log-probabilities are needed."""
        return self.logprobs

    @property
    def replies(self) -> int:
        """The number of replies that the request asks for, to all of its prompts."""
        return (1 if isinstance(self.prompt, str) else len(self.prompt)) * (self.n or 1)

    def asked(self, turns: int) -> list[Asked]:
        """Return the prompts."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [(prompt[:MAX_CHARACTERS], (), "") for prompt in prompts]


def check_log_probs(body: ChatRequest | CompletionRequest) -> None:
    """Raise ApiError if the replies would have too many log-probabilities."""
    replies, top = body.replies, body.top_log_probs
    if top is not None and replies * (top + 1) > MOST_LOG_PROBS:
        message = f"logprobs: with {replies:,} replies, at most {MOST_LOG_PROBS // replies - 1} others are allowed"
        raise ApiError(400, f"{message} for each token, not {top}", param="logprobs", code="invalid_value")


@dataclasses.dataclass(frozen=True)
class Searches:
    """The searches of a model. flags: the settings of the command line. default: with the model's default search."""

    flags: DecodingSettings
    default: DecodingSettings


def questions_of(
    body: ChatRequest | CompletionRequest, searches: Searches, turns: int, client: str = ""
) -> list[Question]:
    """Return the questions of a request. turns: the number of those before a question that the model reads."""
    top_k = min(body.top_k, MOST_TOKENS) if body.top_k and body.top_k > 0 else None
    sampling = Sampling(body.temperature, body.top_p, top_k, body.min_p or None)
    penalties = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    seed = None if body.seed in (None, RANDOM) else body.seed % SEEDS
    changes = bool(body.stops) or (seed is not None and searches.default.samples)
    decoding = decoding_of(searches, sampling, penalties, body.n or 1, changes)
    samples = any(value is not None for value in sampling)
    return [
        Question(
            text,
            history,
            last_reply,
            decoding=decoding,
            seed=None if decoding is None else random.randrange(SEEDS) if seed is None and samples else seed,
            stop=() if decoding is None else body.stops,
            replies=body.n or 1,
            max_tokens=body.most_tokens,
            top_log_probs=body.top_log_probs,
            streams=bool(body.stream),
            client=client,
        )
        for text, history, last_reply in body.asked(turns)
    ]


class Sampling(NamedTuple):
    """The fields of a request that choose its search; None: not given."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None


@functools.lru_cache(maxsize=256)  # the settings are checked when they are made, and few differ
def decoding_of(
    searches: Searches, sampling: Sampling, penalties: tuple[float, float], replies: int, changes: bool
) -> DecodingSettings | None:
    """Return the settings of greedy search or of sampling that a request asks for; None: the model's own search.

    The fields of `sampling` choose the search. The others alone change the model's own search, reduced to one
    hypothesis: greedy search in place of beam search, and one sample in place of the best of several. More replies
    than the model's own search finds are sampled, each for itself. penalties: of presence and of frequency. changes:
    whether there are other such fields.
    """
    default, names = searches.default, ("presence_penalty", "frequency_penalty")
    penalised: dict[str, Any] = {name: value for name, value in zip(names, penalties, strict=True) if value}
    too_many = default.hypotheses > 1 and replies > default.hypotheses
    if any(value is not None for value in sampling):
        greedy = sampling.top_p == 0 or (sampling.temperature is not None and sampling.temperature < LEAST_TEMPERATURE)
        chosen: dict[str, Any] = {"beam_size": 1} if greedy else sampling._asdict()
        return dataclasses.replace(_without_search(searches.flags), **chosen, **penalised)
    if too_many or penalised or changes:
        return dataclasses.replace(one_sample(default) if too_many else one_hypothesis(default), **penalised)
    return None


def one_hypothesis(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of greedy search for those of beam search, and of one sample for those of several."""
    return one_sample(decoding) if decoding.samples else dataclasses.replace(_without_search(decoding), beam_size=1)


def one_sample(decoding: DecodingSettings) -> DecodingSettings:
    """Return settings of one sample; for those of beam search, ONE_SAMPLE."""
    if not decoding.samples:
        return over_default(_without_search(decoding), ONE_SAMPLE)
    search = {name: getattr(decoding, name) for name in SAMPLING}
    if not any(value is not None for value in search.values()):  # candidates alone sample from all tokens
        search["temperature"] = 1.0
    return dataclasses.replace(_without_search(decoding), **search)


def _without_search(decoding: DecodingSettings) -> DecodingSettings:
    """Return the settings without those of a search: only those of the tokens of a reply, such as banned words."""
    names = (
        "beam_size",
        "coverage_penalty",
        "diverse_groups",
        "diversity",
        "candidates",
        "rerank",
        "retrieve",
        "n_best",
    )
    neutral = {name: getattr(DecodingSettings, name) for name in (*names, *SAMPLING)}
    return dataclasses.replace(decoding, **neutral)
