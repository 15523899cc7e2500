"""What the checkpoints of a run are trained with, compared when it is resumed."""

import dataclasses
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.stored import changed_values, storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.checkpoint import DamagedError, check_vocabulary, manifest_path, step_of
from chatbot.version import __version__

OTHER = "restore this attempt's own from a backup, or use another --attempt"


def versions() -> dict[str, str]:
    """Return the versions that the bits of a result may depend on."""
    return {
        "chatbot": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What the checkpoints of a run are trained with. data: the content of data.json."""

    settings: Settings
    data: dict[str, Any]

    def content(self) -> dict[str, Any]:
        """Return the part of a manifest that `check` compares."""
        return {"data": self.data, "settings": storable(self.settings), "versions": versions()}

    def check(self, manifest: dict[str, Any], path: Path) -> list[str]:
        """Compare the manifest of a checkpoint that is resumed; return the differences that are allowed, one a line.

        Raises UserError when the pairs, the vocabulary or a fixed setting differ, and DamagedError for another form.
        """
        try:
            return list(self._check(manifest, path))
        except (AttributeError, TypeError):
            raise DamagedError(path, "damaged", f"{manifest_path(path).name} is of another form") from None

    def _check(self, manifest: dict[str, Any], path: Path) -> Iterator[str]:
        check_vocabulary(manifest, self.data["vocabulary"], path)
        data, own = manifest.get("data", {}), manifest_path(path)
        if data.get("fingerprint") != self.data["fingerprint"]:
            raise UserError(f"{own}: a checkpoint of other training pairs; {OTHER}")
        try:
            fixed, free = changed_values(manifest.get("settings", {}), self.settings)
        except UserError as error:
            raise DamagedError(path, "damaged", f"{own.name}: {error}") from None
        if fixed:
            raise UserError(f"{own}: a checkpoint of other settings: {'; '.join(fixed)}; {OTHER}")
        if free:
            yield f"Changed since step {step_of(path):,}: {'; '.join(free)}."
        then = manifest.get("versions", {})
        changed = [
            f"{name} {then[name]!s:.20} (now {now})"
            for name, now in versions().items()
            if then.get(name) not in (None, now)
        ]
        if changed:
            written = f"The checkpoint was written with {', '.join(changed)}"
            yield f"{written}: results may differ in the last bits from those of one version."
