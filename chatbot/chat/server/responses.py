"""The bodies of replies, for the OpenAPI description. `chatbot.chat.server.completions` makes them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length"]


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
