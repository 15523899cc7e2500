"""From text to tokens, in the same way for corpora and for chat."""

import dataclasses
from collections.abc import Callable

from chatbot.config.corpus import NONE, TEXT_RULES, CorpusSettings
from chatbot.corpus.text.cleaning import cleaner
from chatbot.corpus.text.tokenizer import tokenizer


def tokens_of(settings: CorpusSettings) -> Callable[[str], list[str]]:
    """Return the function from a text to its tokens. A text without visible characters has no tokens.

    Raises UserError when the dictionary or the library of a rule is missing.
    """
    clean, tokenise = cleaner(settings.clean), tokenizer(settings.tokenizer, settings.dictionary)
    return lambda text: tokenise(clean(text))


def without_pair_rules(settings: CorpusSettings) -> CorpusSettings:
    """Return the settings without the rules that drop pairs, for validation and evaluation."""
    return dataclasses.replace(
        settings,
        clean=tuple(rule for rule in settings.clean if rule in TEXT_RULES) or (NONE,),
        min_characters=1,
        max_characters=None,
        max_reply_frequency=None,
        block_list=None,
    )
