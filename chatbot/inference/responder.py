"""Replies of a trained model to any text."""

from collections.abc import Callable, Sequence

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.batches import pad
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import BOS, Vocabulary
from chatbot.inference.replier import Replier, replier_of
from chatbot.inference.tensor_rows import TensorRows
from chatbot.inference.text_responder import TextResponder
from chatbot.inference.word_attention import Weights, WordAttention, by_word
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq


class Responder(TextResponder):
    """Answers questions in text form by a trained model, each by one line of text.

    Example:

        trained = load_trained(Path("checkpoints/default"))
        responder = Responder(trained, DecodingSettings(beam_size=5))
        responder.reply("你好")
        responder.replies(["你好", "你叫什么名字"])
        responder.reply("那你呢", history=["你几岁了", "我三岁了"])

    rows: as for `Replier`. Raises UserError for decoding settings that the model does not admit.
    """

    replier: Replier

    def __init__(
        self, trained: Trained, decoding: DecodingSettings, rows: Callable[[], TensorRows] | None = None
    ) -> None:
        model = trained.model

        def weights(question: Sequence[int], reply: Sequence[int]) -> Weights:
            return attention_weights(model, [question], [reply])[0]

        shown = weights if model.decoder.shows_attention else None
        super().__init__(replier_of(trained, decoding, rows), trained.vocabulary, trained.settings, shown)


def attention_weights(
    model: Seq2Seq, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[Weights]:
    """Return the weights of each question's ids at each id of its reply and at the end symbol: [reply + 1, question].

    The decoder reads the replies as in training (teacher forcing). questions, replies: ids, of at least one question;
    each question has at least one. The model must have attention.
    """
    sources = Ragged.from_rows(questions)
    targets = Ragged.from_rows([[BOS, *reply] for reply in replies])
    padded = (pad(rows, np.arange(len(rows)), int(rows.lengths.max())) for rows in (sources, targets))
    with model.placed():
        weights = model.attention_weights(*map(model.sequences, padded))  # [rows, target, source]
    weights = weights.numpy().astype(np.float32)
    return [
        row[:target, :source] for row, source, target in zip(weights, sources.lengths, targets.lengths, strict=True)
    ]


def word_attention(
    model: Seq2Seq, vocabulary: Vocabulary, questions: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[WordAttention]:
    """Return the attention of each reply, word by word; the arguments are those of `attention_weights`."""
    weights = attention_weights(model, questions, replies)
    return [by_word(vocabulary, *row) for row in zip(questions, replies, weights, strict=True)]
