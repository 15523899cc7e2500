"""The measures of replies, against slow and obvious computations."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import ASK, BYTES, EOS, Vocabulary
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import (
    BLOCK,
    Measurer,
    Sample,
    Values,
    bleu,
    chrf,
    ranked_first,
    tokenization_of,
    without_copies,
)
from chatbot.evaluation.report import COLUMNS, table
from chatbot.flags import compose
from chatbot.training.new_model import build_model
from tests.oracle import likelihood
from tests.tiny_models import enlarge, next_id_of

TEXTS = st.lists(st.text("你好吗 啊ab", max_size=6), max_size=15)
# Twelve questions without a common character.
QUESTIONS = ["".join(chr(0x4E00 + 5 * i + j) for j in range(5)) for i in range(12)]
VOCABULARY = Vocabulary([*"你好吗啊他她\u2581", "你好", *BYTES])
MODEL = compose(Settings, rnn_size=8, embedding_size=6).model
SAMPLES = [
    Sample(VOCABULARY.ids(tokens), question, answer)
    for tokens, question, answer in (
        (["你好", "吗"], "你好吗", "好"),
        (["他", "\u2581好"], "他 好", "她好"),
        (["啊"], "啊", "啊"),
    )
]


def measure(questions: Sequence[str], replies: Sequence[str], references: Sequence[str]) -> Values:
    """The measures of replies whose tokens are characters."""
    samples = [Sample([], *pair) for pair in zip(questions, references, strict=True)]
    return Measurer(samples, VOCABULARY, list, None)(replies)


def slow_distinct(replies: list[str], n: int) -> float:
    """Different n-grams over n-grams, from a list of all of them."""
    grams = [reply[i : i + n] for reply in replies for i in range(len(reply)) if i + n <= len(reply)]
    return len(set(grams)) / len(grams) if grams else 0


def slow_repetition(replies: list[str]) -> tuple[float, float, float, float]:
    """The shares of the most common reply, of the ten most common and of repeated replies, and the entropy."""
    if not replies:
        return 0, 0, 0, 0
    shares = sorted((replies.count(reply) / len(replies) for reply in set(replies)), reverse=True)
    repeated = sum(replies.count(reply) > 1 for reply in replies) / len(replies)
    return shares[0], sum(shares[:10]), repeated, -sum(share * math.log(share) for share in shares)


@given(TEXTS)
def test_variety_and_repetition_equal_slow_twins(replies: list[str]) -> None:
    """Empty sets and empty replies included."""
    values = measure(["问"] * len(replies), replies, ["答"] * len(replies))
    visible = [reply.replace(" ", "") for reply in replies]
    for n in (1, 2):
        assert values[f"distinct_{n}"] == pytest.approx(slow_distinct(replies, n))
        assert values[f"distinct_characters_{n}"] == pytest.approx(slow_distinct(visible, n))
    names = ("top_reply_share", "top10_reply_share", "repeated_reply_share", "reply_entropy")
    assert [values[name] for name in names] == pytest.approx([*slow_repetition(replies)])
    assert values["mean_reply_tokens"] == pytest.approx(sum(map(len, replies)) / max(1, len(replies)))
    assert values["question_nats_per_character"] is None


@pytest.mark.parametrize(
    ("references", "tokenization"),
    [
        (["今天天气很好", "ok"], "zh"),
        (["Добрый день", "¿Qué tal?"], "13a"),
        (["今日はとても寒いですね"], "char"),
        (["오늘은 정말 춥네요"], "char"),
        (["The sign says 東京 and nothing else that anyone could read"], "13a"),
        (["123", "…", "😀"], "13a"),
        ([], "13a"),
    ],
)
def test_tokenisation_of_bleu_follows_the_references(references: list[str], tokenization: str) -> None:
    assert tokenization_of(references) == tokenization


def test_bleu_has_the_tokenisation_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """sacrebleu warns of a hundred replies that end in " ."; zh takes "don't" for one token, 13a for more."""
    replies, references = ("it is fine , i don't know .",) * 150, ("it is fine, I don't know.",) * 150
    by_name = {name: bleu(replies, references, name) for name in ("zh", "13a", "char", "none", "intl")}
    # sacrebleu's caches would grow with every validation of a run.
    assert TokenizerZh.__call__.cache_info().currsize == TokenizerRegexp.__call__.cache_info().currsize == 0
    for name, value in by_name.items():
        expected = sacrebleu.corpus_bleu(replies, [references], tokenize=name, force=True).score
        assert value == pytest.approx(expected)
    assert len(set(by_name.values())) >= 4
    assert caplog.records == []


def slow_chrf(replies: list[str], references: list[str]) -> float:
    """The mean over n of precision and of recall of n-grams of characters; recall counts twice (Popovic, 2015)."""
    scores = []
    for n in range(1, 7):
        matches = in_replies = in_references = 0
        for reply, reference in zip(replies, references, strict=True):
            ours, theirs = ([text[i : i + n] for i in range(len(text) - n + 1)] for text in (reply, reference))
            matches += sum(min(ours.count(gram), theirs.count(gram)) for gram in set(ours))
            in_replies, in_references = in_replies + len(ours), in_references + len(theirs)
        scores.append((matches / in_replies, matches / in_references))
    precision, recall = np.mean(scores, axis=0)
    return float(100 * 5 * precision * recall / (4 * precision + recall))


def test_chrf_equals_slow_twin() -> None:
    replies, references = ["我今天很好啊你呢", "他们都不知道"], ["我今天也很好啊你", "他们大概都不知道吧"]
    assert chrf(replies, references) == pytest.approx(slow_chrf(replies, references), rel=1e-6)
    assert bleu([], [], "zh") == chrf([], []) == 0


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (QUESTIONS, 0.1),
        ([question + "嗯" for question in QUESTIONS], 0.1),
        ([question[2] for question in QUESTIONS], 1),
        (QUESTIONS[1:] + QUESTIONS[:1], 0),
        (["嗯"] * 12, 0.1),
        ([""] * 12, 0.1),
        (["".join(QUESTIONS)] * 12, 0),
    ],
    ids=["copy", "copy and more", "a character", "another question's", "no question's", "empty", "all questions"],
)
def test_relevance_of_obvious_replies(replies: list[str], expected: float) -> None:
    """Of a reply that fits another question, nine or ten of twelve draws contain that question: it ranks below.

    Of all questions, a reply keeps the others.
    """
    at_1 = measure(QUESTIONS, replies, QUESTIONS)["relevance_at_1"]
    assert at_1 == pytest.approx(expected, abs=0.03 if expected == 0 else 1e-6)


def test_relevance_is_deterministic_and_needs_ten_questions() -> None:
    replies = [question[i % 5] for i, question in enumerate(QUESTIONS)]
    shares, again = (ranked_first(QUESTIONS, replies) for _ in range(2))
    assert shares is not None
    assert again is not None
    assert shares.tolist() == again.tolist()
    assert measure(QUESTIONS[:9], replies[:9], QUESTIONS[:9])["relevance_at_1"] is None
    assert ranked_first([], []) is None
    # Of ten questions, two are equal: each of both ranks first as often as the other.
    shares = ranked_first([*QUESTIONS[:9], QUESTIONS[0]], [question[2] for question in (*QUESTIONS[:9], QUESTIONS[0])])
    assert shares is not None
    assert shares.tolist() == [0.5, *[1.0] * 8, 0.5]


def test_relevance_covers_every_reply_of_several_blocks() -> None:
    """More pairs than a block."""
    questions = [chr(0x4E00 + i) for i in range(BLOCK + 9)]
    shares = ranked_first(questions, questions)
    assert shares is not None
    assert shares.tolist() == [1.0] * len(questions)


@given(st.text("甲乙丙 丁", max_size=8), st.text("甲乙丙 丁", max_size=8))
def test_copies_are_all_runs_that_occur_in_the_question(reply: str, question: str) -> None:
    """The slow twin looks at every run of every length."""
    visible, asked = reply.replace(" ", ""), question.replace(" ", "")
    marked = [*visible]
    for start in range(len(visible)):
        for end in range(start + 2, len(visible) + 1):
            if visible[start:end] in asked:
                marked[start:end] = "\n" * (end - start)
    parts = without_copies(reply, question)
    assert [*filter(None, parts.split("\n"))] == [*filter(None, "".join(marked).split("\n"))]


def test_table_shows_distinct_beside_relevance_and_is_aligned() -> None:
    """Without a column of what no row has."""
    values = measure(["问"], ["嗯"], ["嗯"])
    lines = table({"model": {**values, "relevance_at_1": 0.5}, "random of this file": values})
    assert len({*map(len, lines)}) == 1
    headings = [heading for heading, *_ in COLUMNS]
    assert {"distinct-2 of characters", "relevance"} <= {*headings}
    assert lines[0].split("  ")[-1] == "mean tokens"
    assert lines[1].split()[:6] == ["model", "0.000", "100.0%", "100.0%", "0.0%", "0.500"]
    assert lines[2].split()[8] == "-"
    assert "relevance" not in table({"model": values})[0]


def test_likelihood_of_questions_given_replies() -> None:
    """One reply is empty, and one has another length than its reference."""
    model = build_model(MODEL, len(VOCABULARY), seed=3)
    enlarge(model)  # so that the direction matters
    next_id = next_id_of(model)
    replies = ["你好他", "", "啊啊"]
    ids = [VOCABULARY.ids("你好他"), [EOS], VOCABULARY.ids("啊啊")]
    expected = -sum(likelihood(next_id, reply, s.ids, ASK) for s, reply in zip(SAMPLES, ids, strict=True))
    measured = Measurer(SAMPLES, VOCABULARY, list, Scorer(model))(replies)["question_nats_per_character"]
    assert measured == pytest.approx(expected / (3 + 2 + 1), rel=1e-5)


def test_random_replies_are_the_references_of_other_questions() -> None:
    samples = [Sample([5], "问", f"答{i}") for i in range(30)]
    measurer = Measurer(samples, VOCABULARY, list, None)
    replies = measurer.random_replies()
    assert sorted(replies) == sorted(measurer.references)
    assert not any(reply == reference for reply, reference in zip(replies, measurer.references, strict=True))
    assert replies == measurer.random_replies()
    assert Measurer(samples[:1], VOCABULARY, list, None).random_replies() == ["答0"]
