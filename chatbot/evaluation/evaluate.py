"""Everything that is measured of a trained model on held-out pairs."""

from typing import Any

from tqdm import tqdm

from chatbot.corpus.encoding.encode import encode
from chatbot.corpus.encoding.selection import Selection
from chatbot.corpus.encoding.words import Words
from chatbot.corpus.text.tokenizer import text_of
from chatbot.corpus.text.utterance import tokens_of
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.metrics import bleu, distinct, top_reply_share
from chatbot.inference.replier import Replier
from chatbot.model.saved import Trained

BATCH = 64


def evaluate(trained: Trained, words: Words, beam_size: int) -> dict[str, Any]:
    """Likelihood of the reference replies, and BLEU and variety of the model's own."""
    corpus = encode(words, Selection(), trained.vocabulary)
    likelihood = Scorer(trained.model)(corpus.shards)
    replier = Replier(trained.model, trained.vocabulary, trained.settings, beam_size)
    pairs = sorted(((trained.vocabulary.ids(q), text_of(a)) for q, a in words.tokens()), key=_length)
    replies: list[str] = []
    for start in tqdm(
        range(0, len(pairs), BATCH), desc="Replying", unit=" batches", leave=False, delay=2, disable=None
    ):
        replies += replier.best_to([question for question, _ in pairs[start : start + BATCH]])
    tokens = tokens_of(trained.settings.corpus)
    cut = [tokens(reply) for reply in replies]
    return {
        "pairs": len(pairs),
        "tokens": likelihood.tokens,
        "characters": likelihood.characters,
        "perplexity": likelihood.perplexity,
        "nats_per_character": likelihood.nats_per_character,
        "bleu": bleu(replies, [answer for _, answer in pairs]),
        "distinct_1": distinct(cut, 1),
        "distinct_2": distinct(cut, 2),
        "top_reply_share": top_reply_share(replies),
    }


def _length(pair: tuple[list[int], str]) -> int:
    return len(pair[0])
