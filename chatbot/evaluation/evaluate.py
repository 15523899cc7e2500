"""Evaluation of a trained model on held-out pairs."""

from typing import Any

from tqdm import tqdm

from chatbot.corpus.encoding.corpus import encode
from chatbot.corpus.encoding.selection import Selection
from chatbot.corpus.encoding.tokenised import CorpusFiles, tokenise
from chatbot.corpus.encoding.workers import worker_pool
from chatbot.corpus.text.tokenizer import text_of
from chatbot.corpus.text.utterance import tokens_of
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.metrics import bleu, distinct, top_reply_share
from chatbot.inference.replier import BATCH, Replier
from chatbot.model.saved import Trained


def evaluate(trained: Trained, files: CorpusFiles, beam_size: int) -> dict[str, Any]:
    """Return the likelihood of the reference replies, and BLEU, variety and repetition of the model's replies."""
    corpus = encode(files, Selection(), trained.vocabulary)
    likelihood = Scorer(trained.model)(corpus.shards)
    replier = Replier(trained.model, trained.vocabulary, trained.settings.model, beam_size)
    with worker_pool() as pool:
        references = tokenise(files, pool)
    # Questions of similar length share a batch, so that little of it is padding.
    pairs = sorted(((trained.vocabulary.ids(q), text_of(a)) for q, a in references.tokens()), key=_question_length)
    replies: list[str] = []
    for start in tqdm(
        range(0, len(pairs), BATCH), desc="Replying", unit=" batches", leave=False, delay=2, disable=None
    ):
        replies += replier.replies([question for question, _ in pairs[start : start + BATCH]])
    tokens = tokens_of(trained.settings.corpus)
    tokenised = [tokens(reply) for reply in replies]
    return {
        "pairs": len(pairs),
        "tokens": likelihood.tokens,
        "characters": likelihood.characters,
        "perplexity": likelihood.perplexity,
        "nats_per_character": likelihood.nats_per_character,
        "bleu": bleu(replies, [answer for _, answer in pairs]),
        "distinct_1": distinct(tokenised, 1),
        "distinct_2": distinct(tokenised, 2),
        "top_reply_share": top_reply_share(replies),
    }


def _question_length(pair: tuple[list[int], str]) -> int:
    return len(pair[0])
