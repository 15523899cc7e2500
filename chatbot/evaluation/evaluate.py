"""Everything that is measured of a trained model on held-out pairs."""

from typing import Any

from tqdm import tqdm

from chatbot.corpus.encoded import encode
from chatbot.corpus.pairs import WordPair
from chatbot.corpus.tokenizer import text_of, words
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.metrics import bleu, distinct, top_reply_share
from chatbot.evaluation.replies import Replier
from chatbot.model.saved import Trained

BATCH = 64


def evaluate(trained: Trained, pairs: list[WordPair], beam_size: int) -> dict[str, Any]:
    """Likelihood of the reference replies, and BLEU and variety of the model's own."""
    likelihood = Scorer(trained.model)(encode(pairs, trained.vocabulary))
    replier = Replier(trained.model, trained.vocabulary, trained.settings.max_length, beam_size)
    questions = sorted(((text_of(question), i) for i, (question, _) in enumerate(pairs)), key=_length)
    replies = [""] * len(pairs)
    for start in tqdm(range(0, len(pairs), BATCH), desc="Replying", unit=" batches", leave=False, delay=2):
        part = questions[start : start + BATCH]
        for (_, i), reply in zip(part, replier.best([text for text, _ in part]), strict=True):
            replies[i] = reply
    cut = [words(reply) for reply in replies]
    return {
        "pairs": len(pairs),
        "tokens": likelihood.tokens,
        "characters": likelihood.characters,
        "perplexity": likelihood.perplexity,
        "nats_per_character": likelihood.nats_per_character,
        "bleu": bleu(replies, [text_of(answer) for _, answer in pairs]),
        "distinct_1": distinct(cut, 1),
        "distinct_2": distinct(cut, 2),
        "top_reply_share": top_reply_share(replies),
    }


def _length(item: tuple[str, int]) -> int:
    return len(item[0])
