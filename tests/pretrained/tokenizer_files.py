"""Small pretrained models, and tokenizers as they have them, made by the library that reads them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from chatbot.pretrained.folder import PretrainedModel, pretrained_model

MODELS = Path(__file__).parent / "models"
NAMES = sorted(path.parent.name for path in MODELS.glob("*/config.json"))
KINDS = "WordPiece", "ByteLevel", "Metaspace"


def model_in(folder: Path) -> PretrainedModel:
    """Return the pretrained model in a folder."""
    model = pretrained_model(str(folder))
    assert model is not None
    return model


def tokenizer_of(kind: str, texts: Iterable[str], size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train a tokenizer with at most `size` tokens. Return it with the keys of config.json about its ids."""
    if kind == "WordPiece":  # as BERT's for Chinese, with which BART is published
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
        made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
        made.decoder, ids = decoders.WordPiece(), {"pad": 0, "eos": 3, "decoder_start": 3}
    elif kind == "ByteLevel":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<s>", "<pad>", "</s>", "<unk>"]
        learn = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
        made.train_from_iterator(texts, learn)
        made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
        ids = {"pad": 1, "eos": 2, "decoder_start": 2}
    else:
        made = Tokenizer(models.Unigram())
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        )
        made.train_from_iterator(texts, trainer)
        made.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
        made.decoder, ids = decoders.Metaspace(), {"pad": 0, "eos": 1, "decoder_start": 0}
    return made, {f"{name}_token_id": i for name, i in ids.items()} | {"vocab_size": made.get_vocab_size() + 2}


def save(made: Tokenizer, folder: Path) -> Path:
    """Write tokenizer.json into a folder, and return its path."""
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def fitting_tokenizer(config: dict[str, Any], folder: Path) -> Path:
    """Write a tokenizer with the vocabulary size of a small model and Chinese characters as tokens."""
    special = {config["pad_token_id"]: "[PAD]", config["eos_token_id"]: "[SEP]"}
    unknown = min({*range(4)} - {*special})
    names = special | {unknown: "[UNK]"}
    pieces = {names.get(i, chr(0x4E00 + i)): i for i in range(config["vocab_size"])}
    made = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([*names.values()])
    end = ("[SEP]", config["eos_token_id"])
    made.post_processor = processors.TemplateProcessing("$A [SEP]", None, [end])
    return save(made, folder)
