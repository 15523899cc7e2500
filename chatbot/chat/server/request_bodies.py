"""Request bodies in OpenAI's format, and their conversion to questions for the model.

Unknown fields are ignored, and null means the default. The fields of unsupported features only accept values that
disable the feature.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from chatbot.chat.server.errors import ApiError
from chatbot.config.corpus import NONE
from chatbot.config.decoding import (
    MAX_STOP_CHARACTERS,
    SAMPLING,
    DecodingSettings,
    one_hypothesis,
    one_sample,
    without_search,
)
from chatbot.decoding.reply_text import MAX_CHARACTERS
from chatbot.flags import flags_of
from chatbot.inference.request import Question
from chatbot.inference.text_responder import TextResponder

MAX_REPLIES = 32
MAX_PROMPTS = 32
MAX_STOPS = 16
MAX_TOP_LOG_PROBS = 20
# The maximum number of log-probabilities per token position, for all replies to a request together.
MAX_LOG_PROBS = 1024
# The maximum beam size of a request. It is low because each beam size needs a separate TensorFlow graph.
MAX_BEAMS = 10
MAX_RETRIEVED = 100
MAX_FALLBACK_CHARACTERS = 1000
# The maximum number of messages in a chat.
MAX_MESSAGES = 2000
# The maximum number of content parts in a message.
MAX_PARTS = 200
# For lower temperatures, greedy search is used, because dividing logits by them could overflow.
MIN_TEMPERATURE = 0.01
SEEDS = 2**31
# As a seed, this value means a random seed, as in llama.cpp.
RANDOM_SEED = -1
# Larger limits on the number of tokens are replaced by this one, the largest signed 32-bit integer.
MAX_TOKENS = 2**31 - 1

# Converts floats such as 2.0 to integers, because JSON does not distinguish between 2.0 and 2.
INTEGRAL = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
# The names of the decoding settings that are not fields of `Question`.
DECODING = {*flags_of(DecodingSettings)} - {field.name for field in dataclasses.fields(Question)}
# Converts 0 to None. Both disable a setting.
ZERO_TO_NONE = AfterValidator(lambda value: value or None)
# Names and values of fields. Unlike a dictionary, a tuple can be a cache key.
Fields = tuple[tuple[str, Any], ...]
# The types of content parts that contain text. All routes accept all types, because some clients confuse them.
TEXT_PARTS = {"text", "input_text", "output_text"}
# A limit of -1 means no limit, as in llama.cpp.
TokenLimit = Annotated[int, Field(ge=1), INTEGRAL] | Literal[-1]
TopK = Annotated[
    int, Field(ge=-1), INTEGRAL, AfterValidator(lambda value: min(value, MAX_TOKENS) if value > 0 else None)
]
StopText = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]


class Body(BaseModel):
    """Base class for request bodies and their parts. A string is not accepted as a number, nor a number as a string."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class ContentPart(Body):
    """A content part of a message. Only text is used; other parts, such as images, are ignored."""

    type: str
    text: str | None = None


class Content(Body):
    """The content of a message, either a string or a list of content parts."""

    content: str | Annotated[list[ContentPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """The content as plain text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.type in TEXT_PARTS and part.text)


class Message(Content):
    """A chat message. Messages with roles other than user and assistant are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]


class StreamOptions(Body):
    """Options for streaming responses."""

    include_usage: bool | None = None


class TextFormat(Body):
    """The format of replies, which must be text."""

    type: Literal["text"]


class DecodingFields(Body):
    """The fields that all routes with replies have in common.

    The fields temperature, top_p, top_k, min_p, beam_size and retrieve choose how replies are found. A request without
    any of these fields uses the default of the model.
    """

    user: Any = Field(None, description="An end-user id, for clients that send requests on behalf of several people")
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    model: str | None = Field(None, description="A model id from /v1/models; defaults to the first model")
    n: Annotated[int, Field(ge=1, le=MAX_REPLIES), INTEGRAL] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="0 selects greedy search")
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: TopK | None = Field(None, description="0 or -1 samples from all tokens")
    min_p: Annotated[float, Field(ge=0, le=1), ZERO_TO_NONE] | None = None
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAMS), INTEGRAL] | None = Field(
        None, description="1 selects greedy search"
    )
    retrieve: Annotated[int, Field(ge=0, le=MAX_RETRIEVED), INTEGRAL] | None = Field(
        None, description="The number of candidates to retrieve; 0 disables retrieval"
    )
    min_score: float | None = Field(
        None, description="The minimum score of a reply; if no candidate reaches it, the fallback is sent"
    )
    fallback: Annotated[str, Field(min_length=1, max_length=MAX_FALLBACK_CHARACTERS)] | None = None
    anti_lm: Annotated[float, Field(ge=0, le=10), ZERO_TO_NONE] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, INTEGRAL] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def changed_fields(self) -> Fields:
        """Return the decoding fields whose values differ from the defaults."""
        changed = self.model_dump(include=DECODING, exclude_none=True)
        return tuple((name, value) for name, value in changed.items() if value != getattr(DecodingSettings, name))

    @property
    def end_user_id(self) -> str:
        """The id of the end user, or "" if there is none. Some clients send it inside an object."""
        user_id = self.user.get("id") if isinstance(self.user, dict) else self.user
        return user_id if isinstance(user_id, str) else ""

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, without unprintable ones. A reply is one line of printable text and cannot contain them."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(text for text in texts if text and text.isprintable())

    @property
    def max_reply_tokens(self) -> int | None:
        """The maximum number of tokens in a reply; None for no limit."""
        limit = self.max_completion_tokens or self.max_tokens
        return None if limit in (None, -1) else min(limit, MAX_TOKENS)


class ChatRequest(DecodingFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    response_format: TextFormat | None = None
    tool_choice: Literal["none", "auto"] | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS), INTEGRAL] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """The number of alternatives for each token; None if no log-probabilities are requested."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def replies(self) -> int:
        """The number of requested replies."""
        return self.n or 1

    def bare_questions(self, turns: int) -> list[Question]:
        """Return the last message of the user as a question without decoding settings.

        Consecutive messages of the same role are merged into one. Messages after the last message of the user are
        ignored. If the user has sent no message, the question is empty.

        Args:
            turns: The maximum number of earlier messages that the model reads along with the question.
        """
        merged: list[tuple[str, list[str]]] = []  # The roles and texts of the merged messages, newest first.
        for message in reversed(self.messages):
            if message.role not in {"user", "assistant"} or (not merged and message.role == "assistant"):
                continue
            if merged and merged[-1][0] == message.role:
                merged[-1][1].append(message.text)
            elif len(merged) <= max(1, turns):
                merged.append((message.role, [message.text]))
            else:
                break
        question, *previous = [_join_parts(parts) for _, parts in merged] or [""]
        is_cut = bool(merged) and len("\n".join(merged[0][1])) > len(question)
        return [Question(question, tuple(previous[:turns][::-1]), previous[0] if previous else "", is_cut)]


def _join_parts(parts: Sequence[str]) -> str:
    """Join texts, given from newest to oldest, as lines from oldest to newest. Drop old texts beyond MAX_CHARACTERS."""
    ends = itertools.accumulate(len(part) + 1 for part in parts)
    number = sum(end <= MAX_CHARACTERS for end in ends)
    return "\n".join(parts[: max(1, number)][::-1])[:MAX_CHARACTERS]


class CompletionRequest(DecodingFields):
    """The body of /v1/completions. Each prompt is an independent question without earlier messages."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    best_of: Annotated[int, Field(ge=1, le=1), INTEGRAL] | None = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS), INTEGRAL] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """The number of alternatives for each token; None if no log-probabilities are requested."""
        return self.logprobs

    @property
    def replies(self) -> int:
        """The number of requested replies to all prompts together."""
        return (1 if isinstance(self.prompt, str) else len(self.prompt)) * (self.n or 1)

    def bare_questions(self, turns: int) -> list[Question]:
        """Return each prompt as a question without decoding settings. The argument `turns` is ignored."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [Question(prompt[:MAX_CHARACTERS], is_cut=len(prompt) > MAX_CHARACTERS) for prompt in prompts]


def check_log_probs(body: ChatRequest | CompletionRequest) -> None:
    """Raise ApiError if a request asks for too many log-probabilities."""
    replies = body.replies
    top = body.top_log_probs
    if top is not None and replies * (top + 1) > MAX_LOG_PROBS:
        message = f"logprobs: {top} alternatives per token exceed the limit of {MAX_LOG_PROBS // replies - 1}"
        raise ApiError(400, f"{message} for {replies:,} replies", param="logprobs", code="invalid_value")


def build_questions(
    body: ChatRequest | CompletionRequest,
    questions: Sequence[Question],
    responder: TextResponder,
    client: str,
    repeats: int,
) -> list[Question]:
    """Return the questions of a request with their decoding settings.

    Args:
        body: The body of the request.
        questions: The questions without settings, as returned by `bare_questions`.
        responder: Answers questions with the model. It determines the default decoding settings.
        client: The name of the client.
        repeats: How often the client has recently asked the same question. If the request contains a seed or asks for
            several replies, this number is ignored.

    Raises:
        ApiError: If some fields of the body cannot be combined.
    """
    seed = None if body.seed in (None, RANDOM_SEED) else body.seed % SEEDS
    replies = body.n or 1
    decoding = _choose_decoding(
        responder.chosen,
        responder.decoding,
        responder.retrieval is not None,
        body.changed_fields(),
        replies,
        any_seed=seed is None,
    )
    effective_decoding = decoding or responder.decoding
    may_sample = effective_decoding.samples or replies > 1  # Several replies may have to be sampled.
    if body.min_score is not None and effective_decoding.streams:
        raise _conflict_error("min_score", "a single greedy or sampled reply has no score; omit min_score")
    if body.fallback is not None and not (body.fallback.strip() and body.fallback.isprintable()):
        raise _conflict_error("fallback", "must be one line of printable text that is not blank")
    return [
        dataclasses.replace(
            question,
            decoding=decoding,
            seed=random.randrange(SEEDS) if may_sample and seed is None else seed if may_sample else None,
            stop=body.stops,
            min_score=body.min_score,
            fallback=body.fallback,
            repeats=repeats if body.replies == 1 and seed is None else 0,
            replies=replies,
            max_tokens=body.max_reply_tokens,
            top_log_probs=body.top_log_probs,
            streams=bool(body.stream),
            client=client,
        )
        for question in questions
    ]


@functools.lru_cache(maxsize=256)  # Validating settings is slow, but most requests have the same settings.
def _choose_decoding(
    flags: DecodingSettings, default: DecodingSettings, has_index: bool, changed: Fields, replies: int, any_seed: bool
) -> DecodingSettings | None:
    """Return the decoding settings for a request, or None to use the settings of the command line and the model.

    The default search is simplified if a request does not choose a search, but contains a seed or changes token
    probabilities. Greedy search then replaces beam search, and a single sample replaces the best of several samples.
    If a request asks for more replies than the default search finds, the replies are sampled independently.

    Args:
        flags: The decoding settings of the command line.
        default: The decoding settings of the command line, completed with the defaults of the model.
        has_index: Whether the model supports retrieval.
        changed: The decoding fields of the request that differ from their defaults.
        replies: The number of requested replies.
        any_seed: Whether the request contains no seed, so the server chooses it.
    """
    fields = dict(changed)
    temperature = fields.get("temperature")
    beam_size = fields.pop("beam_size", None)
    retrieve = fields.pop("retrieve", None)
    sampling = {name: fields.pop(name) for name in SAMPLING if name in fields}
    is_greedy = sampling.get("top_p") == 0 or (temperature is not None and temperature < MIN_TEMPERATURE)
    plain = without_search(flags)
    if sampling and not is_greedy:
        for name, value in (("beam_size", beam_size), ("retrieve", retrieve)):
            if value:  # Would need a new graph for each temperature, which is slow.
                raise _conflict_error(
                    name, f"cannot be combined with {next(iter(sampling))}; omit one of the two fields"
                )
        decoding = dataclasses.replace(plain, **sampling)
    elif is_greedy or beam_size is not None:
        decoding = dataclasses.replace(plain, beam_size=beam_size or 1)
    elif retrieve is not None:
        decoding = default
    elif replies > default.hypotheses and not (default.samples and default.hypotheses == 1):
        decoding = one_sample(default)
    elif fields or (default.samples and not any_seed):
        decoding = one_hypothesis(default) if replies == 1 else one_sample(default)
    else:
        return None
    if retrieve is not None:
        if retrieve and not has_index:
            raise _conflict_error("retrieve", "this model does not support retrieval; omit retrieve")
        decoding = dataclasses.replace(decoding, retrieve=str(retrieve or NONE))
    if fields and not decoding.streams:
        name = next(iter(fields))
        raise _conflict_error(name, "only supported by greedy search and sampling; omit beam_size and retrieve")
    return dataclasses.replace(decoding, **fields)


def _conflict_error(field: str, reason: str) -> ApiError:
    return ApiError(400, f"{field}: {reason}", param=field, code="unsupported_value")
