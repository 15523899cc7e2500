"""Replies that people wrote, of which the model chooses, and the search where there is none."""

import dataclasses
from typing import Any

import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary
from chatbot.decoding.reply_text import Origin, Reply
from chatbot.errors import UserError
from chatbot.inference.request import Piece, Question
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.index import Pair, Retrieved
from chatbot.retrieval.judge import BY_CHARACTERS, PLAUSIBLE_SCORE, WITHOUT_MODEL
from chatbot.retrieval.ranking import MAX_COMMON, MAX_SCORED
from tests.inference.messages import answers_of, best_of, replies_of, reply_of
from tests.oracle import likelihood
from tests.tiny_models import LENGTH, Table, sources_of

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "天", *BYTES])
OFFERS = [([7], 0.9, 0.1), ([6, 8], 0.4, 0.5), ([7, 9, 7], 0.3, 0.2)]
RETRIEVE = DecodingSettings(beam_size=3, retrieve="5")


class FakeRetrieval:
    """Offers the same replies, in this order, to each question with 你, and nothing to others."""

    is_rated, is_validated, meaning, weights, min_score = False, True, None, None, None

    def __init__(self, *offers: tuple[list[int], float, float], **changes: Any) -> None:
        # A similarity of 1 is of the very question.
        pairs = [Pair("你好天" if x == 1 else f"question {ids}", VOCABULARY.text(ids), ids) for ids, x, _ in offers]
        self._offers = [Retrieved(pair, a, 0.0, b, 0.0, 0.0) for pair, (_, a, b) in zip(pairs, offers, strict=True)]
        self.looked_up = list[str]()
        vars(self).update(changes)

    def nearest(self, questions: list[str], number: int) -> list[list[Retrieved]]:
        self.looked_up += questions
        return [self._offers[:number] if "你" in question else [] for question in questions]

    def log_probability(self, reply: list[int]) -> float:
        return -0.1 * sum(reply)


TABLE = Table(vocabulary=VOCABULARY)


def responder(*offers: Any, decoding: DecodingSettings = RETRIEVE, **changes: Any) -> TextResponder:
    return TABLE.responder(decoding, FakeRetrieval(*offers, **changes))


def ranked(one: TextResponder, text: str = "你好天") -> list[Reply]:
    """What is found for a text, the best first."""
    return one.replier.candidates([one.source(text, ())])[0]


@pytest.mark.parametrize("changed", [{}, {"similarity": 1.0, "shared": 30.0, "log_probability": 2.0}])
def test_replies_are_ranked_by_model_and_similarity(changed: dict[str, float]) -> None:
    weights = {**BY_CHARACTERS, **changed}
    one = responder(*OFFERS, weights=weights if changed else None)
    question = one.source("你好天", ()).ids
    expected = {}
    for ids, similarity, shared in OFFERS:
        of_reply = weights["log_probability"] * likelihood(TABLE.next_id, question, ids)
        by_token = (of_reply - weights["common"] * 0.1 * sum(ids)) / (len(ids) + 1)
        of_pair = weights["similarity"] * similarity + weights["shared"] * shared
        expected[VOCABULARY.text(ids)] = by_token + of_pair
    replies = ranked(one)
    assert {reply.text: reply.score for reply in replies} == pytest.approx(expected, rel=1e-4)
    assert [reply.text for reply in replies] == sorted(expected, key=lambda text: -expected[text])
    assert replies[0].origin == Origin(f"question {replies[0].ids}")
    assert one.origin("你好天", replies[1].text) == replies[1].origin
    assert one.origin("你好天", "别的") == Origin()


@pytest.mark.parametrize("history", [0, 2])
@pytest.mark.parametrize("text", ["你好天" * LENGTH, "你\n" * LENGTH + "好天吗", "你\n" + "好天吗" * LENGTH, "你好"])
def test_a_question_is_looked_up_whole(text: str, history: int) -> None:
    """Of the same question, the model reads the beginning or the last lines. Evaluation has ids alone."""
    vocabulary = Vocabulary([*VOCABULARY.id_of, *MARKS, *BYTES]) if history else VOCABULARY
    retrieval = FakeRetrieval(*OFFERS)
    one = Table(vocabulary=vocabulary).responder(RETRIEVE, retrieval, history=history)
    turns = ["好"] * history
    source = one.source(text, turns)
    (reply,) = best_of(one, text, history=turns)
    assert len(source.ids) <= LENGTH
    assert one.origin(text, reply.text, turns) == reply.origin
    of_history = [vocabulary.first_mark, *source.question] if history else source.question
    assert one.replier.replies([of_history])
    assert {*retrieval.looked_up} == {text.replace("\n", " ")}


@pytest.mark.parametrize(
    ("similarity", "weights"), [(0.9, None), (0.05, None), (0.05, {**BY_CHARACTERS, "shared": 7.0})]
)
def test_model_scores_the_best_by_similarity_or_also_common_ones(similarity: float, weights: Any) -> None:
    """The fake index finds ids with low numbers more common, which are chosen by constants alone."""
    offers = [([9] * n, similarity, 0.0) for n in range(1, MAX_SCORED + 1)]
    others = [([8, i], 0.0, 0.0) for i in range(6, 6 + MAX_COMMON + 2)]
    many = dataclasses.replace(RETRIEVE, retrieve="30")
    one = responder(*others, *offers, decoding=many, weights=weights)
    replies = [[*reply.ids] for reply in ranked(one)]
    expected = offers if similarity == 0.9 or weights else [*offers, *others[:MAX_COMMON]]
    assert sorted(replies) == sorted(ids for ids, *_ in expected)


def test_of_equally_similar_replies_the_model_reads_the_less_common() -> None:
    offers = [([6 + number % 5, 6 + number // 5], 0.9, 0.0) for number in range(MAX_SCORED + 2)]
    one = responder(*offers, decoding=dataclasses.replace(RETRIEVE, retrieve="30"))
    read = [[*reply.ids] for reply in ranked(one)]
    assert sorted(read) == sorted(sorted((ids for ids, *_ in offers), key=lambda ids: -sum(ids))[:MAX_SCORED])


def test_without_a_plausible_reply_the_most_probable_one_is_chosen() -> None:
    """By the constants; fitted weights choose the best score."""
    offers = ([7, 9, 7], 0.2, 0.0), ([7], 0.05, 0.0), ([6, 8], 0.1, 0.1), ([8, 8], 0.3, 0.0), ([9], 0.0, 0.0)
    one = responder(*offers)
    question = one.source("你好天", ()).ids
    replies = ranked(one)
    assert all(reply.score < PLAUSIBLE_SCORE for reply in replies)
    values = [likelihood(TABLE.next_id, question, reply.ids) for reply in replies]
    assert values == sorted(values, reverse=True)
    scores = [reply.score for reply in replies]
    assert scores != sorted(scores, reverse=True)
    fitted = ranked(responder(*offers, weights={**BY_CHARACTERS, "common": -0.61}))
    assert [reply.score for reply in fitted] == sorted((reply.score for reply in fitted), reverse=True)


def test_without_validation_the_model_neither_judges_nor_replies() -> None:
    """The fallback is given where nothing is found, and where no reply has the least score that was fitted."""
    offers = [([7, 9], 0.05 * n, 0.3 - 0.07 * n) for n in range(MAX_SCORED + 2)]
    one = responder(
        *[([*ids, 6 + n % 5, 6 + n // 5], a, b) for n, (ids, a, b) in enumerate(offers)],
        decoding=dataclasses.replace(RETRIEVE, retrieve="30"),
        is_validated=False,
    )
    expected = sorted(
        (WITHOUT_MODEL["similarity"] * a + WITHOUT_MODEL["shared"] * b for _, a, b in offers), reverse=True
    )
    assert [reply.score for reply in ranked(one)] == pytest.approx(expected)
    assert reply_of(responder(([6, 7, 9], 0.9, 1), is_validated=False), "你好天") == "你好天"  # as it is written
    exact = responder(([7, 8], 0.9, 0.9), ([8, 8], 1, 0.0), ([9, 8], 0.8, 0.9), is_validated=False, min_score=9.0)
    assert [reply.text for reply in ranked(exact)] == ["吗吗"]  # whatever its likeness
    decoding = dataclasses.replace(RETRIEVE, fallback="?")
    for least, reply in ((0.3, "你吗"), (0.5, "?")):
        asked = responder(([6, 8], 0.4, 0.0), decoding=decoding, is_validated=False, min_score=least)
        assert best_of(asked, "你好天", 9)[0].text == reply_of(asked, "你好天") == reply
        assert replies_of(asked, ["天天", "你好天", " "])[:2] == ["?", reply]
    chosen = dataclasses.replace(decoding, min_score=0.1)  # in place of the fitted one
    assert (
        reply_of(responder(([6, 8], 0.4, 0.0), decoding=chosen, is_validated=False, min_score=0.5), "你好天") == "你吗"
    )


def test_weights_of_another_version_are_refused() -> None:
    with pytest.raises(UserError, match=r"^judge\.json of the attempt's index: damaged, or of a different version"):
        responder(*OFFERS, weights={"similarity": 1.0})


def test_unused_fallback_is_refused() -> None:
    with pytest.raises(UserError, match="--fallback: not used without --min-score"):
        responder(*OFFERS, decoding=dataclasses.replace(RETRIEVE, fallback="?"))


def test_unwanted_replies_are_not_returned() -> None:
    one = responder(*OFFERS)
    while_nothing_is_computed = iter([True])
    assert one.replier.candidates(sources_of([[6]]), is_wanted=lambda: next(while_nothing_is_computed, False)) == [[]]


def test_other_questions_are_answered_by_the_search() -> None:
    """Where nothing is similar, or every reply repeats the question."""
    search = responder(decoding=DecodingSettings(beam_size=3, retrieve="none"))
    texts = ["天天", "你好", "吗吗吗", "你好天"]
    both = responder(*OFFERS)
    batch = replies_of(both, texts)
    assert batch == [reply_of(both, text) for text in texts]
    assert [batch[0], batch[2]] == replies_of(search, ["天天", "吗吗吗"])
    assert {batch[1], batch[3]} <= {VOCABULARY.text(ids) for ids, *_ in OFFERS}
    assert reply_of(responder(([6, 7, 9], 0.9, 1)), "你好天") == reply_of(search, "你好天")
    assert both.origin("天天", batch[0]) == search.origin("天天", batch[0]) == Origin()


def test_the_last_reply_is_not_looked_up_again() -> None:
    """Also by a model that reads no turns; without another one, the search replies."""
    one, alone = responder(*OFFERS), responder(OFFERS[0])
    best, second, *_ = (reply.text for reply in ranked(one))
    search = responder(decoding=DecodingSettings(beam_size=3, retrieve="none"))
    for asked, expected in ((one, second), (alone, reply_of(search, "你好天"))):
        assert reply_of(asked, "你好天") == best
        assert reply_of(asked, "你好天", ["天", best]) == reply_of(asked, "你好天", last_reply=best) == expected
        assert reply_of(asked, "你好天", ["天", best], last_reply="") == best
    assert one.origin("你好天", second, ["天", best]) == Origin("question [6, 8]")
    assert one.origin("你好天", best, ["天", best]) == Origin("question [7]")


def test_the_engine_gives_the_replies_and_where_they_come_from() -> None:
    for decoding in (RETRIEVE, DecodingSettings(beam_size=1, retrieve="3")):
        one = responder(*OFFERS, decoding=decoding)
        for text in ("你好天", "天天"):
            (reply,) = best_of(one, text)
            ((piece, _),) = answers_of(one, Question(text))
            assert isinstance(piece, Piece)
            assert piece.text == reply.text == reply_of(one, text)
            assert piece.origin == reply.origin == one.origin(text, reply.text)


@pytest.mark.parametrize("rule", [{"ban": ("好天",)}, {"min_reply_length": 4}, {"stop": ("好",)}])
def test_rules_of_any_reply_hold_for_looked_up_ones(rule: dict[str, Any]) -> None:
    """Also where that leaves none: the search keeps to them, too. A stop text ends them."""
    decoding = DecodingSettings(beam_size=3, retrieve="3", **rule)
    forbidden, allowed = ([7, 9, 7], 0.9, 1), ([9, 6, 9, 6], 0.5, 1)
    assert reply_of(responder(forbidden, allowed, decoding=decoding), "你你") == "天你天你"
    search = responder(decoding=DecodingSettings(beam_size=3, retrieve="none", **rule))
    assert reply_of(responder(forbidden, decoding=decoding), "你你") == reply_of(search, "你你")
    stopped = DecodingSettings(beam_size=3, retrieve="3", stop=("天",))
    assert reply_of(responder(forbidden, decoding=stopped), "你你") == "好"
