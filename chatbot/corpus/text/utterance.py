"""What is done to every utterance, in a corpus and in a conversation alike."""

from collections.abc import Callable

from chatbot.config.corpus import NONE, TEXT_RULES, TextSettings
from chatbot.corpus.text.cleaning import cleaner
from chatbot.corpus.text.tokenizer import tokenizer


def tokens_of(settings: TextSettings) -> Callable[[str], list[str]]:
    """The function from any text to its tokens; none for a text without a visible character.

    Raises UserError when the dictionary or a rule's library is missing.
    """
    clean, cut = cleaner(settings.clean), tokenizer(settings.tokenizer, settings.dictionary)
    return lambda text: cut(clean(text))


def without_pair_rules(settings: TextSettings) -> TextSettings:
    """The same treatment of each text, with no pair left out: for pairs that something is measured on."""
    return TextSettings(
        columns=settings.columns,
        clean=tuple(rule for rule in settings.clean if rule in TEXT_RULES) or (NONE,),
        tokenizer=settings.tokenizer,
        dictionary=settings.dictionary,
        cache=settings.cache,
    )
