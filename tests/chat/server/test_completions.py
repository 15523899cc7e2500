"""From what the engine answers to the objects of the API."""

from chatbot.chat.server.completions import Choices, Completion, chunks, first_chunk, new_completion
from chatbot.chat.server.schemas import ChatCompletion, TextCompletion
from chatbot.inference.questions import Piece, Question, TokenLogProb, Usage

CHAT = Completion("chatcmpl-1", 9, "a", "a-step-1", chat=True)
TEXT = Completion("cmpl-1", 9, "a", "a-step-1", chat=False)
TOKENS = (TokenLogProb("你", -0.5, (("你", -0.5), ("我", -1.0))), TokenLogProb("好", -0.25))
COMMON = {"id": "chatcmpl-1", "created": 9, "model": "a", "system_fingerprint": "a-step-1"}


def answered(completion: Completion, echoes: tuple[str, ...] = (), log_probs: bool = True) -> Choices:
    """A question with two replies, which arrive in turns."""
    choices = Choices(completion, [Question("q", ("h",), replies=2)], echoes, log_probs)
    for item in (Piece(1, "b"), Piece(0, "你好", TOKENS), Piece(1, "", (), "length"), Piece(0, "", (), "stop")):
        choices.add(item)
    choices.add(Usage(3, 4))
    return choices


def test_whole_chat() -> None:
    found = answered(CHAT).whole()
    ChatCompletion.model_validate(found)
    first, second = found.pop("choices")
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert found == {**COMMON, "object": "chat.completion", "usage": usage}
    assert first["message"] == {"role": "assistant", "content": "你好", "refusal": None}
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "b", "length")
    token = {"token": "你", "logprob": -0.5, "bytes": [228, 189, 160]}
    other = {"token": "我", "logprob": -1.0, "bytes": [230, 136, 145]}
    assert first["logprobs"]["content"][0] == {**token, "top_logprobs": [token, other]}
    assert answered(CHAT, log_probs=False).whole()["choices"][0]["logprobs"] is None


def test_whole_completion() -> None:
    found = answered(TEXT, ("q",)).whole()
    TextCompletion.model_validate(found)
    assert found["choices"][0] == {
        "index": 0,
        "text": "q你好",
        "finish_reason": "stop",
        "logprobs": {
            "tokens": ["你", "好"],
            "token_logprobs": [-0.5, -0.25],
            "top_logprobs": [{"你": -0.5, "我": -1.0}, {}],
            "text_offset": [1, 2],
        },
    }


def test_chunks_of_a_chat() -> None:
    role = first_chunk(CHAT, 1, "")["choices"][0]
    assert (role["index"], role["delta"]["role"]) == (1, "assistant")
    text, end = chunks(CHAT, Piece(1, "好", (), "stop"), log_probs=False, before=0)
    choice = {"index": 1, "logprobs": None}
    object_ = {**COMMON, "object": "chat.completion.chunk"}
    assert text == {**object_, "choices": [{**choice, "delta": {"content": "好"}, "finish_reason": None}]}
    assert end == {**object_, "choices": [{**choice, "delta": {}, "finish_reason": "stop"}]}
    assert chunks(CHAT, Piece(0, ""), log_probs=False, before=0) == []
    assert answered(CHAT).usage_chunk()["choices"] == []


def test_chunks_of_a_completion() -> None:
    assert first_chunk(TEXT, 0, "q")["choices"][0]["text"] == "q"
    text, end = chunks(TEXT, Piece(0, "好", TOKENS[1:], "stop"), log_probs=True, before=1)
    assert text["choices"][0]["logprobs"]["text_offset"] == [1]
    assert (text["object"], end["choices"][0]["text"]) == ("text_completion", "")


def test_search_that_finds_fewer_replies_than_asked_for() -> None:
    choices = Choices(CHAT, [Question("q", replies=3)], (), log_probs=False)
    made = [chunk for reply in (1, 0) for chunk in choices.chunks(Piece(reply, "你", (), "stop"))]
    assert [chunk["choices"][0]["index"] for chunk in made] == [0, 1, 1, 1, 0, 0]
    assert len(choices.whole()["choices"]) == choices.answered == 2


def test_replies_that_were_not_found_have_no_chunks() -> None:
    """A search finds one of two replies to the first question, and the first one to the second."""
    choices = Choices(TEXT, [Question("q", replies=2), Question("r", replies=2)], (), log_probs=False)
    made = [chunk for reply in (0, 2) for chunk in choices.chunks(Piece(reply, "你", (), "stop"))]
    assert [chunk["choices"][0]["index"] for chunk in made] == [0, 0, 0, 2, 2, 2]


def test_ids_differ_and_lines_of_the_log_hold_the_turns() -> None:
    assert new_completion("a", "f", True).id != new_completion("a", "f", True).id
    assert list(answered(CHAT).lines()) == ['{"model":"a","created":9,"turns":["h","q"],"replies":["你好","b"]}']
