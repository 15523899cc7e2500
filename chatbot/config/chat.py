"""The settings of chat.py."""

import dataclasses
from collections.abc import Sequence

from chatbot.flags import check_fields, parse_flags, setting

RUN, SEARCH = "run", "search"


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """The settings of chat.py."""

    attempt: str = setting("default", RUN, "the training run to talk to: its name, or the path of its folder")
    beam_size: int = setting(5, SEARCH, "number of hypotheses; 1 is greedy search", kind=int, least=1, most=100)
    length_penalty: float = setting(
        1.0,
        SEARCH,
        "exponent of the length penalty; larger prefers longer replies",
        kind=float,
        least=0,
        most=10,
    )

    def __post_init__(self) -> None:
        check_fields(self)


def chat_settings(arguments: Sequence[str] | None = None) -> ChatSettings:
    """Parse the command line of chat.py. Raises UserError for a value that is not allowed."""
    return ChatSettings(**parse_flags(ChatSettings, "chat.py", "Talk to a trained chatbot.", arguments))
