"""Ratings of replies, which change what is looked up at once."""

import os
from pathlib import Path

import pytest

from chatbot.config.training import Settings
from chatbot.corpus.meaning import write_meaning
from chatbot.corpus.retrieval import ELSEWHERE, MEANING, Retrieved
from chatbot.flags import compose
from chatbot.inference.rated_replies import RatedRetrieval
from chatbot.inference.ratings import Rating, append_rating, rating_of
from tests.corpus.test_meaning import use_groups
from tests.corpus.test_retrieval import PAIRS, written

SETTINGS = compose(Settings, max_length=50)
(QUESTION, REPLY), (LIKE, _) = PAIRS[1], PAIRS[2]


class Rated:
    """The retrieval of an index, and its file of ratings."""

    def __init__(self, folder: Path) -> None:
        self.vocabulary = written(folder / "index")
        self.path = folder / "ratings.jsonl"
        self.retrieval = RatedRetrieval(folder / "index", self.vocabulary, SETTINGS, self.path, "weibo")

    def rate(self, rating: Rating, question: str, reply: str, written_to: str | None, model: str = "weibo") -> None:
        """Append a rating, as any process may."""
        append_rating(self.path, rating_of(question, reply, [], rating, model, written_to=written_to))

    def replies(self, question: str) -> dict[str, Retrieved]:
        """What is looked up, by the text of the reply, the most similar first."""
        return {found.pair.reply: found for found in self.retrieval.nearest([question], 5)[0]}


@pytest.fixture
def rated(tmp_path: Path) -> Rated:
    return Rated(tmp_path)


def test_a_reply_rated_bad_is_not_looked_up(rated: Rated) -> None:
    before = rated.replies(QUESTION)
    assert next(iter(before)) == REPLY
    rated.rate("bad", LIKE, REPLY, QUESTION)
    after = rated.replies(QUESTION)
    assert [*after][:4] == [*before][1:]  # and another one
    assert REPLY not in after
    assert REPLY not in rated.replies(LIKE)


def test_many_ratings_of_a_question_leave_no_reply_out(rated: Rated) -> None:
    """Those of replies that nobody looks up, and the newest of many ratings count."""
    before = [*rated.replies(QUESTION)]
    for number in range(50):
        rated.rate("bad", QUESTION, f"{number}", "")
    assert [*rated.replies(QUESTION)] == before
    for number in range(20):
        rated.rate("good", QUESTION, f"好{number}", "")
    rated.rate("bad", QUESTION, REPLY, QUESTION)
    rated.rate("good", QUESTION, "看样子不错", "")
    after = rated.replies(QUESTION)
    assert next(iter(after)) == "看样子不错"
    assert REPLY not in after


def test_a_frequent_reply_rated_bad_is_looked_up_for_other_questions(rated: Rated) -> None:
    """Not for those whose most similar question is one that it was rated bad for."""
    assert "好啊" in rated.replies("今天天气怎么样")
    rated.rate("bad", "今天天气怎么样", "好啊", PAIRS[0][0])
    assert "好啊" not in rated.replies("今天天气怎么样")
    assert "好啊" in rated.replies(PAIRS[6][0])


def test_a_reply_rated_good_is_looked_up(rated: Rated) -> None:
    """Its similarity is that which a training pair with the same question has."""
    rated.rate("good", QUESTION[:-1], "看样子不错", "")
    found = rated.replies(QUESTION[:-1])["看样子不错"]
    assert (found.pair.question, found.similarity, found.pair.rating) == (QUESTION[:-1], pytest.approx(1), "good")
    rated.rate("good", LIKE, "可能吧", "")
    found = rated.replies(QUESTION)["可能吧"]
    like = next(x for x in rated.replies(QUESTION).values() if x.pair.question == LIKE and not x.pair.rating)
    assert found.similarity == pytest.approx(like.similarity)
    assert "可能吧" not in rated.replies("晚安")


@pytest.mark.parametrize("ratings", [("good", "bad"), ("bad", "good"), ("bad", "good", "bad", "good")])
def test_the_last_rating_of_a_pair_counts(rated: Rated, ratings: tuple[Rating, ...]) -> None:
    for rating in ratings:
        rated.rate(rating, "几岁了", REPLY, QUESTION)
    assert (REPLY in rated.replies(QUESTION)) == (REPLY in rated.replies("几岁了")) == (ratings[-1] == "good")


def test_a_reply_rated_good_can_be_rated_bad_by_those_who_get_it(rated: Rated) -> None:
    rated.rate("good", "几岁了", "看样子不错", "")
    rated.rate("good", "晚安", "看样子不错", "几岁了")  # the newer rating is good for both questions
    assert all("看样子不错" in rated.replies(question) for question in ("几岁了", "晚安"))
    rated.rate("bad", "几岁了呀", "看样子不错", "几岁了")
    assert "看样子不错" not in rated.replies("几岁了")


def test_other_ratings_change_nothing(rated: Rated) -> None:
    """Of another model, of replies that nobody knows to be given, and of those that are never looked up."""
    before = rated.replies(QUESTION)
    for model, written_to in (("other", QUESTION), ("weibo", None)):
        rated.rate("good", QUESTION, "看样子不错", written_to, model)
        rated.rate("bad", QUESTION, REPLY, written_to, model)
    for reply in [*(f"看{mark}a" for mark in ELSEWHERE), " ", "很" * 99]:
        rated.rate("good", QUESTION, reply, "")
    rated.rate("good", " ", "好", "")
    assert rated.replies(QUESTION) == before


def test_the_file_is_read_again_when_it_has_changed(rated: Rated, monkeypatch: pytest.MonkeyPatch) -> None:
    rated.rate("bad", QUESTION, REPLY, QUESTION)
    assert REPLY not in rated.replies(QUESTION)
    status, content = rated.path.stat(), rated.path.read_bytes()
    rated.path.write_bytes(b" " * len(content))  # of the same size, as a correction leaves it
    os.utime(rated.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert REPLY in rated.replies(QUESTION)
    rated.path.write_bytes(content)
    assert REPLY not in rated.replies(QUESTION)
    with monkeypatch.context() as patch:
        patch.setattr("chatbot.inference.rated_replies.given_replies", None)
        assert REPLY not in rated.replies(QUESTION)  # it is not read for each question
    rated.path.unlink()
    assert REPLY in rated.replies(QUESTION)
    rated.path.mkdir()
    assert REPLY in rated.replies(QUESTION)


def test_a_reply_rated_good_is_found_by_the_meaning_of_its_question(
    rated: Rated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is rated later; its likenesses are those of a training pair with the same texts."""
    model, retrieval, folder = use_groups(monkeypatch), rated.retrieval, tmp_path / "index"
    write_meaning(folder / MEANING, "e5", retrieval.texts(), retrieval.key)
    rated.retrieval = RatedRetrieval(folder, rated.vocabulary, SETTINGS, rated.path, "weibo")
    assert "看样子不错" not in rated.replies("您称")
    rated.rate("good", "你名", "看样子不错", "")
    found = rated.replies("您称")["看样子不错"]
    asked, question, reply = model.embed(["您称", "你名", "看样子不错"])
    assert (found.similarity, found.meaning) == (0, pytest.approx(1))
    assert (found.meaning, found.shared_meaning) == pytest.approx((asked @ question, asked @ reply), abs=1e-5)
