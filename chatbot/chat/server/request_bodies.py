"""From the body of a request, as OpenAI declares it, to questions to the engine.

Fields of requests that are not here are ignored; null is the default. Those that ask for what no model here can do are
declared with the values that ask for nothing.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chatbot.chat.server.errors import ApiError
from chatbot.config.corpus import NONE
from chatbot.config.decoding import (
    MOST_STOP_CHARACTERS,
    SAMPLING,
    DecodingSettings,
    one_hypothesis,
    one_sample,
    without_search,
)
from chatbot.decoding.reply_text import MAX_CHARACTERS
from chatbot.inference.request import Question
from chatbot.inference.text_responder import TextResponder

MOST_REPLIES = 32
MOST_PROMPTS = 32
MOST_STOPS = 16
MOST_TOP_LOG_PROBS = 20
# Log-probabilities that a request may have for each token, over all of its replies.
MOST_LOG_PROBS = 1024
# Beams of a request's own search, each of which is traced once; looked-up replies; characters of a fallback.
MOST_BEAMS = 10
MOST_RETRIEVED = 100
MOST_FALLBACK = 1000
# Messages of a chat, and parts of a message.
MOST_MESSAGES = 2000
MOST_PARTS = 200
# Below it, probabilities overflow, and greedy search gives the same reply.
LEAST_TEMPERATURE = 0.01
SEEDS = 2**31
# The seed that some clients send for any, as llama.cpp has it.
RANDOM = -1
# A number without effect, which fits in 32 bits, for larger ones.
MOST_TOKENS = 2**31 - 1


# In JSON, 2.0 is an integer, too.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
# Fields that choose a search or change the tokens of a reply, with the values that change nothing.
NEUTRAL = {
    "temperature": None,
    "top_p": None,
    "top_k": 0,
    "min_p": 0,
    "beam_size": None,
    "retrieve": None,
    "anti_lm": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
Given = tuple[tuple[str, Any], ...]
# Kinds of parts that are text: some clients send those of /v1/responses to /v1/chat/completions.
TEXT_PARTS = {"text", "input_text", "output_text"}
# -1: no limit, as llama.cpp has it.
TokenLimit = Annotated[int, Field(ge=1), WHOLE] | Literal[-1]
StopText = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]


class TurnsAsked(NamedTuple):
    """A question, as much of it as any model reads, and what was before it."""

    text: str
    history: tuple[str, ...] = ()  # the turns that are read, the oldest first
    last_reply: str = ""  # whatever is read
    is_cut: bool = False  # whether the question is longer


class Body(BaseModel):
    """A part of a body: no text is converted to a number, and the other way round."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class ContentPart(Body):
    """A part of a message. Parts without text, such as images, are ignored."""

    type: str
    text: str | None = None


class Content(Body):
    """What a message has in both forms of a chat."""

    content: str | Annotated[list[ContentPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """The text of the content."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.type in TEXT_PARTS and part.text)


class Message(Content):
    """A message of a chat. Those of users and of the assistant are its turns, and the others are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class TextFormat(Body):
    """The form of replies: they are text."""

    type: Literal["text"]


class DecodingFields(Body):
    """The fields of both protocols. If none of temperature, top_p, top_k, min_p, beam_size and retrieve is given, the
    model's own search finds the replies.
    """

    user: Any = Field(None, description="Who asks, where a client asks for several people")
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    model: str | None = Field(None, description="An id of /v1/models; without one, the first of them")
    n: Annotated[int, Field(ge=1, le=MOST_REPLIES), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="0: greedy search")
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), WHOLE] | None = Field(None, description="0 or -1: all tokens")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    beam_size: Annotated[int, Field(ge=1, le=MOST_BEAMS), WHOLE] | None = Field(None, description="1: greedy search")
    retrieve: Annotated[int, Field(ge=0, le=MOST_RETRIEVED), WHOLE] | None = Field(None, description="0: generate all")
    min_score: float | None = Field(None, description="Where no reply has this score, it is the fallback")
    fallback: Annotated[str, Field(min_length=1, max_length=MOST_FALLBACK)] | None = None
    anti_lm: Annotated[float, Field(ge=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, WHOLE] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def given(self) -> Given:
        """Return the fields of NEUTRAL with values that change something."""
        values = {name: getattr(self, name) for name, neutral in NEUTRAL.items() if getattr(self, name) != neutral}
        if (top_k := values.pop("top_k", None) or 0) > 0:
            values["top_k"] = min(top_k, MOST_TOKENS)
        return tuple((name, value) for name, value in values.items() if value is not None)

    @property
    def person(self) -> str:
        """The name of who asks, which some clients send as the `id` of an object; "" if there is none."""
        name = self.user.get("id") if isinstance(self.user, dict) else self.user
        return name if isinstance(name, str) else ""

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a reply. A reply is one line of printable text, so other texts never occur in it."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(text for text in texts if text and text.isprintable())

    @property
    def most_tokens(self) -> int | None:
        """The maximum number of tokens of a reply."""
        most = self.max_completion_tokens or self.max_tokens
        return None if most in (None, -1) else min(most, MOST_TOKENS)


class ChatRequest(DecodingFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    response_format: TextFormat | None = None
    tool_choice: Literal["none", "auto"] | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None
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

    def turns_asked(self, turns: int) -> list[TurnsAsked]:
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
        is_cut = bool(merged) and len("\n".join(merged[0][1])) > len(question)
        return [TurnsAsked(question, tuple(before[:turns][::-1]), before[0] if before else "", is_cut)]


def _joined(parts: Sequence[str]) -> str:
    """Return the texts of a turn, the newest first, as lines, the newest last: as many as are read at all."""
    ends = itertools.accumulate(len(part) + 1 for part in parts)
    number = sum(end <= MAX_CHARACTERS for end in ends)
    return "\n".join(parts[: max(1, number)][::-1])[:MAX_CHARACTERS]


class CompletionRequest(DecodingFields):
    """The body of /v1/completions. Each prompt is a question without turns before it."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    best_of: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOG_PROBS), WHOLE] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """The number of alternatives for each token; None: no log-probabilities are needed."""
        return self.logprobs

    @property
    def replies(self) -> int:
        """The number of replies that the request asks for, to all of its prompts."""
        return (1 if isinstance(self.prompt, str) else len(self.prompt)) * (self.n or 1)

    def turns_asked(self, turns: int) -> list[TurnsAsked]:
        """Return the prompts."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [TurnsAsked(prompt[:MAX_CHARACTERS], is_cut=len(prompt) > MAX_CHARACTERS) for prompt in prompts]


def check_log_probs(body: ChatRequest | CompletionRequest) -> None:
    """Raise ApiError if the replies would have too many log-probabilities."""
    replies = body.replies
    top = body.top_log_probs
    if top is not None and replies * (top + 1) > MOST_LOG_PROBS:
        message = f"logprobs: with {replies:,} replies, at most {MOST_LOG_PROBS // replies - 1} others are allowed"
        raise ApiError(400, f"{message} for each token, not {top}", param="logprobs", code="invalid_value")


@dataclasses.dataclass(frozen=True)
class Searches:
    """The searches of a model. flags: the settings of the command line. default: with the model's default search.

    looks_up: whether the model has the index of its training pairs.
    """

    flags: DecodingSettings
    default: DecodingSettings
    looks_up: bool = False

    @classmethod
    def of(cls, responder: TextResponder) -> "Searches":
        """Return those of a model."""
        return cls(responder.chosen, responder.decoding, responder.retrieval is not None)


def questions_of(
    body: ChatRequest | CompletionRequest, searches: Searches, turns: int, client: str = "", repeats: int = 0
) -> list[Question]:
    """Return the questions of a request. Raises ApiError for fields that exclude each other.

    turns: the number of those before a question that the model reads. repeats: how often the client has asked it
    before; this counts only where no field asks for the same reply again.
    """
    seed = None if body.seed in (None, RANDOM) else body.seed % SEEDS
    replies = body.n or 1
    decoding = _decoding_of(searches, body.given(), replies, seed is None)
    search = decoding or searches.default
    may_sample = search.samples or replies > 1  # also what beam search does not find
    if body.min_score is not None and search.streams:
        raise _excluded("min_score", "a single reply is compared with none; leave the fields out that ask for one")
    if body.fallback is not None and not (body.fallback.strip() and body.fallback.isprintable()):
        raise _excluded("fallback", "give one line of visible characters")
    return [
        Question(
            *asked,
            decoding=decoding,
            seed=random.randrange(SEEDS) if may_sample and seed is None else seed if may_sample else None,
            stop=body.stops,
            min_score=body.min_score,
            fallback=body.fallback,
            repeats=repeats if body.replies == 1 and seed is None else 0,
            replies=replies,
            max_tokens=body.most_tokens,
            top_log_probs=body.top_log_probs,
            streams=bool(body.stream),
            client=client,
        )
        for asked in body.turns_asked(turns)
    ]


@functools.lru_cache(maxsize=256)  # the settings are checked when they are made, and few differ
def _decoding_of(searches: Searches, given: Given, replies: int, is_any: bool) -> DecodingSettings | None:
    """Return the settings of the search that a request asks for; None: the model's own search.

    Without a field that chooses a search, those that change tokens, and a seed of samples, change the model's own
    search, reduced to one hypothesis: greedy search in place of beam search, and one sample in place of the best of
    several. Several replies, and more than the model's own search finds, are then sampled, each for itself. given: the
    fields that choose a search or change tokens. is_any: whether any seed will do. Raises ApiError.
    """
    default = searches.default
    fields = dict(given)
    temperature = fields.get("temperature")
    beam_size = fields.pop("beam_size", None)
    retrieve = fields.pop("retrieve", None)
    sampling = {name: fields.pop(name) for name in SAMPLING if name in fields}
    is_greedy = sampling.get("top_p") == 0 or (temperature is not None and temperature < LEAST_TEMPERATURE)
    plain = without_search(searches.flags)
    if sampling and not is_greedy:
        for name, value in (("beam_size", beam_size), ("retrieve", retrieve)):
            if value:  # each search that compares is traced, and temperatures are many
                raise _excluded(name, f"it compares replies and samples none; leave it or {next(iter(sampling))} out")
        decoding = dataclasses.replace(plain, **sampling)
    elif is_greedy or beam_size is not None:
        decoding = dataclasses.replace(plain, beam_size=beam_size or 1)
    elif retrieve is not None:
        decoding = default
    elif replies > default.hypotheses and not (default.samples and default.hypotheses == 1):
        decoding = one_sample(default)
    elif fields or (default.samples and not is_any):
        decoding = one_hypothesis(default) if replies == 1 else one_sample(default)
    else:
        return None
    if retrieve is not None:
        if retrieve and not searches.looks_up:
            raise _excluded("retrieve", "this model has no index of its training pairs; leave it out")
        decoding = dataclasses.replace(decoding, retrieve=str(retrieve or NONE))
    if fields and not decoding.streams:
        name = next(iter(fields))
        raise _excluded(name, "it changes greedy search and samples only; leave beam_size and retrieve out")
    return dataclasses.replace(decoding, **fields)


def _excluded(field: str, reason: str) -> ApiError:
    return ApiError(400, f"{field}: {reason}", param=field, code="unsupported_value")
