"""What a checkpoint was trained with: its pairs, vocabulary, settings, and the versions of the software."""

import dataclasses
import platform
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.stored import changed_values, storable
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.model.checkpoint_files import DamagedError, check_vocabulary, manifest_path, step_of
from chatbot.version import __version__

OTHER = "restore this attempt's own from a backup, or use another --attempt"
NAMES = {"chatbot": "chatbot", "tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy", "python": "Python"}


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

    def check(self, manifest: dict[str, Any], prefix: Path) -> list[str]:
        """Compare the manifest of a checkpoint that is resumed; return the differences that are allowed, one a line.

        A part that the manifest lacks is not compared. Raises UserError when the pairs, the vocabulary or a fixed
        setting differ, and DamagedError for a part of another form.
        """
        try:
            return self._differences(manifest, prefix)
        except (AttributeError, TypeError):
            raise DamagedError(prefix, "damaged", f"{manifest_path(prefix).name} is of another form") from None

    def _differences(self, manifest: dict[str, Any], prefix: Path) -> list[str]:
        path, data = manifest_path(prefix), manifest.get("data", {})
        check_vocabulary(manifest, self.data["vocabulary"], prefix)
        # With another version of the reader, check_data has compared the pairs with data.json.
        if data.get("version") == self.data["version"] and data.get("fingerprint") != self.data["fingerprint"]:
            raise UserError(f"{path}: a checkpoint of other training pairs; {OTHER}")
        try:
            fixed, free = changed_values(manifest.get("settings", {}), self.settings)
        except UserError as error:
            raise DamagedError(prefix, "damaged", f"{path.name}: {error}") from None
        if fixed:
            raise UserError(f"{path}: a checkpoint of other settings: {'; '.join(fixed)}; {OTHER}")
        lines = [f"Changed since step {step_of(prefix.name):,}: {'; '.join(free)}."] if free else []
        then, now = manifest.get("versions", {}), versions()
        changed = [
            f"{NAMES[name]} {then[name]!s:.20} (now {now[name]})"
            for name in now
            if then.get(name) not in (None, now[name])
        ]
        if changed:
            lines.append(
                f"The checkpoint was written with {', '.join(changed)}: results may differ in the last bits from those "
                "of one version."
            )
        return lines
