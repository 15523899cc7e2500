"""Held-out pairs are prepared like training pairs, but none is dropped."""

import dataclasses

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.tokenizer import without_pair_rules

DROPPING = CorpusSettings(
    clean=("nfkc", "control", "equal", "duplicates"),
    max_reply_frequency=3,
    block_list="blocked.txt",
)


def test_rules_that_drop_pairs_are_removed() -> None:
    kept = without_pair_rules(DROPPING)
    assert kept == CorpusSettings(clean=("nfkc", "control"))
    assert without_pair_rules(CorpusSettings(clean=("equal",))).clean == ("none",)


def test_text_of_questions_and_answers_is_prepared_in_the_same_way() -> None:
    settings = CorpusSettings(columns=("1", "3"), clean=("nfkc",), dictionary="words.txt", cache="elsewhere")
    assert without_pair_rules(settings) == settings
    characters = dataclasses.replace(settings, dictionary=None, tokenizer="char")
    assert without_pair_rules(characters) == characters
