"""The tokenizer of a pretrained model, and the texts of its pieces."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.durable import read_json
from chatbot.errors import UserError

# The file of a tokenizer of the library tokenizers, and that of a BERT's word pieces.
TOKENIZER = "tokenizer.json"
VOCAB = "vocab.txt"
REMEDY = "copy the folder again from where the model was published"
# Precedes a word that follows a space, as in SentencePiece (Kudo and Richardson, 2018).
SPACE = "\u2581"
# Bytes whose characters byte-level BPE writes as they are; the other bytes are U+0100 and so on, in their order.
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PLAIN}
_BYTES |= {chr(0x100 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in _PLAIN)}
CONTINUES = "##"  # before a piece of WordPiece that is not the first one of a word


def _of_word_piece(piece: str) -> bytes:
    """A word that begins with a letter of an alphabet, or a digit, follows a space."""
    if piece.startswith(CONTINUES):
        return piece.removeprefix(CONTINUES).encode()
    return (" " * (piece[:1].isalnum() and piece < "\u2e80") + piece).encode()


def _of_byte_level(piece: str) -> bytes:
    return bytes(_BYTES[character] for character in piece)


def _of_sentence_piece(piece: str) -> bytes:
    if len(piece) == len("<0x00>") and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, " ").encode()


# The text of a piece, by the type of the decoder in tokenizer.json.
TEXTS: Mapping[str, Callable[[str], bytes]] = {
    "WordPiece": _of_word_piece,
    "ByteLevel": _of_byte_level,
    "Metaspace": _of_sentence_piece,
}


def piece_tokenizer(path: str) -> Callable[[str], list[str]]:
    """Return the function from a text to its pieces, with those that begin and end each text.

    An unknown piece is the part of the text that it stands for. path: of tokenizer.json. Raises UserError for a file
    that cannot be read, and without the package tokenizers.
    """
    made = open_tokenizer(Path(path))
    return lambda text: _pieces(made, made.encode(text), text) if text.strip() else []


def pieces_of_lines(path: str, texts: Sequence[str]) -> list[str]:
    """Return the pieces of all texts, with a line break between two texts. path: as for `piece_tokenizer`."""
    made = open_tokenizer(Path(path))
    encoded = zip(made.encode_batch([*texts]), texts, strict=True)
    return [piece for one, text in encoded for piece in ("\n", *_pieces(made, one, text))][1:]


def _pieces(made: Any, encoded: Any, text: str) -> list[str]:
    unknown = getattr(made.model, "unk_token", None)  # of others, the library gives the part of the text itself
    if unknown not in encoded.tokens:
        return list(encoded.tokens)
    return [text[slice(*at)] if x == unknown else x for x, at in zip(encoded.tokens, encoded.offsets, strict=True)]


def open_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a file, made once for each content. Raises UserError as `piece_tokenizer`.

    path: of a tokenizer.json, or of a BERT's vocab.txt, whose tokenizer_config.json says whether it knows capitals.
    """
    try:
        content = path.read_text(encoding="utf-8")
        lowercase = None
        beside = path.with_name("tokenizer_config.json")
        if path.name == VOCAB:
            lowercase = not beside.is_file() or bool(dict(read_json(beside)).get("do_lower_case", True))  # as in BERT
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: tokenizer cannot be read ({error}); {REMEDY}") from None
    return _made(content, lowercase, str(path))


@functools.lru_cache(maxsize=4)
def _made(content: str, lowercase: bool | None, path: str) -> Any:
    """Return the tokenizer of a file. lowercase: whether that of a vocab.txt has no capitals; None: of another."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise UserError(f"{path}: needs tokenizers; run `pip install tokenizers`") from None
    try:
        if lowercase is None:
            made = tokenizers.Tokenizer.from_str(content)
        else:
            from tokenizers.implementations import BertWordPieceTokenizer

            ids = {token: i for i, token in enumerate(content.removesuffix("\n").split("\n"))}
            made = tokenizers.Tokenizer.from_str(BertWordPieceTokenizer(ids, lowercase=lowercase).to_str())
    except Exception as error:  # of the library, derived from Exception
        raise UserError(f"{path}: no tokenizer ({str(error)[:60]}); {REMEDY}") from None
    made.no_truncation()
    made.no_padding()
    made.encode_special_tokens = True  # which texts write as any other; those round a text stay
    return made
