"""What a user should know about a model: what it was trained on, and its quality."""

import dataclasses
import re
from pathlib import Path

from chatbot.attempts.attempt import read_attempt
from chatbot.config.run import RunSettings
from chatbot.corpus.reading.display import counted

# The ends of names of files that say nothing to readers, such as .conv.gz.
ENDINGS = re.compile(
    r"(\.(gz|bz2|xz|zst|zip|tar|tgz|7z|csv|tsv|txt|text|conv|jsonl?|ndjson|ya?ml|parquet|arrow))+$", re.I
)


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What a model was trained on, and its quality."""

    name: str
    step: int  # of the checkpoint
    data: tuple[str, ...] = ()  # names of the files of training pairs; empty: not known
    pairs: int | None = None  # None: not known
    nats_per_character: float | None = None  # of the held-out pairs; None: not validated, or not known
    validated: bool = False
    format: str | None = None  # of an export

    def line(self) -> str:
        """Return the card as one line."""
        parts = [f"{self.name}: {self._pairs()}" if self.data else self.name, f"step {self.step:,}"]
        if self.nats_per_character is not None:
            parts.append(f"{self.nats_per_character:.3f} nats per character on held-out pairs")
        elif not self.validated:
            parts.append("not validated")
        if self.format is not None:
            parts.append(self.format)
        return "; ".join(parts)

    @property
    def sources(self) -> list[str]:
        """The names of the data for readers: those of the files without endings."""
        return [ENDINGS.sub("", name) or name for name in self.data]

    def name_for_readers(self, name: str) -> str:
        """Return what readers call the model: `name`, or the data's name where nobody has chosen one."""
        return self.sources[0] if name == RunSettings.attempt and len(self.sources) == 1 else name

    def _pairs(self) -> str:
        pairs = "pairs" if self.pairs is None else counted(self.pairs, "pair")
        return f"{pairs} of {self.data[0] if len(self.data) == 1 else f'{len(self.data)} files'}"


def card_of_attempt(directory: Path, step: int) -> ModelCard:
    """Return the card of an attempt. step: of the checkpoint that was loaded."""
    attempt = read_attempt(directory)
    nats = attempt.best_nats_per_character
    return ModelCard(directory.name, step, attempt.data, attempt.pairs, nats, validated=nats is not None)


def card_of_export(name: str, step: int, validated: bool, form: str) -> ModelCard:
    """Return the card of an export, which does not have the names of the files of training pairs."""
    return ModelCard(name, step, validated=validated, format=form)
