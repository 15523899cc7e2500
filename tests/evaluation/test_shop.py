"""Questions of a shop's customers, found by meaning. They were written after all weights were chosen."""

from pathlib import Path

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.tokenizer import tokenizer
from chatbot.decoding.reply_text import Reply
from chatbot.retrieval.index import Retrieval
from chatbot.retrieval.indexing import index_by_meaning
from chatbot.retrieval.judge import Judge
from chatbot.retrieval.ranking import RetrievedReplies
from tests.retrieval.test_index import written
from tests.tiny_models import Table

FOLDER = Path(__file__).parents[2] / "examples/shop"
EVERY = 2  # of the phrasings, and of the questions from outside


def rows(name: str) -> list[list[str]]:
    """The columns of a file."""
    return [line.split("\t") for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def test_questions_of_a_shop_are_found_in_other_words(tmp_path: Path) -> None:
    """`train.py --data faq.tsv --embeddings e5` for 60 answers, asked in words that are not in the file."""
    answers = [(question, answer) for question, answer in rows("faq.tsv")]
    vocabulary = written(tmp_path / "index", answers, validated=False)
    index_by_meaning(tmp_path / "index", vocabulary, "e5")
    retrieval, tokenise = Retrieval(tmp_path / "index", vocabulary), tokenizer()
    judge = Judge(Table(vocabulary=vocabulary), vocabulary, retrieval)
    search = RetrievedReplies(judge, retrieval, DecodingSettings(retrieve="30"))

    def ranked(texts: list[str]) -> list[list[Reply]]:
        return search.ranked([vocabulary.ids(tokenise(x)) for x in texts], texts, [""] * len(texts), lambda: True)

    phrasings = rows("phrasings.tsv")[::EVERY]
    replies = ranked([text for text, _ in phrasings])
    places = [
        [reply.text for reply in found].index(answer) for (_, answer), found in zip(phrasings, replies, strict=True)
    ]
    assert np.mean(np.array(places) == 0) >= 0.7
    assert np.mean(np.array(places) < 3) >= 0.85
    inside, outside = (
        np.array([found[0].score for found in side])
        for side in (replies, ranked([text for (text,) in rows("outside.txt")[::EVERY]]))
    )
    assert np.mean(inside[:, None] > outside) >= 0.9
