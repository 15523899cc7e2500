"""From what the engine answers to the objects of the API."""

import json
from typing import Any

from chatbot.chat.server.replies import Completion
from chatbot.inference.questions import Piece, Question, TokenLogProb, Usage
from chatbot.inference.reply_text import Origin

TOKENS = (TokenLogProb("你", -0.5, (("你", -0.5), ("我", -1.0))), TokenLogProb("好", -0.25))
COMMON = {"model": "a", "system_fingerprint": "a-step-1"}


def completion(*questions: Question, chat: bool, log_probs: bool = False) -> Completion:
    return Completion("a", "a-step-1", questions, chat=chat, log_probs=log_probs)


def answered(chat: bool, log_probs: bool = True) -> Completion:
    """A question with two replies, which arrive in turns."""
    made = completion(Question("q", ("h",), replies=2), chat=chat, log_probs=log_probs)
    for item in (Piece(1, "b"), Piece(0, "你好", TOKENS), Piece(1, "", (), "length"), Piece(0, "", (), "stop")):
        made.add(item)
    made.add(Usage(3, 4))
    return made


def common(made: dict[str, Any], prefix: str) -> dict[str, Any]:
    """An object without its id and its time, which are checked."""
    assert made["id"].startswith(prefix)
    assert made["created"] > 10**9
    return {name: value for name, value in made.items() if name not in ("id", "created")}


def test_whole_chat() -> None:
    found = common(answered(chat=True).whole(), "chatcmpl-")
    first, second = found.pop("choices")
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert found == {**COMMON, "object": "chat.completion", "usage": usage}
    assert first["message"] == {"role": "assistant", "content": "你好", "refusal": None}
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "b", "length")
    token = {"token": "你", "logprob": -0.5, "bytes": [228, 189, 160]}
    other = {"token": "我", "logprob": -1.0, "bytes": [230, 136, 145]}
    assert first["logprobs"]["content"][0] == {**token, "top_logprobs": [token, other]}
    assert answered(chat=True, log_probs=False).whole()["choices"][0]["logprobs"] is None


def test_whole_completion() -> None:
    found = answered(chat=False).whole()
    assert found["choices"][0] == {
        "index": 0,
        "text": "你好",
        "finish_reason": "stop",
        "chatbot": {"score": None, "looked_up": False, "question": None, "read": None},
        "logprobs": {
            "tokens": ["你", "好"],
            "token_logprobs": [-0.5, -0.25],
            "top_logprobs": [{"你": -0.5, "我": -1.0}, {}],
            "text_offset": [0, 1],
        },
    }


def test_where_a_reply_comes_from_and_what_was_read() -> None:
    made = completion(Question("q", replies=2), chat=True)
    for number, is_rated in enumerate((False, True)):
        made.add(Piece(number, "a", (), "stop", Origin("你好", is_rated), 1.5, "的一部分"))
    first, second = (choice["chatbot"] for choice in made.whole()["choices"])
    assert first == {"score": 1.5, "looked_up": True, "question": "你好", "read": "的一部分"}
    assert second == {**first, "question": None}  # of another user, who rated it


def test_chunks_of_a_chat() -> None:
    made = completion(Question("q", replies=2), chat=True)
    *begin, text, end = made.chunks(Piece(1, "好", (), "stop"))
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]["role"]) for chunk in begin] == [
        (0, "assistant"),
        (1, "assistant"),
    ]
    choice = {"index": 1, "logprobs": None}
    object_ = {**COMMON, "object": "chat.completion.chunk"}
    assert common(text, "chatcmpl-") == {
        **object_,
        "choices": [{**choice, "delta": {"content": "好"}, "finish_reason": None}],
    }
    ours = {"score": None, "looked_up": False, "question": None, "read": None}
    last = {**choice, "delta": {}, "finish_reason": "stop", "chatbot": ours}
    assert common(end, "chatcmpl-") == {**object_, "choices": [last]}
    assert list(made.chunks(Piece(0, ""))) == []
    assert made.usage_chunk()["choices"] == []


def test_chunks_of_a_completion() -> None:
    made = completion(Question("q"), chat=False, log_probs=True)
    first, before = made.chunks(Piece(0, "你", TOKENS[:1]))
    assert first["choices"][0]["text"] == ""
    text, end = made.chunks(Piece(0, "好", TOKENS[1:], "stop"))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in (before, text)] == [[0], [1]]
    assert (text["object"], end["choices"][0]["text"]) == ("text_completion", "")


def test_search_that_finds_fewer_replies_than_asked_for() -> None:
    made = completion(Question("q", replies=3), chat=True)
    chunks = [chunk for reply in (1, 0) for chunk in made.chunks(Piece(reply, "你", (), "stop"))]
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 1, 1, 0, 0]
    assert len(made.whole()["choices"]) == 2


def test_replies_that_were_not_found_have_no_chunks() -> None:
    """A search finds one of two replies to the first question, and the first one to the second."""
    made = completion(Question("q", replies=2), Question("r", replies=2), chat=False)
    chunks = [chunk for reply in (0, 2) for chunk in made.chunks(Piece(reply, "你", (), "stop"))]
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 0, 0, 2, 2, 2]
    assert [choice["index"] for choice in made.whole()["choices"]] == [0, 2]


def test_ids_differ_and_lines_of_the_log_hold_the_turns() -> None:
    assert answered(chat=True).whole()["id"] != answered(chat=True).whole()["id"]
    made = completion(Question("q", ("h",), replies=2), Question("r", replies=2), chat=False)
    for reply, text in ((1, "b"), (0, "a"), (3, "d")):
        made.add(Piece(reply, text, (), "stop"))
    first, second = map(json.loads, made.lines())
    assert (first["turns"], first["replies"]) == (["h", "q"], ["a", "b"])
    assert (second["turns"], second["replies"], second["model"]) == (["r"], ["d"], "a")


def test_a_line_of_the_log_has_no_control_characters() -> None:
    text = "你\x85\u202e好\x7f\x00\u2066"
    (line,) = completion(Question(text), chat=True).lines()
    assert line.isprintable()
    assert "你" in line
    assert json.loads(line)["turns"] == [text]
