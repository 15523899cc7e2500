"""Replies of a trained model to any text."""

from collections.abc import Sequence

from chatbot.corpus.text.utterance import tokens_of
from chatbot.inference.attention import WordAttention, word_attention
from chatbot.inference.replier import Replier
from chatbot.model.saved import Trained

# The reply to a text without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# Longer texts are truncated before they are tokenised: the model reads only --max-length tokens.
MAX_CHARACTERS = 2000


class Responder:
    """Answers questions in text form, each by one line of text.

    Example:

        trained = load_trained(Path("checkpoints/default"))
        responder = Responder(trained, beam_size=5, length_penalty=1.0)
        responder.reply("你好")
        responder.replies(["你好", "你叫什么名字"])

    beam_size: hypotheses that the search keeps; 1 is greedy search. length_penalty: the exponent of beam search's
    length penalty; larger prefers longer replies.
    """

    def __init__(self, trained: Trained, beam_size: int, length_penalty: float) -> None:
        self.replier = Replier(trained.model, trained.vocabulary, trained.settings.model, beam_size, length_penalty)
        self._trained, self._vocabulary = trained, trained.vocabulary
        self._tokens = tokens_of(trained.settings.corpus)

    def reply(self, text: str) -> str:
        """Return the best reply, one line; for a text without visible characters, `EMPTY_QUESTION_REPLY`."""
        return self.replies([text])[0]

    def replies(self, texts: Sequence[str]) -> list[str]:
        """Return the reply to each text. Texts are batched, which is faster than one `reply` per text."""
        questions = [self.ids(text) for text in texts]
        replies = iter(self.replier.replies([question for question in questions if question]))
        return [next(replies) if question else EMPTY_QUESTION_REPLY for question in questions]

    def attention(self, text: str, reply: str) -> WordAttention | None:
        """Return which words of a text each word of a reply to it looked at; None for a model that shows none.

        text: with visible characters.
        """
        model, max_length = self._trained.model, self._trained.settings.model.max_length
        if not model.decoder.shows_attention:
            return None
        question = self.ids(text)[:max_length]
        return word_attention(model, self._vocabulary, [question], [self.ids(reply)])[0]

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, cleaned and tokenised as the training pairs were; [] without visible characters."""
        return self._vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))
