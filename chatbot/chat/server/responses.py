"""The route /v1/responses, OpenAI's newer chat API. The server does not store responses."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from chatbot.chat.server.completions import Completion, format_event, respond
from chatbot.chat.server.request_bodies import (
    MAX_MESSAGES,
    Body,
    ChatRequest,
    Content,
    DecodingFields,
    Message,
    TextFormat,
    TokenLimit,
)
from chatbot.inference.request import Piece


class InputItem(Content):
    """A chat message. Other items, such as tool calls, have no role and are ignored."""

    role: Literal["system", "developer", "user", "assistant"] | None = None


class TextOptions(Body):
    """Options for the text of a reply."""

    format: TextFormat | None = None


class ResponsesRequest(DecodingFields):
    """The body of /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_output_tokens: TokenLimit | None = None
    text: TextOptions | None = None
    tool_choice: Literal["none", "auto"] | None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] | None = None

    def to_chat_request(self) -> ChatRequest:
        """Return the equivalent request for /v1/chat/completions."""
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [Message(role=item.role, content=item.text) for item in items if item.role is not None]
        fields = {name: getattr(self, name) for name in DecodingFields.model_fields}
        fields |= {"n": None, "max_tokens": self.max_output_tokens or self.max_tokens}
        return ChatRequest(messages=messages or [Message(role="user")], **fields)


class ResponseObject(Completion):
    """Formats a reply as an OpenAI response object or as a stream of events."""

    def to_object(self) -> dict[str, Any]:
        """Return the response object."""
        (reply,) = self.replies
        assert reply.last is not None
        is_truncated = reply.last.finish_reason == "length"
        prompt, tokens = self.usage
        usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0}}
        status = "incomplete" if is_truncated else "completed"
        details = {"reason": "max_output_tokens"} if is_truncated else None
        output = [
            {
                **self._message_object(status, [_text_part(reply.text)]),
                "chatbot": self.finish_fields(reply.last)["chatbot"],
            }
        ]
        return self._response_object(status, output, {**usage, "total_tokens": prompt + tokens}, details)

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Add the next part of the reply, and yield the events that send it to the client."""
        if not self._number:
            yield self._format_event("response.created", response=self._response_object("in_progress", [], None))
            yield self._format_event(
                "response.output_item.added", output_index=0, item=self._message_object("in_progress", [])
            )
            yield self._format_event("response.content_part.added", **self._location, part=_text_part(""))
        if piece.text:
            yield self._format_event("response.output_text.delta", **self._location, delta=piece.text, logprobs=[])
        self.add(piece)

    def final_events(self) -> Iterator[bytes]:
        """Yield the events that end the stream."""
        response = self.to_object()
        (reply,) = self.replies
        yield self._format_event("response.output_text.done", **self._location, text=reply.text, logprobs=[])
        yield self._format_event("response.content_part.done", **self._location, part=_text_part(reply.text))
        yield self._format_event("response.output_item.done", output_index=0, item=response["output"][0])
        yield self._format_event(f"response.{response['status']}", response=response)

    _number = 0  # The sequence number of the next event.

    @property
    def _id(self) -> str:
        """The id of the completion, without its prefix."""
        return str(self.head["id"]).rpartition("-")[2]

    @property
    def _location(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}

    def _format_event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return f"event: {kind}\n".encode() + format_event(data)

    def _message_object(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"type": "message", "id": f"msg_{self._id}", "status": status, "role": "assistant"}
        return {**message, "content": content}

    def _response_object(self, status: str, output: list[Any], usage: Any, details: Any = None) -> dict[str, Any]:
        head = {"id": f"resp_{self._id}", "object": "response", "created_at": self.head["created"]}
        unused = dict.fromkeys(("error", "instructions", "max_output_tokens", "previous_response_id"))
        unused |= {"temperature": None, "top_p": None, "metadata": {}, "parallel_tool_calls": False}
        tools = {"tools": [], "tool_choice": "none", "incomplete_details": details}
        return {**head, "model": self.model, "status": status, "output": output, "usage": usage, **unused, **tools}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Reply to the last message of a chat with an OpenAI response object, or with a stream of events."""
    return await respond(request, body.to_chat_request(), ResponseObject)
