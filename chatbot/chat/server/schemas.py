"""The bodies of requests and of replies, as declared by OpenAI.

Fields of requests that are not here are ignored; null is the default. The bodies of replies are for the OpenAPI
description, and `chatbot.chat.server.completions` makes them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chatbot.config.decoding import MOST_STOP_CHARACTERS

MOST_REPLIES, MOST_PROMPTS, MOST_STOPS, MOST_TOP_LOG_PROBS = 32, 32, 16, 20
# Characters of prompts that the replies of a request may repeat in all.
MOST_ECHOED = 100_000
# Log-probabilities that a request may have for each token, over all of its replies.
MOST_LOG_PROBS = 1024
# Messages of a chat, and parts of a message.
MOST_MESSAGES, MOST_PARTS = 2000, 200
StopText = Annotated[str, Field(max_length=MOST_STOP_CHARACTERS)]
FinishReason = Literal["stop", "length"]


def _without_fraction(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# In JSON, 2.0 is an integer, too.
WHOLE = BeforeValidator(_without_fraction)


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
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatRequest(DecodingFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOG_PROBS), WHOLE] | None = None


class CompletionRequest(DecodingFields):
    """The body of /v1/completions. Each prompt is a question without turns before it."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOG_PROBS), WHOLE] | None = None
    echo: bool | None = None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OtherToken(_Part):
    """A token with its log-probability in nats."""

    token: str
    logprob: float
    bytes: list[int]


class Token(OtherToken):
    """A token of a reply, and the most probable ones at its place."""

    top_logprobs: list[OtherToken]


class ChatLogProbs(_Part):
    """The log-probabilities of a reply's tokens."""

    content: list[Token]
    refusal: None


class ReplyMessage(_Part):
    """A reply as a message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Part):
    """A reply of a chat."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogProbs | None
    finish_reason: FinishReason


class TokenUsage(_Part):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Completion(_Part):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: TokenUsage


class ChatCompletion(_Completion):
    """The body of a reply of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextLogProbs(_Part):
    """The log-probabilities of a reply's tokens."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(_Part):
    """A reply to a prompt."""

    index: int
    text: str
    logprobs: TextLogProbs | None
    finish_reason: FinishReason


class TextCompletion(_Completion):
    """The body of a reply of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


def reply_or_stream(model: type[_Completion]) -> dict[int | str, dict[str, Any]]:
    """Return the description of a route's replies."""
    text = "The replies; with stream, the same as a stream of events that ends with [DONE]"
    return {200: {"model": model, "description": text, "content": {"text/event-stream": {}}}}
