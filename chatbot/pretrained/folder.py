"""A pretrained model: a folder as transformers save it, with config.json, tokenizer.json and its tensors."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.config.corpus import PIECES
from chatbot.corpus.pieces import REMEDY, TOKENIZER, VOCAB
from chatbot.durable import read_json, write_file
from chatbot.errors import UserError
from chatbot.pretrained.families import BASE, family_of, settings_of

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TYPES = {"bfloat16", "float16", "float32", "float64"}
# Of fine-tuning, as in the examples of transformers.
LEARNING_RATE = 5e-5


class PretrainedModel:
    """A folder with such a model. All but config.json is read when it is asked for.

    config: what config.json says. Raises UserError for a family that is not known.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.family = family_of(config, str(folder / CONFIG))

    def settings(self) -> dict[str, Any]:
        """Return the settings of a run that begins with the model, by name. Raises UserError, as `settings_of`."""
        return {
            **settings_of(self.config, str(self.folder / CONFIG)),
            "tied_embeddings": not self.has_projection(),
            "tokenizer": PIECES,
            "dictionary": str(self.tokenizer()),
            "both_directions": "off",
            "learning_rate": LEARNING_RATE,
        }

    def tokenizer(self) -> Path:
        """Return the file of its tokenizer. Raises UserError for a folder without one."""
        for name in (TOKENIZER, VOCAB):
            if (self.folder / name).is_file():
                return self.folder / name
        remedy = "save its tokenizer with transformers (AutoTokenizer, save_pretrained)"
        raise UserError(f"{self.folder}: neither {TOKENIZER} nor {VOCAB}; {remedy}")

    def has_projection(self) -> bool:
        """Return whether it has an output matrix that is not its embedding. Raises UserError."""
        embedding = self.family.names.embedding
        projection = self.family.names.projection
        import numpy as np

        return projection in self.tensors and not np.array_equal(self.tensor(projection), self.tensor(embedding))

    @functools.cached_property
    def tensors(self) -> dict[str, tuple[Path, str]]:
        """The file of each tensor, and its name there. Raises UserError for files that are missing or damaged."""
        found = _tensors(self.folder)
        embedding = self.family.names.embedding
        base = BASE if embedding not in found and embedding.removeprefix(BASE) in found else ""
        return {base + name: (path, name) for name, path in found.items()}

    def tensor(self, name: str) -> Any:
        """Return a tensor as an array of float32. Raises UserError."""
        if name not in self.tensors:
            raise UserError(f"{self.folder}: no tensor {name}; {REMEDY}")
        import ml_dtypes  # noqa: F401  # of TensorFlow: NumPy knows bfloat16 then
        from safetensors import SafetensorError, safe_open

        path, own_name = self.tensors[name]
        try:
            with safe_open(path, "numpy") as file:
                tensor = file.get_tensor(own_name)
        except (SafetensorError, OSError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: {own_name:.60} cannot be read ({str(error)[:40]}); {REMEDY}") from None
        if str(tensor.dtype) not in TYPES:
            raise UserError(f"{path}: {own_name} is of type {tensor.dtype}; {REMEDY}")
        return tensor.astype("float32")


def pretrained_model(name: str | None) -> PretrainedModel | None:
    """Return the pretrained model of a folder, or of a name that huggingface_hub has or fetches; None without one.

    name: of a folder, an attempt, or of a model there, such as fnlp/bart-base-chinese. Raises UserError for one that
    cannot be fetched, or is of a family that is not known.
    """
    if name is None:
        return None
    is_folder = Path(name).exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    folder = Path(name) if is_folder else _fetched(name)
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        if any((folder / file).exists() for file in (WEIGHTS, INDEX, TOKENIZER)):
            raise UserError(f"{folder / CONFIG}: missing or damaged; {REMEDY}") from None
        return None
    return PretrainedModel(folder, config) if isinstance(config, dict) and "model_type" in config else None


@functools.lru_cache(maxsize=1)  # a start asks several times
def _fetched(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(
            f"--init-from {name}: no such folder; to fetch a model of this name, run `pip install huggingface_hub`"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "vocab.txt", "*.safetensors"]))
    except (OSError, ValueError) as error:  # of the network, or of a name that is not there
        reason = str(error).partition("\n")[0][:70]
        raise UserError(f"--init-from {name}: no such folder, and it cannot be fetched ({reason})") from None


def write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write arrays by name into a folder, as transformers read them. Raises OSError."""
    from safetensors.numpy import save

    write_file(folder / WEIGHTS, save(dict(tensors), {"format": "pt"}))


def _tensors(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder. Raises UserError for files that are missing or damaged."""
    if (folder / INDEX).is_file():
        try:
            names = dict(read_json(folder / INDEX)["weight_map"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{folder / INDEX}: cannot be read ({error}); {REMEDY}") from None
        for name, file in names.items():
            if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
                raise UserError(f"{folder / INDEX}: {name!r:.40} is in {file!r:.40}, outside the folder; {REMEDY}")
            if not (name + file).isprintable():
                raise UserError(f"{folder / INDEX}: {name!r:.40} in {file!r:.40} is no name; {REMEDY}")
        return {name: folder / file for name, file in names.items()}
    path = folder / WEIGHTS
    if not path.is_file():
        remedy = "load the model with transformers, such as from pytorch_model.bin, and save it (save_pretrained)"
        raise UserError(f"{folder}: no {WEIGHTS}; {remedy}")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({str(error)[:60]}); {REMEDY}") from None
