"""/v1/responses with OpenAI's package, whole and as events."""

import re
from typing import Any

import openai
import pytest

from tests.chat.server.fake_models import FakeEngine
from tests.chat.server.test_clients import client, engine, url

__all__ = ["client", "engine", "url"]  # fixtures
CHAT: Any = [
    {"role": "developer", "content": "Be brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "一"}, {"type": "input_image", "image_url": "x"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "二"}]},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
    {"role": "user", "content": "三三"},
]


def test_whole_response(client: openai.OpenAI, engine: FakeEngine) -> None:
    made = client.responses.create(model="a", input=CHAT, temperature=0.5, max_output_tokens=1, tools=[], user="u")
    assert made.output_text == "三三"
    assert (made.status, made.incomplete_details and made.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (2, 1, 3)
    question = engine.questions[-1]
    assert (question.text, question.history, question.max_tokens) == ("三三", ("一", "二"), 1)
    assert question.decoding is not None
    assert question.decoding.temperature == 0.5
    assert re.fullmatch("resp_[0-9a-f]{24}", made.id)
    assert client.responses.create(model="a", input="你好").status == "completed"
    assert engine.questions[-1].text == "你好"
    assert made.output[0].model_extra == {
        "chatbot": {"score": None, "looked_up": False, "question": None, "read": None}
    }


def test_events_of_a_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="a", input="你好", stream=True))
    kinds = ["created", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
    kinds += ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.type for event in events] == [f"response.{kind}" for kind in kinds]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["你", "好"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "你好"
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
    with client.responses.stream(model="a", input="你好吗") as stream:
        assert stream.get_final_response().output_text == "你好吗"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
    ],
)
def test_what_is_not_kept_or_cannot_be_done_is_refused(client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": "a", "input": "你好", **fields})
    assert raised.value.param == param


def test_items_without_a_role_are_no_question(client: openai.OpenAI, engine: FakeEngine) -> None:
    items: Any = [{"type": "function_call_output", "call_id": "1", "output": "x"}]
    client.responses.create(model="a", input=items)
    assert engine.questions[-1].text == ""
