"""The settings of chat.py."""

import dataclasses
from collections.abc import Sequence

from chatbot.config.decoding import DecodingSettings
from chatbot.flags import check_fields, compose, parse_flags, setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """The settings of chat.py."""

    attempt: str = setting("default", RUN, "the training run to talk to: its name, or the path of its folder")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        check_fields(self)


def chat_settings(arguments: Sequence[str] | None = None) -> ChatSettings:
    """Parse the command line of chat.py. Raises UserError for a value that is not allowed."""
    return compose(ChatSettings, **parse_flags(ChatSettings, "chat.py", "Talk to a trained chatbot.", arguments))
