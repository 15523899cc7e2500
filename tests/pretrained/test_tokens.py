"""The tokens of pretrained models: the same as by the library, in our ids, with their texts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.config.corpus import PIECES
from chatbot.corpus.dataset import training_set
from chatbot.corpus.pieces import SPACE, open_tokenizer
from chatbot.corpus.tokenizer import tokenizer
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, SPECIALS, UNK, PieceVocabulary, load_vocabulary
from chatbot.decoding.automaton import BoundedAutomaton, spelling_automaton
from chatbot.decoding.reply_text import ReplyText, words
from chatbot.errors import UserError
from chatbot.pretrained.tokens import piece_vocabulary
from tests.commands import ROOT
from tests.corpus.encoded import settings
from tests.pretrained.tokenizer_files import KINDS, save, tokenizer_of

LINES = (ROOT / "tests/data/chat.tsv").read_text(encoding="utf-8").splitlines()
TEXTS = [text for line in LINES for text in line.split("\t")]
MORE = ["don't you love me?", "我 love 你 3000 遍", "龘靐齉", "Ελλάδα café 😀", "１２３ｋｍ", "  a   b  "]


@dataclasses.dataclass
class Pretrained:
    """A tokenizer, its config.json, and the vocabulary and ids read from them."""

    path: Path
    config: dict[str, Any]
    vocabulary: PieceVocabulary
    rows: Any


@pytest.fixture(params=KINDS)
def pretrained(request: pytest.FixtureRequest, tmp_path: Path) -> Pretrained:
    made, config = tokenizer_of(request.param, [*TEXTS, *MORE[:2]], 1500)
    path = save(made, tmp_path / "published")
    return Pretrained(path, config, *piece_vocabulary(path, config))


def test_tokens_equal_the_library(pretrained: Pretrained) -> None:
    """Our ids map to the same ids of the library. An unknown piece is UNK."""
    vocabulary, rows, library = pretrained.vocabulary, pretrained.rows, open_tokenizer(pretrained.path)
    tokenise = tokenizer(PIECES, str(pretrained.path))
    for text in [*TEXTS, *MORE]:
        ids = vocabulary.ids(tokenise(text))
        assert rows[ids].tolist() == library.encode(text).ids
        assert ids[-1] == EOS
        assert vocabulary.reply_ids(tokenise(text)) == ids[:-1]
    assert tokenise(" \t") == []
    there = {**pretrained.config, "bos_token_id": None}
    assert rows[[PAD, BOS, EOS]].tolist() == [there[f"{x}_token_id"] for x in ("pad", "decoder_start", "eos")]
    assert rows[ASK] == -1
    used = rows[[i for i in range(len(rows)) if i not in (BOS, ASK) and rows[i] >= 0]]
    assert sorted(used.tolist()) == [*range(pretrained.config["vocab_size"])]  # each one once


def test_pieces_restore_the_text(pretrained: Pretrained) -> None:
    """Only what the tokenizer itself changes is lost: letters, widths, and spaces around Chinese."""
    vocabulary, library = pretrained.vocabulary, open_tokenizer(pretrained.path)
    tokenise = tokenizer(PIECES, str(pretrained.path))
    for text in [*TEXTS, *MORE]:
        ids = vocabulary.ids(tokenise(text))
        expected = text if library.normalizer is None else library.normalizer.normalize_str(text)
        if UNK not in ids:
            assert vocabulary.text(ids).replace(" ", "") == expected.replace(" ", "")
        spelled = [i for i in ids if i > ASK and vocabulary.texts[i]]
        pieces = [x.replace(SPACE, " ") for x in vocabulary.tokens_of(spelled, "surrogateescape")]
        found = [piece.encode(errors="surrogateescape") for piece in pieces]
        assert found == [vocabulary.texts[i] for i in spelled]
        assert spelled or UNK in ids
    english = vocabulary.text(vocabulary.ids(tokenise("我 love 你")))
    assert english == "我 love 你" if vocabulary.description["texts"] != "WordPiece" else "我 love你"


def test_vocabulary_is_read_as_written(pretrained: Pretrained, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(pretrained.vocabulary.content())
    again = load_vocabulary(path)
    assert isinstance(again, PieceVocabulary)
    assert again.tokens == pretrained.vocabulary.tokens
    assert again.fingerprint() == pretrained.vocabulary.fingerprint()
    assert again.texts == pretrained.vocabulary.texts
    assert again.spellings() == [[i] for i in range(len(again))]
    changed = {**pretrained.vocabulary.description, "beginning": [pretrained.vocabulary.tokens[len(SPECIALS) + 9]]}
    other = PieceVocabulary(pretrained.vocabulary.tokens[len(SPECIALS) :], changed)
    assert other.fingerprint() != again.fingerprint()
    path.write_bytes(pretrained.vocabulary.content()[:-2] + b"\n")
    with pytest.raises(UserError, match="vocabulary damaged"):
        load_vocabulary(path)


def test_pairs_are_encoded_with_begin_and_end_tokens(pretrained: Pretrained, tmp_path: Path) -> None:
    """A question includes EOS; training adds it to a reply. Characters are counted in the texts."""
    pairs = [("你好吗", "我很好，谢谢"), ("hello there", "你好 café龘靐")]
    chosen = settings(tmp_path, pairs, validation="none", tokenizer=PIECES, dictionary=str(pretrained.path))
    corpus = training_set(chosen.corpus, chosen.encoding, pretrained.vocabulary)
    tokenise, (shard,) = tokenizer(PIECES, str(pretrained.path)), [*corpus.shards]
    ids = pretrained.vocabulary.ids
    found = {(tuple(shard.sources.row(i)), tuple(shard.targets.row(i))) for i in range(len(pairs))}
    assert found == {(tuple(ids(tokenise(q))), tuple(ids(tokenise(a))[:-1])) for q, a in pairs}
    assert sorted(shard.characters.tolist()) == [6, 8]  # also of those that are unknown


def test_replies_start_with_begin_tokens_and_spell_characters(pretrained: Pretrained) -> None:
    """Pieces without text occur only before it. The bytes of a character follow one another."""
    vocabulary = pretrained.vocabulary
    automaton = spelling_automaton(vocabulary)
    bounded = BoundedAutomaton(automaton, 20)
    start = bounded.allowed_logits(np.zeros([1, len(vocabulary)], np.float32), np.array([bounded.start]), 0)[0]
    texts = vocabulary.texts
    for token in vocabulary.beginning:
        assert start[token] == 0
        assert bounded.states_after(np.array([bounded.start]), np.array([token])) == [bounded.start]
        assert not automaton.allowed[:, token].any()
    others = [i for i, text in enumerate(texts) if not text and i not in (EOS, *vocabulary.beginning)]
    assert len(others) >= len(SPECIALS) - 1 + 2  # those that no text has, too
    assert not automaton.allowed[:, others].any()
    assert not np.isfinite(start[[*others, EOS]]).any()
    tokenise = tokenizer(PIECES, str(pretrained.path))
    for text in [*TEXTS[:50], *MORE]:
        state = 0
        for i in vocabulary.reply_ids(tokenise(text)):
            if i not in (UNK, *vocabulary.beginning):
                assert automaton.allowed[state, i]
                state = int(automaton.next_states[state, i])
        assert automaton.allowed[state, EOS]


def test_pieces_of_a_reply_have_whole_characters(pretrained: Pretrained) -> None:
    """Even if several tokens spell one character. Joined, the pieces are the reply."""
    tokenise = tokenizer(PIECES, str(pretrained.path))
    for text in ("龘靐 你好😀", MORE[1]):
        ids = pretrained.vocabulary.reply_ids(tokenise(text))
        reply = ReplyText(pretrained.vocabulary, [], read := list[int]())
        found = []
        for i in ids:
            read.append(i)
            reply.read(is_whole=False)
            found.append(reply.piece())
        reply.read(is_whole=True)
        found.append(reply.rest())
        assert "".join(found) == pretrained.vocabulary.text(ids)
        assert "\ufffd" not in "".join(found)
        assert [word for word, _ in words(pretrained.vocabulary, ids)] == pretrained.vocabulary.tokens_of(ids)


CTC = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LINE: dict[str, Any] = {**dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False), "special": True}
LINE |= {"id": 301, "content": "\n"}


@pytest.mark.parametrize(
    ("content", "config", "message"),
    [
        ({"decoder": CTC}, {}, r"decoder 'CTC' is not supported; choose one of WordPiece, ByteLevel, Metaspace$"),
        ({"decoder": BYTE_LEVEL}, {}, r"a token cannot be read by decoder 'ByteLevel'; copy the folder again"),
        ({"post_processor": None}, {}, r"texts do not end with '\[SEP\]', the EOS of config.json"),
        ({"added_tokens": [LINE]}, {}, r"a token with a line break is not supported; choose another model$"),
        ({}, {"vocab_size": 50}, r"tokens, but vocab_size 50 in config.json; copy the folder again"),
        ({}, {"vocab_size": 10**12}, r"published: vocab_size 1000000000000 in config.json is not a whole number"),
        (
            {},
            {"pad_token_id": None},
            r"pad_token_id None in config.json is not a whole number up to 10,000,000; copy",
        ),
        ({}, {"pad_token_id": 9_999_998}, r"the ids 9999998, 3 and 3 in config.json are not all ids of tokens; copy"),
        ({}, {"eos_token_id": 9_999_999}, r"the ids 0, 9999999 and 3 in config.json are not all ids of tokens; copy"),
    ],
)
def test_unusable_tokenizers_are_refused(
    tmp_path: Path, content: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    made, usual = tokenizer_of("WordPiece", TEXTS, 300)
    path = save(made, tmp_path / "published")
    path.write_text(json.dumps({**json.loads(made.to_str()), **content}), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        piece_vocabulary(path, {**usual, **config})


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer.json: tokenizer cannot be read"):
        tokenizer(PIECES, str(path))
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer.json: no tokenizer \(.*\); copy the folder again"):
        tokenizer(PIECES, str(path))
    path.write_text("{} ", encoding="utf-8")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs tokenizers; run `pip install tokenizers`"):
        tokenizer(PIECES, str(path))


@pytest.mark.parametrize("lowercase", [None, False])
def test_vocabulary_of_a_bert(tmp_path: Path, lowercase: bool | None) -> None:
    """A folder with vocab.txt alone gives the tokens of the same tokenizer in one file."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = sorted({*"".join(TEXTS)} - {*" \n"})
    words = [*special, *characters, "love", "lo", "##ve", "##d", "Love", "cafe", "\u2028", "café"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(words)) + "\n", encoding="utf-8")
    if lowercase is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    config = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 3, "vocab_size": len({*words})}
    vocabulary, _ = piece_vocabulary(path, config)
    tokens = tokenizer(PIECES, str(path))("我Love你Café，loved")
    love = ["love"] if lowercase is None else ["Love"]
    cafe = "cafe" if lowercase is None else "Café"  # which is unknown
    assert tokens == ["[CLS]", "我", *love, "你", cafe, "，", "love", "##d", "[SEP]"]
    assert vocabulary.description["texts"] == "WordPiece"
    assert vocabulary.text(vocabulary.ids(tokenizer(PIECES, str(path))("我love你"))) == "我 love你"
    again = tmp_path / "dictionary.txt"  # as an attempt has it
    again.write_text(open_tokenizer(path).to_str(), encoding="utf-8")
    assert tokenizer(PIECES, str(again))("我Love你Café，loved") == tokens
    for damaged in ("[", "[1]"):
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(UserError, match=r"vocab.txt: tokenizer cannot be read"):
            tokenizer(PIECES, str(path))


@pytest.mark.parametrize("names", [("<eos>", "<bos>"), ("[SEP]", "[CLS]")])
def test_special_tokens_have_any_names_and_can_be_written_in_texts(tmp_path: Path, names: tuple[str, str]) -> None:
    """This includes our own special tokens. A user can write them, and a reply does not end there."""
    end, begin = names
    made, config = tokenizer_of("WordPiece", [*TEXTS, *["[]<> pad"] * 99], 700)
    content = made.to_str().replace("[SEP]", end).replace("[CLS]", begin)
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    vocabulary, _ = piece_vocabulary(path, config)
    tokenise = tokenizer(PIECES, str(path))
    ids = vocabulary.ids(tokenise(f"我{end}你[PAD]"))
    assert ids[0] == vocabulary.beginning[0]
    assert ids[-1] == EOS
    assert not {PAD, EOS, *vocabulary.beginning} & {*ids[1:-1]}
    assert vocabulary.text(ids).replace(" ", "") == f"我{end}你[pad]".lower()


def test_pairs_are_encoded_again_when_the_tokenizer_config_changes(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhow\nHOW\n", encoding="utf-8")
    found = []
    for lowercase in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
        path = str(tmp_path / "vocab.txt")
        chosen = settings(tmp_path, [("HOW", "how")], validation="none", tokenizer=PIECES, dictionary=path)
        config = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 3, "vocab_size": 6}
        vocabulary, _ = piece_vocabulary(Path(path), config)
        (shard,) = training_set(chosen.corpus, chosen.encoding, vocabulary).shards
        found.append(
            [vocabulary.tokens_of(side.row(0))[-2 + i :][:1] for i, side in enumerate((shard.sources, shard.targets))]
        )
    assert found == [[["▁how"], ["▁how"]], [["▁HOW"], ["▁how"]]]


def test_saved_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    """Training truncates and pads on its own."""
    made, _ = tokenizer_of("WordPiece", TEXTS, 700)
    plain = save(made, tmp_path / "plain")
    made.enable_truncation(4)
    made.enable_padding(length=30)
    assert tokenizer(PIECES, str(save(made, tmp_path / "bounded")))(TEXTS[0]) == tokenizer(PIECES, str(plain))(TEXTS[0])
