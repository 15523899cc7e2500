"""/good and /bad: ratings of the replies of a chat in a terminal."""

from pathlib import Path

from chatbot.chat.conversation import Conversation, Rating
from chatbot.chat.ratings import RATINGS, rate_last
from chatbot.errors import UserError


class Ratings:
    """The ratings of a chat. path: the file that they are appended to."""

    def __init__(self, path: Path = RATINGS) -> None:
        self.path = path

    def rate(self, conversation: Conversation, rating: Rating, model: str) -> None:
        """Append a rating of the last reply; another rating of the same reply replaces the first one.

        model: the name of the one that replied, if the reply has none. Raises UserError without a reply, and for a
        rating that it has already.
        """
        if conversation.last is None:
            raise UserError(f"/{rating}: no reply to rate yet; ask a question first")
        if conversation.last.rating == rating:
            raise UserError(f"/{rating}: the reply is in {self.path} already")
        rate_last(self.path, conversation, rating, conversation.last.model or model)
