"""Text in, one line of text out, whatever the text is."""

from chatbot.inference.replier import Replier
from chatbot.model.saved import Trained

NOTHING_SAID = "（请说点什么 / please say something）"
# Text beyond this is cut before it is read: the model itself reads --max-length tokens of it.
MOST_CHARACTERS = 2000


class Responder:
    """Answers a question with the best reply of a trained model."""

    def __init__(self, trained: Trained, beam_size: int, length_penalty: float) -> None:
        self.replier = Replier(trained.model, trained.vocabulary, trained.settings, beam_size, length_penalty)

    def reply(self, text: str) -> str:
        """One line: the reply, or for text without a visible character a request to say something."""
        question = text[:MOST_CHARACTERS]
        return self.replier.best([question])[0] if self.replier.ids(question) else NOTHING_SAID
