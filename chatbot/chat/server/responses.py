"""/v1/responses, as newer clients of OpenAI call it: a chat in another form. Nothing is kept for the next call."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from chatbot.chat.server.completions import Completion, respond
from chatbot.chat.server.request_bodies import (
    MOST_MESSAGES,
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
    """A message of a chat. Items of other types, such as calls of tools, have no role and are ignored."""

    role: Literal["system", "developer", "user", "assistant"] | None = None


class TextOptions(Body):
    """Options of the text of a reply."""

    format: TextFormat | None = None


class ResponsesRequest(DecodingFields):
    """The body of /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_output_tokens: TokenLimit | None = None
    text: TextOptions | None = None
    tool_choice: Literal["none", "auto"] | None = None
    previous_response_id: None = None
    conversation: None = None
    background: Literal[False] | None = None

    def chat(self) -> ChatRequest:
        """Return the same request for /v1/chat/completions."""
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [Message(role=item.role, content=item.text) for item in items if item.role is not None]
        fields = {name: getattr(self, name) for name in DecodingFields.model_fields}
        fields |= {"n": None, "max_tokens": self.max_output_tokens or self.max_tokens}
        return ChatRequest(messages=messages or [Message(role="user")], **fields)


class ResponseObject(Completion):
    """A reply in the form of OpenAI's response objects, and of the events of their streams."""

    def whole(self) -> dict[str, Any]:
        """Return the object that is not streamed."""
        (reply,) = self.replies
        assert reply.last is not None
        is_cut = reply.last.finish_reason == "length"
        prompt, tokens = self.usage
        usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0}}
        status = "incomplete" if is_cut else "completed"
        details = {"reason": "max_output_tokens"} if is_cut else None
        output = [{**self._message(status, [_part(reply.text)]), "chatbot": self.end_of(reply.last)["chatbot"]}]
        return self._object(status, output, {**usage, "total_tokens": prompt + tokens}, details)

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Add the next piece of the reply, and yield its events."""
        if not self._number:
            yield self._event("response.created", response=self._object("in_progress", [], None))
            yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress", []))
            yield self._event("response.content_part.added", **self._place, part=_part(""))
        if piece.text:
            yield self._event("response.output_text.delta", **self._place, delta=piece.text, logprobs=[])
        self.add(piece)

    def last_events(self) -> Iterator[bytes]:
        """Yield the events after the whole reply."""
        whole, (reply,) = self.whole(), self.replies
        yield self._event("response.output_text.done", **self._place, text=reply.text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=_part(reply.text))
        yield self._event("response.output_item.done", output_index=0, item=whole["output"][0])
        yield self._event(f"response.{whole['status']}", response=whole)

    _number = 0  # of events

    @property
    def _key(self) -> str:
        """The id of the chat without its kind."""
        return str(self.head["id"]).rpartition("-")[2]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._key}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return f"event: {kind}\n".encode() + b"data: " + data + b"\n\n"

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        message = {"type": "message", "id": f"msg_{self._key}", "status": status, "role": "assistant"}
        return {**message, "content": content}

    def _object(self, status: str, output: list[Any], usage: Any, details: Any = None) -> dict[str, Any]:
        head = {"id": f"resp_{self._key}", "object": "response", "created_at": self.head["created"]}
        absent = dict.fromkeys(("error", "instructions", "max_output_tokens", "previous_response_id"))
        absent |= {"temperature": None, "top_p": None, "metadata": {}, "parallel_tool_calls": False}
        tools = {"tools": [], "tool_choice": "none", "incomplete_details": details}
        return {**head, "model": self.model, "status": status, "output": output, "usage": usage, **absent, **tools}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Reply to the last message of a chat, with a response of OpenAI's, or with `stream` its events."""
    return await respond(request, body.chat(), ResponseObject)
