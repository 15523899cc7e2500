"""Clients that many use, unchanged, against a real server: OpenAI's package, and LangChain's over it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import Limits
from chatbot.inference.questions import Piece, Question
from tests.chat.server.fake_models import FakeEngine, fake_models
from tests.chat.server.running import running

KEY = "key-1"
HELLO: Any = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "你好吗"}]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = fake_models({"a": engine, "b": FakeEngine(most=0)}, tmp_path_factory.mktemp("models"))
    with running(create_app(models, Limits(keys=(b"key-0", KEY.encode())))) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [(model.id, model.object, model.owned_by) for model in models] == [
        (name, "model", "chatbot") for name in ("a", "b")
    ]
    assert models[0].created > 10**9
    assert client.models.retrieve("b") == models[1]


def test_create(client: openai.OpenAI, engine: FakeEngine) -> None:
    made = client.chat.completions.create(model="a", messages=HELLO, n=2, temperature=0, max_completion_tokens=1)
    assert [choice.message.content for choice in made.choices] == ["你好吗"] * 2
    assert [choice.finish_reason for choice in made.choices] == ["length"] * 2
    assert made.usage is not None
    assert made.usage.total_tokens == 5
    decoding = engine.questions[-1].decoding
    assert decoding is not None
    assert decoding.beam_size == 1
    assert made.choices[0].model_extra == {
        "chatbot": {"score": None, "looked_up": False, "question": None, "read": None}
    }
    assert made._request_id


def test_create_with_log_probs(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="a", messages=HELLO, logprobs=True, top_logprobs=2)
    assert made.choices[0].logprobs is not None
    tokens = made.choices[0].logprobs.content or []
    assert [(token.token, token.logprob, len(token.top_logprobs)) for token in tokens] == [
        ("你", -0.5, 2),
        ("好吗", -0.5, 2),
    ]


@pytest.mark.parametrize("usage", [True, False])
def test_create_stream(client: openai.OpenAI, usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(model="a", messages=HELLO, stream=True, n=2, **options))
    assert len({(chunk.id, chunk.created, chunk.system_fingerprint, chunk.object) for chunk in chunks}) == 1
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - usage) + [True] * usage
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == "你好吗"
        assert [choice.finish_reason for choice in choices][-1] == "stop"


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="a", messages=HELLO, logprobs=True) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == "你好吗"
    assert final.choices[0].message.content == "你好吗"


def test_completions(client: openai.OpenAI) -> None:
    made = client.completions.create(model="a", prompt=["你好", "吗"], n=2, logprobs=1)
    assert [choice.text for choice in made.choices] == ["你好", "你好", "吗", "吗"]
    chunks = list(client.completions.create(model="a", prompt="你好", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "你好"


def test_asynchronous(url: str) -> None:
    async def together() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:

            async def one(number: int) -> str | None:
                messages: Any = [{"role": "user", "content": f"你好{number}"}]
                if number % 2:
                    made = await client.chat.completions.create(model="a", messages=messages)
                    return made.choices[0].message.content
                stream = await client.chat.completions.create(model="a", messages=messages, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(16)))

    assert asyncio.run(together()) == [f"你好{number}" for number in range(16)]


@pytest.mark.parametrize(
    ("key", "fields", "error", "param"),
    [
        ("wrong", {}, openai.AuthenticationError, None),
        (KEY, {"model": "../a"}, openai.NotFoundError, "model"),
        (KEY, {"model": "b"}, openai.RateLimitError, None),
        (KEY, {"temperature": 3}, openai.BadRequestError, "temperature"),
        (KEY, {"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format.type"),
        (KEY, {"extra_body": {"beam_size": 99}}, openai.BadRequestError, "beam_size"),
        (KEY, {"messages": [{"role": "robot", "content": "x"}]}, openai.BadRequestError, "messages[0].role"),
        (KEY, {"messages": []}, openai.BadRequestError, "messages"),
    ],
)
def test_errors(url: str, key: str, fields: Any, error: type[openai.APIStatusError], param: str | None) -> None:
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client, pytest.raises(error) as raised:
        client.chat.completions.create(**{"model": "a", "messages": HELLO, **fields})
    assert raised.value.param == param
    assert raised.value.type
    if error is openai.RateLimitError:
        assert raised.value.response.headers["retry-after"] == "1"


def test_error_within_a_stream(client: openai.OpenAI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(question: Question) -> list[Any]:
        return [Piece(0, "你"), RuntimeError("secret")]

    monkeypatch.setattr(engine, "answer", answer)
    with pytest.raises(openai.APIError, match="The server failed"):
        list(client.chat.completions.create(model="a", messages=HELLO, stream=True))


def test_langchain(url: str, engine: FakeEngine) -> None:
    chat = ChatOpenAI(base_url=url, api_key=KEY, model="a", temperature=0.5, stop_sequences=["。"])  # type: ignore[arg-type]
    messages = [SystemMessage("s"), HumanMessage("一"), AIMessage("二"), HumanMessage("三")]
    assert chat.invoke(messages).content == "三"
    assert engine.questions[-1].history == ("一", "二")
    assert engine.questions[-1].decoding is not None
    assert engine.questions[-1].stop == ("。",)
    assert engine.questions[-1].client
    assert "".join(str(chunk.content) for chunk in chat.stream(messages)) == "三"
    assert [message.content for message in chat.batch(["一", "二"])] == ["一", "二"]

    async def asynchronous() -> tuple[Any, str]:
        invoked = await chat.ainvoke("四")
        return invoked.content, "".join([str(chunk.content) async for chunk in chat.astream("五五")])

    assert asyncio.run(asynchronous()) == ("四", "五五")
