"""What an attempt keeps for the chat and the evaluation: its history, and its training pairs, which are looked up."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

import chatbot
from chatbot.attempts.trained import Trained, load_trained
from chatbot.chat.loading import load_model
from chatbot.chat.server.app import create_app
from chatbot.chat.server.models import Models
from chatbot.commands import run
from chatbot.config.chat import ChatSettings
from chatbot.config.corpus import CorpusSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import ExportSettings
from chatbot.corpus.dataset import encode
from chatbot.corpus.files import corpus_files
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.selection import Selection
from chatbot.decoding.reply_text import Reply
from chatbot.errors import UserError
from chatbot.evaluation.evaluate import Evaluation, evaluate
from chatbot.export.write import export
from chatbot.flags import replace
from chatbot.inference.replier import Replier, Source
from chatbot.retrieval.embeddings import UnavailableError
from chatbot.training.data import prepare
from chatbot.training.embedding import PairEmbedding
from chatbot.training.loop import announce, final_replies, train
from chatbot.training.reporting.terminal import question_line
from chatbot.training.result import TIME_UP
from tests.chat.terminal.typed import Line, piped, typed
from tests.inference.messages import best_of, replies_of, reply_of
from tests.retrieval.test_vectors import use_groups
from tests.tiny_models import responder_of
from tests.training.small_run import open_with, small_settings
from tests.training.untraced_update import UntracedUpdate, train_untraced

TALKS = [[f"第{talk}句", "好的", f"再说{talk}", "再见"] for talk in range(12)]
SETTINGS: dict[str, Any] = {"data": ("talks.jsonl",), "history": 2, "tokenizer": "char", "validation": "none"}


@pytest.fixture
def trained(work_dir: Path) -> Trained:
    """An attempt of one step in the current folder, beside its conversations."""
    Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    train_untraced(**SETTINGS, vocabulary_size=320, attempt="whole", steps=1)
    return load_trained(Path("checkpoints/whole"))


def test_attempt_keeps_its_history(trained: Trained) -> None:
    with pytest.raises(UserError, match="--history 2 -> 1"):
        train_untraced(**{**SETTINGS, "history": 1}, vocabulary_size=320, attempt="whole", steps=4)
    with pytest.raises(UserError, match="--history 3: --attempt whole was trained with --history 2; give at most"):
        ChatSettings("whole", history=3).turns_of(trained.settings.encoding.history)
    assert [ChatSettings(history=given).turns_of(2) for given in (None, 0, 1, 2)] == [2, 0, 1, 2]


def test_evaluation_and_chat_read_the_same_sources(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[list[int]] = []

    def recorded(replier: Replier, questions: Sequence[Source], *others: Any, **named: Any) -> list[list[Reply]]:
        sources.extend([*source.ids] for source in questions)
        return candidates(replier, questions, *others, **named)

    candidates = Replier.candidates
    monkeypatch.setattr(Replier, "candidates", recorded)
    settings = CorpusSettings(data=("talks.jsonl",), tokenizer="char", clean=("control",), cache="cache")
    files, max_length = corpus_files(find_sources(settings.data), settings), trained.settings.model.max_length
    corpus = encode(files, Selection(), trained.vocabulary, trained.settings.encoding.history, max_length)
    measures = evaluate(Evaluation(trained, corpus, DecodingSettings(beam_size=1)))
    of_evaluation, sources[:] = sorted(sources), []
    assert measures["pairs"] == 3 * len(TALKS)
    responder = responder_of(trained, DecodingSettings(beam_size=1))
    for talk in TALKS:
        for turn in range(1, len(talk)):
            best_of(responder, talk[turn - 1], history=talk[: turn - 1])
    assert sorted(sources) == of_evaluation
    marks = {trained.vocabulary.first_mark, trained.vocabulary.first_mark + 1}
    assert max(sum(token in marks for token in source) for source in sources) == 3


def trained_with_pairs(held_out: Path, **changes: Any) -> list[list[str]]:
    """Train a step with an index of the pairs, and return these. One like the first of them is held out."""
    pairs = [line.split("\t")[:2] for line in Path("pairs.tsv").read_text().splitlines()]
    held_out.write_text(f"{pairs[0][0]}呀\t{pairs[1][1]}\n")
    settings = small_settings(data=("pairs.tsv",), validation=str(held_out), **changes, validate_every=1, steps=1)
    train(open_with(UntracedUpdate, settings, prepare(settings)))
    return pairs


def test_run_with_validation_keeps_its_pairs_for_the_chat(held_out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last lines of the run show replies as the chat gives them.

    Ratings change the next reply in the terminal, where /why names the pair that a rating has taken away; the Python
    API reads no ratings.
    """
    with Path("pairs.tsv").open("a") as file:
        file.write(f"{'长' * 60}\t久\n")  # which the model cannot judge
    *pairs, _ = trained_with_pairs(held_out, both_directions="on", tokenizer="char")
    directory, question = Path("checkpoints/default"), f"{pairs[0][0]}呀"
    kept = json.loads((directory / "retrieval" / "index.json").read_text())
    assert kept["corpus"] == json.loads((directory / "data.json").read_text())["fingerprint"]
    model = load_model(directory)
    responder = model.responder
    assert responder.retrieval is not None
    assert len(responder.retrieval) == len(pairs)
    reply = reply_of(responder, question)
    assert [responder.origin(question, reply).question, reply] in pairs
    assert question_line(question, reply) in capsys.readouterr().out

    def shown(*lines: Line) -> list[str]:
        capsys.readouterr()
        typed(model, lines)
        return capsys.readouterr().out.splitlines()

    first, why, *_ = shown(question, "/bad", "/why")
    assert [why.removeprefix("A person wrote this reply to: "), first] in pairs
    assert first not in shown(question)
    generated = shown("xyz", "/good")
    good, why, *_ = shown("xyz?", "/why")
    assert ([good], why) == (generated, "A user rated this reply good for: xyz")
    assert chatbot.load(directory).reply(question) == first


def test_retrieve_pairs_0_keeps_none(held_out: Path) -> None:
    trained_with_pairs(held_out, retrieve_pairs=0)
    assert not Path("checkpoints/default/retrieval").exists()
    model = load_model(Path("checkpoints/default"))
    assert model.responder.decoding.retrieved == 0
    with pytest.raises(UserError, match=r"^--retrieve 5: this attempt has no index"):
        load_model(Path("checkpoints/default"), DecodingSettings(retrieve="5"))


def missing(name: str, copy: Path | None = None) -> None:
    """Raise the error of an embedding model whose package is not installed."""
    raise UnavailableError("gone")


def test_pairs_are_looked_up_by_meaning_too(
    held_out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the end of training on, or by a command afterwards, which removes it, too; a resumed run keeps it."""
    model = use_groups(monkeypatch)
    folder = Path("checkpoints/default/retrieval")
    pairs = trained_with_pairs(held_out, embeddings="auto")
    assert {text for pair in pairs for text in pair} <= {*model.texts}
    assert (folder / "meaning").exists()
    capsys.readouterr()
    trained_with_pairs(held_out, embeddings="auto")
    responder = load_model(Path("checkpoints/default")).responder
    assert reply_of(responder, pairs[0][0]) in {reply for _, reply in pairs}
    with monkeypatch.context() as patched:
        patched.setattr("chatbot.retrieval.vectors.open_embeddings", missing)
        capsys.readouterr()
        responder = load_model(Path("checkpoints/default")).responder
        assert capsys.readouterr().err == "Warning: gone. Until then, pairs are searched by characters only.\n"
        assert reply_of(responder, pairs[0][0]) in {reply for _, reply in pairs}
    for embeddings, kept, line in (("none", False, "characters."), ("e5", True, "characters and by meaning.")):
        run("attempts", ["index", "default", "--embeddings", embeddings])
        assert (folder / "meaning").exists() == kept
        assert f"indexed by {line}" in capsys.readouterr().out
    run("attempts", ["index", "default", "--embeddings", "none"])
    settings = small_settings(data=("pairs.tsv",), validation=str(held_out), validate_every=1, steps=2)
    resumed = open_with(UntracedUpdate, settings, prepare(settings))
    calls: list[str] = []
    embedding: Any = SimpleNamespace(stop=lambda: calls.append("stop"), finish=lambda: calls.append("finish"))
    for stop in (TIME_UP, "done"):
        assert final_replies(resumed, stop, embedding)
    assert calls == ["stop", "finish"]
    shutil.rmtree(folder)
    with pytest.raises(
        UserError, match=r"^index default: the attempt has no training pairs; run its training command again$"
    ):
        run("attempts", ["index", "default", "--embeddings", "e5"])


def test_without_validation_replies_are_looked_up_or_the_fallback(
    held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attempt that is validated later keeps its pairs for the model to judge."""
    run, _ = train_untraced(data=("pairs.tsv",), validation="none", steps=1)
    assert "checkpoint is used, and the chat only looks answers up. Valid" in capsys.readouterr().out
    announce(dataclasses.replace(run, settings=replace(run.settings, retrieve_pairs=0)))
    assert "checkpoint is used. Valid" in capsys.readouterr().out
    pairs = [line.split("\t")[:2] for line in Path("pairs.tsv").read_text().splitlines()]
    responder = load_model(Path("checkpoints/default"), DecodingSettings(fallback="?")).responder
    assert not responder.replier.generates
    for question, reply in pairs:
        assert [question, reply_of(responder, question)] == [question, reply]
    assert replies_of(responder, ["xyz", pairs[0][0]]) == ["?", pairs[0][1]]
    description = json.loads(Path("checkpoints/default/retrieval/index.json").read_text())
    assert description["validated"] is False


def test_long_questions_of_a_shop_get_their_long_answers(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through a pipe and a server, by an export, and at the end of training: the model reads but 8 tokens."""
    topics = ["保修", "退货", "送货", "付款"]
    pairs = [(f"你好，我想问一下你们店的{topic}是怎么样的", f"{topic}：{'我们会为您办好，' * 9}") for topic in topics]
    Path("faq.tsv").write_text("".join(f"{question}\t{answer}\n" for question, answer in [*pairs, ("你好", "在")]))
    questions, answers = zip(*pairs, strict=True)
    settings = small_settings(data=("faq.tsv",), tokenizer="char", validation="none", max_length=8, steps=1)
    run = open_with(UntracedUpdate, settings, prepare(settings, questions))
    assert "  not learned, but looked up: pairs longer than --max-length 8 tokens: 4\n" in capsys.readouterr().out
    assert train(run).step == 1
    assert final_replies(run, "done", PairEmbedding(None))[-len(pairs) :] == [*answers]
    directory = Path("checkpoints/default")
    export(ExportSettings("default", "onnx"), directory, Path("onnx"))
    for folder in (directory, Path("onnx")):
        model = load_model(folder)
        capsys.readouterr()
        assert piped(model, "\n\n".join(questions)) == 0
        assert capsys.readouterr().out.splitlines()[::2] == [*answers]
        directories = {"shop": folder}.copy
        with TestClient(create_app(Models(directories, load_model, 10**12))) as client:
            for question, answer in pairs:
                response = client.post(
                    "/v1/chat/completions", json={"messages": [{"role": "user", "content": question}]}
                )
                (choice,) = response.json()["choices"]
                assert choice["message"]["content"] == answer
                assert (choice["chatbot"]["question"], choice["chatbot"]["read"]) == (question, None)
