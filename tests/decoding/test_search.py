"""Every search and setting together, on arrays, on tensors and token by token, against the oracle."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.decoding.processors import Prefix, no_repeat_ngram
from chatbot.decoding.search import HYPOTHESIS_PARTS, new_search
from tests.inference.messages import reply_of
from tests.oracle import Ids
from tests.tiny_models import LENGTH, VOCABULARY, Table, sources_of

QUESTIONS = [[5], [6, 7, 8], [9, 9], [10, 5, 6, 7, 8, 9]]
SAMPLING: dict[str, Any] = {"temperature": 1.4, "top_k": 6, "top_p": 0.8, "min_p": 0.1}


def drawn_settings(seed: int) -> DecodingSettings:
    """Any settings of tokens, with each kind of search in turn."""
    rng = np.random.default_rng(seed)

    def some(**choices: Any) -> dict[str, Any]:
        return {name: value for name, value in choices.items() if rng.random() < 0.4}

    flags = some(
        repetition_penalty=2.0, presence_penalty=0.7, frequency_penalty=0.9, no_repeat_ngram=int(rng.choice([1, 2, 9])),
        min_reply_length=int(rng.integers(1, LENGTH + 1)), ban=("他", "ba"), stop=("bb", "你 b"),
    )  # fmt: skip
    if rng.random() < 0.5:
        flags |= {"anti_lm": 0.6, "anti_lm_tokens": int(rng.integers(1, 4))}
    match seed % 4:
        case 0:
            flags |= {"beam_size": 1}
        case 1:
            flags |= some(**SAMPLING) or {"top_p": 0.7}
        case 2:
            flags |= {"candidates": 4, **some(**SAMPLING, length_penalty=0.5, rerank=0.8)}
        case 3:
            flags |= {"beam_size": int(rng.choice([2, 3, 6])), **some(length_penalty=0.4, rerank=0.8)}
    return DecodingSettings(**flags, seed=seed)


def check(table: Table, decoding: DecodingSettings, questions: list[Ids], length: int = LENGTH) -> None:
    """Texts and scores of all candidates are those of the oracle."""
    found = table.responder(decoding, length=length).replier.candidates(sources_of(questions, length))
    for question, replies in zip(questions, found, strict=True):
        expected = table.oracle(length).candidates(decoding, question)
        assert [reply.text for reply in replies] == [text for text, _ in expected], decoding
        scores = [reply.score for reply in replies]
        np.testing.assert_allclose(scores, [score for _, score in expected], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("first", range(0, 48, 12))
def test_arrays_find_the_replies_of_the_oracle(first: int) -> None:
    for seed in range(first, first + 12):
        check(Table(seed), drawn_settings(seed), [*QUESTIONS])


@pytest.mark.parametrize("first", range(64, 80, 4))
def test_tensors_find_the_replies_of_the_oracle(first: int) -> None:
    """Also where it is checked rarely whether all have ended, as on a GPU."""
    for seed in range(first, first + 4):
        check(Table(seed, check_interval=1 + seed % 3), drawn_settings(seed), [*QUESTIONS])


def test_replies_that_come_token_by_token_are_those_of_the_oracle() -> None:
    for seed in range(100, 140):
        if (decoding := drawn_settings(seed)).streams:
            table = Table(seed)
            responder = table.responder(decoding)
            for text in ("a", "b你", "好好", "你a b好"):
                ((expected, _),) = table.oracle().candidates(decoding, responder.source(text, ()).ids)
                assert reply_of(responder, text) == expected, decoding


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("interval", [0, 1], ids=["arrays", "tensors"])
def test_few_possible_replies(length: int, interval: int) -> None:
    """Fewer first ids than beams; a setting that leaves none yields. A model that prefers bytes must end in time."""
    table, banned = Table(3, interval), tuple(map(chr, range(33, 127)))
    table.after[:, VOCABULARY.first_byte :] += 80
    searches = DecodingSettings(beam_size=60), DecodingSettings(candidates=3), DecodingSettings(no_repeat_ngram=1)
    for search in searches:
        decoding = dataclasses.replace(search, ban=banned, min_reply_length=length)
        check(table, decoding, [[5], [6, 7]], length)


def test_a_lone_possible_id_may_be_repeated() -> None:
    log_probs = np.array([[-np.inf, -1.0, -np.inf]], np.float32)
    prefix = Prefix(np.array([[2]]), np.array([[1, 1, 0]]))
    np.testing.assert_array_equal(no_repeat_ngram(log_probs, prefix, 1), log_probs)


def test_what_belongs_to_hypotheses_is_not_kept_with_the_question() -> None:
    """Nor with the empty one, whose state before the first id is no longer its own."""
    table = Table()
    state, generic = table.encode([[5], [6]]), table.encode([[1]])
    automaton = table.responder(decoding := DecodingSettings(beam_size=3, anti_lm=0.5)).replier.automaton
    search, start = new_search(decoding, automaton, table.step, state, generic)
    assert search.generic is not None
    assert not {*HYPOTHESIS_PARTS} & {*search.question, *search.generic}
    assert [x["cells"].shape for x in (start.state, start.generic_state)] == [(6, 1)] * 2
