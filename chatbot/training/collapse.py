"""Notices when a model gives a few replies to most questions."""

from chatbot.evaluation.repetition import Repetition

# Replies collapse when the ten most common have a share of all that is larger than that of the references by this much.
MARGIN = 0.25


class Collapse:
    """Compares the replies of each validation with the references."""

    def __init__(self, references: Repetition) -> None:
        self._references = references.top_share(10)
        self._collapsed = False

    def warning(self, replies: Repetition) -> str | None:
        """Return a warning when the replies collapse, for the first time or after they had recovered; else None."""
        before, share = self._collapsed, replies.top_share(10)
        self._collapsed = share > self._references + MARGIN
        if before or not self._collapsed:
            return None
        return (
            f"replies collapse: the ten most common are {share:.0%} of {replies.replies:,}; "
            f"references {self._references:.0%}"
        )
