"""What is done to each utterance before it is cut into words."""

import re

# Control and format characters, lone surrogates, and U+2581, which the tokenizer uses for a space.
# U+200D stays: it holds emoji such as a family together.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u2064\u2581\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SPACES = re.compile(r"\s+")


def clean(text: str) -> str:
    """Control characters become spaces, runs of white space one space, and the ends are stripped."""
    return _SPACES.sub(" ", _INVISIBLE.sub(" ", text)).strip()
