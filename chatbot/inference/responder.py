"""Replies of a trained model to any text."""

from collections.abc import Iterator, Sequence

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.encoding.history import source_of
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
        responder.reply("那你呢", history=["你几岁了", "我三岁了"])

    Raises UserError for decoding settings that the model does not admit.
    """

    def __init__(self, trained: Trained, decoding: DecodingSettings) -> None:
        self.replier = replier_of(trained, decoding)
        self.decoding = decoding
        self._trained, self._vocabulary = trained, trained.vocabulary
        self._tokens = tokens_of(trained.settings.corpus)
        self._max_length = trained.settings.model.max_length
        self._turns = trained.settings.encoding.history

    def reply(self, text: str, history: Sequence[str] = ()) -> str:
        """Return the best reply, one line; for a text without visible characters, `EMPTY_QUESTION_REPLY`.

        history: the turns before the text, the oldest first, alternately of the user and of the chatbot. A model that
        was trained with --history N reads the last N of them.
        """
        return self.replies([text], [history])[0]

    def replies(self, texts: Sequence[str], histories: Sequence[Sequence[str]] | None = None) -> list[str]:
        """Return the reply to each text. Texts are batched, which is faster than one `reply` per text.

        histories: the turns before each text; None: there are none.
        """
        histories = [()] * len(texts) if histories is None else histories
        questions = [self.source(text, history) for text, history in zip(texts, histories, strict=True)]
        replies = iter(self.replier.replies([question for question in questions if question]))
        return [next(replies) if question else EMPTY_QUESTION_REPLY for question in questions]

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return which words of a text and of the turns before it each word of a reply to it looked at.

        None for a model that shows no attention. text: with visible characters.
        """
        model = self._trained.model
        if not model.decoder.shows_attention:
            return None
        question = self.source(text, history)[: self._max_length]
        return word_attention(model, self._vocabulary, [question], [self.ids(reply)])[0]

    def stream(self, text: str, history: Sequence[str] = ()) -> Iterator[str]:
        """Yield the reply to a text in pieces, as its tokens are found; joined, they are `reply(text, history)`."""
        question = self.source(text, history)
        return self.replier.stream(question) if question else iter([EMPTY_QUESTION_REPLY])

    def n_best(self, text: str, history: Sequence[str] = ()) -> list[Reply]:
        """Return at most as many distinct replies as the setting n_best says, with their scores, the best first.

        A text without visible characters has one, `EMPTY_QUESTION_REPLY`. history: as in `reply`.
        """
        question = self.source(text, history)
        if not question:
            return [Reply(EMPTY_QUESTION_REPLY, 0.0)]
        return self.replier.candidates([question])[0][: self.decoding.n_best]

    def source(self, text: str, history: Sequence[str]) -> list[int]:
        """Return the ids of a text and the turns before it, as the model reads them; [] if the text has no ids.

        Nothing is read of the turns up to the last one without visible characters.
        """
        turns = [self.ids(text)]
        for turn in reversed(history[max(0, len(history) - self._turns) :]):
            if not (ids := self.ids(turn)):
                break
            turns.insert(0, ids)
        return source_of(turns, self._vocabulary, self._max_length) if turns[-1] else []

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, cleaned and tokenised as the training pairs were; [] without visible characters."""
        return self._vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))
