"""Tokenizers of pretrained models, and the text of each of their tokens, which are called pieces."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.durable import read_json
from chatbot.errors import UserError

# Names of tokenizer files: the file of the tokenizers library, and the vocabulary of a BERT model.
TOKENIZER = "tokenizer.json"
VOCAB = "vocab.txt"
REMEDY = "copy the folder again from where the model was published"
# Character that represents a space in tokens, as in SentencePiece (Kudo and Richardson, 2018).
SPACE = "\u2581"
# Byte-level BPE represents each of these bytes by the character with the same code. The other bytes are represented by
# U+0100, U+0101 and so on.
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PLAIN}
_BYTES |= {chr(0x100 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in _PLAIN)}
CONTINUATION = "##"  # prefix of a WordPiece that continues a word


def _word_piece_text(piece: str) -> bytes:
    """Return the text of a WordPiece. It begins with a space if the piece begins a word of letters or digits."""
    if piece.startswith(CONTINUATION):
        return piece.removeprefix(CONTINUATION).encode()
    return (" " * (piece[:1].isalnum() and piece < "\u2e80") + piece).encode()


def _byte_level_text(piece: str) -> bytes:
    return bytes(_BYTES[character] for character in piece)


def _sentence_piece_text(piece: str) -> bytes:
    if len(piece) == len("<0x00>") and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, " ").encode()


# Type of the decoder in tokenizer.json -> function that returns the text of a piece.
TEXTS: Mapping[str, Callable[[str], bytes]] = {
    "WordPiece": _word_piece_text,
    "ByteLevel": _byte_level_text,
    "Metaspace": _sentence_piece_text,
}


def piece_tokenizer(path: str) -> Callable[[str], list[str]]:
    """Return a function that splits a text into pieces, including special pieces at its start and end.

    Text that the tokenizer does not know is returned unchanged. Raises UserError if the tokenizer file cannot be read
    or the package tokenizers is missing.
    """
    tokenizer = open_tokenizer(Path(path))
    return lambda text: _select_pieces(tokenizer, tokenizer.encode(text), text) if text.strip() else []


def pieces_of_lines(path: str, texts: Sequence[str]) -> list[str]:
    """Return the pieces of all texts in one list, with a newline between two texts."""
    tokenizer = open_tokenizer(Path(path))
    encoded = zip(tokenizer.encode_batch([*texts]), texts, strict=True)
    return [piece for encoding, text in encoded for piece in ("\n", *_select_pieces(tokenizer, encoding, text))][1:]


def _select_pieces(tokenizer: Any, encoded: Any, text: str) -> list[str]:
    unknown = getattr(tokenizer.model, "unk_token", None)  # None if the model returns unknown text unchanged
    if unknown not in encoded.tokens:
        return list(encoded.tokens)
    tokens = zip(encoded.tokens, encoded.offsets, strict=True)
    return [text[slice(*span)] if token == unknown else token for token, span in tokens]


def open_tokenizer(path: Path) -> Any:
    """Load the tokenizer in a file. If the file has not changed, a cached tokenizer is returned.

    Args:
        path: A tokenizer.json, or the vocab.txt of a BERT model. The text for a BERT model is lowercased, unless
            tokenizer_config.json in the same folder disables this.

    Raises:
        UserError: If the file cannot be read or the package tokenizers is missing.
    """
    try:
        content = path.read_text(encoding="utf-8")
        lowercase = None
        config_file = path.with_name("tokenizer_config.json")
        if path.name == VOCAB:
            # BERT lowercases text by default.
            lowercase = not config_file.is_file() or bool(dict(read_json(config_file)).get("do_lower_case", True))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: tokenizer cannot be read ({error}); {REMEDY}") from None
    return _cached_tokenizer(content, lowercase, str(path))


@functools.lru_cache(maxsize=4)
def _cached_tokenizer(content: str, lowercase: bool | None, path: str) -> Any:
    """Create a tokenizer from the content of a file. `lowercase` is None for the format tokenizer.json."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise UserError(f"{path}: needs tokenizers; run `pip install tokenizers`") from None
    try:
        if lowercase is None:
            tokenizer = tokenizers.Tokenizer.from_str(content)
        else:
            from tokenizers.implementations import BertWordPieceTokenizer

            ids = {token: i for i, token in enumerate(content.removesuffix("\n").split("\n"))}
            tokenizer = tokenizers.Tokenizer.from_str(BertWordPieceTokenizer(ids, lowercase=lowercase).to_str())
    except Exception as error:  # the library raises subclasses of Exception
        raise UserError(f"{path}: no tokenizer ({str(error)[:60]}); {REMEDY}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # treats the names of special tokens in a text as ordinary text
    return tokenizer
