"""Reads the folder of a pretrained model, as saved by transformers: config.json, tokenizer.json and the tensors."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.config.corpus import PIECES
from chatbot.corpus.pieces import REMEDY, TOKENIZER, VOCAB
from chatbot.durable import read_json, write_file
from chatbot.errors import UserError
from chatbot.pretrained.families import PREFIX, family_of, settings_of

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"bfloat16", "float16", "float32", "float64"}
# The learning rate for fine-tuning, as in the examples of transformers.
LEARNING_RATE = 5e-5


class PretrainedModel:
    """The folder of a pretrained model. Other files than config.json are read when they are needed.

    Args:
        folder: The path of the folder.
        config: The content of config.json.

    Raises:
        UserError: The family of the model is not supported.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.family = family_of(config, str(folder / CONFIG))

    def settings(self) -> dict[str, Any]:
        """Return the training settings that this model requires or recommends, by name.

        Raises:
            UserError: config.json, the tensors or the tokenizer cannot be used.
        """
        return {
            **settings_of(self.config, str(self.folder / CONFIG)),
            "tied_embeddings": not self.has_projection(),
            "tokenizer": PIECES,
            "dictionary": str(self.tokenizer()),
            "both_directions": "off",
            "learning_rate": LEARNING_RATE,
        }

    def tokenizer(self) -> Path:
        """Return the path of the tokenizer.

        Raises:
            UserError: The folder contains no tokenizer.
        """
        for name in (TOKENIZER, VOCAB):
            if (self.folder / name).is_file():
                return self.folder / name
        remedy = "save its tokenizer with transformers (AutoTokenizer, save_pretrained)"
        raise UserError(f"{self.folder}: neither {TOKENIZER} nor {VOCAB}; {remedy}")

    def has_projection(self) -> bool:
        """Return whether the model has an output projection that differs from the embedding.

        Raises:
            UserError: The tensors cannot be read.
        """
        embedding = self.family.names.embedding
        projection = self.family.names.projection
        import numpy as np

        return projection in self.tensors and not np.array_equal(self.tensor(projection), self.tensor(embedding))

    @functools.cached_property
    def tensors(self) -> dict[str, tuple[Path, str]]:
        """The file of each tensor, and its name in this file. Raises UserError if a file is missing or damaged."""
        files = _tensor_files(self.folder)
        embedding = self.family.names.embedding
        prefix = PREFIX if embedding not in files and embedding.removeprefix(PREFIX) in files else ""
        return {prefix + name: (path, name) for name, path in files.items()}

    def tensor(self, name: str) -> Any:
        """Read a tensor as a float32 array.

        Raises:
            UserError: The tensor is missing or damaged, or its dtype is not supported.
        """
        if name not in self.tensors:
            raise UserError(f"{self.folder}: no tensor {name}; {REMEDY}")
        import ml_dtypes  # noqa: F401  # Adds bfloat16 to NumPy. It is a dependency of TensorFlow.
        from safetensors import SafetensorError, safe_open

        path, own_name = self.tensors[name]
        try:
            with safe_open(path, "numpy") as file:
                tensor = file.get_tensor(own_name)
        except (SafetensorError, OSError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: {own_name:.60} cannot be read ({str(error)[:40]}); {REMEDY}") from None
        if str(tensor.dtype) not in DTYPES:
            raise UserError(f"{path}: {own_name} is of type {tensor.dtype}; {REMEDY}")
        return tensor.astype("float32")


def pretrained_model(name: str | None) -> PretrainedModel | None:
    """Open a pretrained model. If necessary, huggingface_hub downloads it.

    Args:
        name: A folder, the name of an attempt, or a Hugging Face model id such as fnlp/bart-base-chinese.

    Returns:
        The model, or None if the name does not refer to a pretrained model.

    Raises:
        UserError: The download failed, config.json is damaged, or the family is not supported.
    """
    if name is None:
        return None
    is_folder = Path(name).exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    folder = Path(name) if is_folder else _download(name)
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        if any((folder / file).exists() for file in (WEIGHTS, INDEX, TOKENIZER)):
            raise UserError(f"{folder / CONFIG}: missing or damaged; {REMEDY}") from None
        return None
    return PretrainedModel(folder, config) if isinstance(config, dict) and "model_type" in config else None


@functools.lru_cache(maxsize=1)  # One command calls this function several times.
def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(
            f"--init-from {name}: no such folder; to download a model of this name, run `pip install huggingface_hub`"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "vocab.txt", "*.safetensors"]))
    except (OSError, ValueError) as error:  # The network failed, or the name is unknown.
        reason = str(error).partition("\n")[0][:70]
        raise UserError(f"--init-from {name}: no such folder, and the download failed ({reason})") from None


def write_tensors(folder: Path, tensors: Mapping[str, Any]) -> None:
    """Write named arrays to a file in a folder, in the format of transformers.

    Raises:
        OSError: The file cannot be written.
    """
    from safetensors.numpy import save

    write_file(folder / WEIGHTS, save(dict(tensors), {"format": "pt"}))


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder. Raises UserError if a file is missing or damaged."""
    if (folder / INDEX).is_file():
        try:
            names = dict(read_json(folder / INDEX)["weight_map"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{folder / INDEX}: cannot be read ({error}); {REMEDY}") from None
        for name, file in names.items():
            if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
                raise UserError(f"{folder / INDEX}: {name!r:.40} is in {file!r:.40}, outside the folder; {REMEDY}")
            if not (name + file).isprintable():
                raise UserError(f"{folder / INDEX}: {name!r:.40} in {file!r:.40} is not a valid name; {REMEDY}")
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
