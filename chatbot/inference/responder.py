"""Replies of a trained model to any text."""

from collections.abc import Iterator, Sequence

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.text.utterance import tokens_of
from chatbot.inference.attention import WordAttention, word_attention
from chatbot.inference.replier import Reply, replier_of
from chatbot.model.saved import Trained

# The reply to a text without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# Longer texts are truncated before they are tokenised: the model reads only --max-length tokens.
MAX_CHARACTERS = 2000


class Responder:
    """Answers questions in text form, each by one line of text.

    Example:

        trained = load_trained(Path("checkpoints/default"))
        responder = Responder(trained, DecodingSettings(beam_size=5))
        responder.reply("你好")
        responder.replies(["你好", "你叫什么名字"])

    Raises UserError for decoding settings that the model does not admit.
    """

    def __init__(self, trained: Trained, decoding: DecodingSettings) -> None:
        self.replier = replier_of(trained, decoding)
        self.decoding = decoding
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

    def stream(self, text: str) -> Iterator[str]:
        """Yield the reply to a text in pieces, as its tokens are found; joined, they are `reply(text)`."""
        question = self.ids(text)
        return self.replier.stream(question) if question else iter([EMPTY_QUESTION_REPLY])

    def n_best(self, text: str) -> list[Reply]:
        """Return at most as many distinct replies as the setting n_best says, with their scores, the best first.

        A text without visible characters has one, `EMPTY_QUESTION_REPLY`.
        """
        question = self.ids(text)
        if not question:
            return [Reply(EMPTY_QUESTION_REPLY, 0.0)]
        return self.replier.candidates([question])[0][: self.decoding.n_best]

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, cleaned and tokenised as the training pairs were; [] without visible characters."""
        return self._vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))
