"""Ratings of replies, which change what is looked up at once."""

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.retrieval import rated_replies, ratings
from chatbot.retrieval.characters import CharacterIndex
from chatbot.retrieval.index import ELSEWHERE, MEANING, Retrieval, Retrieved
from chatbot.retrieval.rated_replies import RatedRetrieval
from chatbot.retrieval.ratings import GivenReply, Rating, append_rating, rating_record
from chatbot.retrieval.vectors import MeaningWriter
from tests.retrieval.test_index import PAIRS, written
from tests.retrieval.test_vectors import use_groups

SETTINGS = compose(Settings, max_length=50)
(QUESTION, REPLY), (LIKE, _) = PAIRS[1], PAIRS[2]


class Rated:
    """The retrieval of an index, and its file of ratings."""

    def __init__(self, folder: Path, validated: bool = True) -> None:
        self.vocabulary = written(folder / "index", validated=validated)
        self.path = folder / "ratings.jsonl"
        self.retrieval = RatedRetrieval(Retrieval(folder / "index", self.vocabulary), SETTINGS, self.path, "weibo")

    def rate(
        self,
        rating: Rating,
        question: str,
        reply: str,
        written_to: str | None,
        model: str = "weibo",
        client: str | None = None,
    ) -> None:
        """Append a rating, as any process may."""
        append_rating(self.path, rating_record(question, reply, [], rating, model, client, written_to=written_to))

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


def test_long_questions_and_answers_are_rated_whole_without_validation(tmp_path: Path) -> None:
    """A validated model must be able to read the reply; see test_other_ratings_change_nothing."""
    rated, question, reply = Rated(tmp_path, validated=False), f"{'问' * 60}题", "很" * 99
    rated.rate("good", question, reply, "")
    assert rated.replies(question)[reply].pair.question == question


@pytest.mark.parametrize("given", [("good", "bad"), ("bad", "good"), ("bad", "good", "bad", "good")])
def test_the_last_rating_of_a_pair_counts(rated: Rated, given: tuple[Rating, ...]) -> None:
    for rating in given:
        rated.rate(rating, "几岁了", REPLY, QUESTION)
    assert (REPLY in rated.replies(QUESTION)) == (REPLY in rated.replies("几岁了")) == (given[-1] == "good")
    if given[-1] == "good":  # the training pair is what it was
        assert rated.replies(QUESTION)[REPLY].pair.rating == ""


def test_a_reply_rated_good_can_be_rated_bad_by_those_who_get_it(rated: Rated) -> None:
    rated.rate("good", "几岁了", "看样子不错", "")
    rated.rate("good", "晚安", "看样子不错", "几岁了")  # the newer rating is good for both questions
    assert all("看样子不错" in rated.replies(question) for question in ("几岁了", "晚安"))
    rated.rate("bad", "几岁了呀", "看样子不错", "几岁了")
    assert "看样子不错" not in rated.replies("几岁了")


@pytest.mark.parametrize(
    ("votes", "is_there"),
    [
        ("a-", True),  # one voice
        ("a- a- a-", True),
        ("a- b-", False),
        ("a- b- c+", True),  # one more says bad, and would decide alone
        ("a- b- c+ d-", False),
        ("a+ b+", True),
        ("a- b- b+", True),  # a later vote in place of an earlier one
        ("a- b+ a+ b- a-", False),
        ("a+ b+ o-", False),  # the operator's
        ("o- a+ b+", False),
        ("o- o+ a- b- c-", True),
    ],
)
def test_votes_are_counted_by_client(rated: Rated, votes: str, is_there: bool) -> None:
    """Also those of clients that asked in other words, and where each vote is read before the next one."""
    others = RatedRetrieval(Retrieval(rated.path.with_name("index"), rated.vocabulary), SETTINGS, rated.path, "weibo")
    for vote in votes.split():
        asked, client = LIKE if vote[0] == "a" else "几岁了", None if vote[0] == "o" else vote[0]
        rated.rate("good" if vote[1] == "+" else "bad", asked, REPLY, QUESTION, client=client)
        rated.replies(QUESTION)
    assert (REPLY in rated.replies(QUESTION)) == is_there
    assert (REPLY in {found.pair.reply for found in others.nearest([QUESTION], 5)[0]}) == is_there


def test_a_new_reply_is_offered_once_two_clients_say_good(rated: Rated) -> None:
    for client, is_there in (("a", False), ("a", False), ("b", True)):
        rated.rate("good", QUESTION, "看样子不错", "", client=client)
        assert ("看样子不错" in rated.replies(QUESTION)) == is_there


def test_what_was_appended_is_added_to_what_was_read(rated: Rated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rating is read once, and each pair is indexed as often as the number of pairs doubles, at most."""
    read, indexed, number = list[int](), list[int](), 128
    given, index = rated_replies.given_replies, rated_replies.character_index

    def counted_given(content: bytes, names: Collection[str]) -> list[GivenReply]:
        found = [*given(content, names)]
        read.append(len(found))
        return found

    def counted_index(texts: Sequence[str]) -> CharacterIndex:
        indexed.append(len(texts))
        return index(texts)

    monkeypatch.setattr(rated_replies, "given_replies", counted_given)
    monkeypatch.setattr(rated_replies, "character_index", counted_index)
    for reply in range(number):
        rated.rate("good", f"{QUESTION}{reply}", f"好{reply}", "")
        assert f"好{reply}" in rated.replies(f"{QUESTION}{reply}")
        rated.rate("good", f"{QUESTION}{reply}", f"好{reply}", "", client="a")  # it is indexed already
        rated.replies(QUESTION)
    assert read == [1] * (2 * number)
    assert sum(len(part.keys) for part in rated.retrieval._read()) == number
    assert sum(indexed) <= number * (1 + math.log2(number))
    assert len(rated.retrieval._read()) <= 1 + math.log2(number)
    rated.rate("bad", f"{QUESTION}0", "好0", "")
    assert "好0" not in rated.replies(f"{QUESTION}0")


def test_ratings_of_full_files_count(rated: Rated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they were read before the file was full or not; a line that is being written is read when it ends."""
    monkeypatch.setattr(ratings, "MAX_FILE_BYTES", 1)
    for number in range(3):
        rated.rate("good", QUESTION, f"好{number}", "")
        expected = {f"好{i}" for i in range(number + 1)}
        assert expected <= rated.replies(QUESTION).keys()
        index = Retrieval(rated.path.with_name("index"), rated.vocabulary)
        new = RatedRetrieval(index, SETTINGS, rated.path, "weibo").nearest([QUESTION], 5)[0]
        assert expected <= {found.pair.reply for found in new}
    content = rated.path.read_bytes()
    with rated.path.open("ab") as file:
        file.write(content.replace("好2".encode(), "好3".encode())[:-5])
    assert "好3" not in rated.replies(QUESTION)
    with rated.path.open("ab") as file:
        file.write(content[-5:])
    assert "好3" in rated.replies(QUESTION)


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
        patch.setattr("chatbot.retrieval.rated_replies.given_replies", None)
        assert REPLY not in rated.replies(QUESTION)  # it is not read for each question
    bad = [rating_record("q", "r", [], "bad", "weibo", client, time="2026") for client in "ab"]
    good = [rating_record("q", "r", [], "good", "weibo", client) for client in "ab"]
    append_rating(rated.path, bad[0])
    assert REPLY not in rated.replies(QUESTION)
    with monkeypatch.context() as patch:  # a correction is no change by hand
        patch.setattr(rated.retrieval, "_reset", None)
        for number, is_there in ((1, True), (0, False)):  # nobody corrects the rating of another client
            append_rating(rated.path, good[number], bad[number])
            assert (b'"rejected": "r"' in rated.path.read_bytes()) == is_there
            assert REPLY not in rated.replies(QUESTION)
    replacing = rated.path.with_name("edited")
    replacing.write_bytes(b" " * 99 + rated.path.read_bytes().replace(REPLY.encode(), b"x" * 99))  # by an editor
    replacing.rename(rated.path)
    assert REPLY in rated.replies(QUESTION)
    rated.path.unlink()
    assert REPLY in rated.replies(QUESTION)
    rated.path.mkdir()
    assert REPLY in rated.replies(QUESTION)


def test_a_reply_rated_good_is_found_by_the_meaning_of_its_question(
    rated: Rated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is rated later; its likenesses are those of a training pair with the same texts."""
    model, retrieval, folder = use_groups(monkeypatch), rated.retrieval, tmp_path / "index"
    MeaningWriter(folder / MEANING, "e5", retrieval.texts(), retrieval.key).write()
    rated.retrieval = RatedRetrieval(Retrieval(folder, rated.vocabulary), SETTINGS, rated.path, "weibo")
    assert "看样子不错" not in rated.replies("您称")
    rated.rate("good", "你名", "看样子不错", "")
    rated.rate("good", "候", "可能吧", "")
    assert "可能吧" in rated.replies("气")
    found = rated.replies("您称")["看样子不错"]
    asked, question, reply = model.embed(["您称", "你名", "看样子不错"])
    assert (found.similarity, found.meaning) == (0, pytest.approx(1))
    assert (found.meaning, found.shared_meaning) == pytest.approx((asked @ question, asked @ reply), abs=1e-5)
