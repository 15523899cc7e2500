"""Replies of a trained model to any text."""

from collections.abc import Sequence

from chatbot.config.decoding import DecodingSettings
from chatbot.inference.attention import attention_weights
from chatbot.inference.replier import Replier, replier_of
from chatbot.inference.text_responder import TextResponder
from chatbot.inference.word_attention import Weights
from chatbot.model.saved import Trained


class Responder(TextResponder):
    """Answers questions in text form by a trained model, each by one line of text.

    Example:

        trained = load_trained(Path("checkpoints/default"))
        responder = Responder(trained, DecodingSettings(beam_size=5))
        responder.reply("你好")
        responder.replies(["你好", "你叫什么名字"])
        responder.reply("那你呢", history=["你几岁了", "我三岁了"])

    Raises UserError for decoding settings that the model does not admit.
    """

    replier: Replier

    def __init__(self, trained: Trained, decoding: DecodingSettings) -> None:
        model = trained.model

        def weights(question: Sequence[int], reply: Sequence[int]) -> Weights:
            return attention_weights(model, [question], [reply])[0]

        shown = weights if model.decoder.shows_attention else None
        super().__init__(replier_of(trained, decoding), trained.vocabulary, trained.settings, shown)
