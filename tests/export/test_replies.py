"""Exports reply as their attempt does: every format, search and kind of model, with and without other packages."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.attempts.settings import with_default_search
from chatbot.attempts.trained import Trained, load_trained
from chatbot.chat.loading import load_model
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import THREADS_VARIABLE, ExportSettings
from chatbot.corpus.vocabulary import EOS
from chatbot.decoding.reply_text import Origin
from chatbot.export.exported import Export, load_export
from chatbot.export.write import export
from chatbot.inference.engine import StreamWorker
from chatbot.inference.request import Question
from chatbot.inference.request_queue import RequestQueue
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.ratings import append_rating, rating_record
from tests.commands import ENVIRONMENT
from tests.export.untrained import QUESTIONS, write_attempt
from tests.inference.messages import Answer, Message, asked, replies_of, reply_of
from tests.inference.test_replier import ALL_TOKENS
from tests.model.small_transformer import TRANSFORMER
from tests.tiny_models import responder_of

ROOT = Path(__file__).parents[2]
HISTORY = ["你好", "我"]
BEAM: dict[str, Any] = {"beam_size": 4, **ALL_TOKENS, "ban": ("我",)}
CANDIDATES: dict[str, Any] = {"candidates": 4, "top_p": 0.8, "rerank": 0.5}
SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_k": 100, "top_p": 0.9, "min_p": 0.001, "seed": 3}


def exported(directory: Path, folder: Path, kind: str, **flags: Any) -> Path:
    """The folder of an export of the attempt in a directory."""
    export(ExportSettings(directory.name, kind, **flags), directory, folder)
    return folder


def of_export(found: Export, decoding: DecodingSettings) -> TextResponder:
    """What answers texts by an export."""
    return TextResponder(found.model, found.vocabulary, found.settings, decoding, found.retrieval)


def check_replies(trained: Trained, found: Export, decoding: DecodingSettings) -> None:
    """All candidates and scores are those of the attempt: alone, in a batch, with history and as a stream."""
    attempt = responder_of(trained, decoding)
    sources = [attempt.source(question, HISTORY) for question in QUESTIONS]
    expected = attempt.replier.candidates(sources)
    assert len({replies[0].text for replies in expected}) > 1
    responder = of_export(found, decoding)
    assert [responder.source(question, HISTORY) for question in QUESTIONS] == sources
    batch = responder.replier.candidates(sources)
    alone = [responder.replier.candidates([source])[0] for source in sources]
    for given in (batch, alone):
        assert [[text for text, *_ in row] for row in given] == [[text for text, *_ in row] for row in expected]
        scores, others = ([reply.score for row in x for reply in row] for x in (given, expected))
        np.testing.assert_allclose(scores, others, rtol=1e-3, atol=1e-4)
    for question, replies in zip(QUESTIONS, batch, strict=True):
        assert reply_of(responder, question, HISTORY) == replies[0].text


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attempt with the defaults of the small presets, and its export beside it."""
    folder = tmp_path_factory.mktemp("preset")
    directory = write_attempt(folder / "tiny", retrieves=True, copy=True, ngrams=3)
    exported(directory, folder / "onnx", "onnx")
    return directory


@pytest.mark.parametrize(
    "search", [BEAM, CANDIDATES, {"beam_size": 2, "retrieve": "4"}], ids=["beam", "candidates", "retrieval"]
)
def test_defaults_of_the_presets_reply_alike(preset: Path, search: dict[str, Any]) -> None:
    check_replies(load_trained(preset), load_export(preset.with_name("onnx")), DecodingSettings(**search))


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("", 0), ("x", 0)])
def test_threads_are_those_of_the_environment(
    preset: Path, given: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `limit_threads` sets them for the chat; 0: as many as cores."""
    monkeypatch.setenv(THREADS_VARIABLE, given)
    model = load_export(preset.with_name("onnx")).model
    sessions = model._encode, model._step
    assert [session.get_session_options().intra_op_num_threads for session in sessions] == [threads] * 2


def test_unwanted_search_ends(preset: Path) -> None:
    responder = of_export(load_export(preset.with_name("onnx")), DecodingSettings(beam_size=4))
    answers = iter([True, True, False, False])  # after each id, and of all
    source = responder.source("你好吗", ())
    assert responder.replier.candidates([source], is_wanted=lambda: next(answers)) == [[]]


def test_a_long_question_that_has_left_widens_no_batch(preset: Path) -> None:
    model = load_export(preset.with_name("onnx")).model
    state = model.encode([[7] * 12, [8, 9], [9]])
    assert state["mask"].shape == (3, 12)
    short = model.take([state], np.array([1, 2]))
    assert {name: x.shape[1] for name, x in short.items() if name in ("mask", "memory", "keys")} == dict.fromkeys(
        ("mask", "memory", "keys"), 2
    )
    logits, _ = model.step(short, np.array([5, 5]))
    np.testing.assert_allclose(logits, model.step(model.encode([[8, 9], [9]]), np.array([5, 5]))[0], atol=1e-4)
    both = model.take([short, state], np.array([0, 2, 1]))
    assert both["mask"].sum(axis=1).tolist() == [2, 12, 1]


def test_caches_are_no_longer_than_the_replies(tmp_path: Path) -> None:
    """Also in a batch that is never empty, for what begins later or has ended; their lengths change no reply."""
    directory = write_attempt(tmp_path / "tiny", **TRANSFORMER)
    trained, found = load_trained(directory), load_export(exported(directory, tmp_path / "onnx", "onnx"))
    models: list[Any] = [TensorFlowModel(trained.model), found.model]
    for model in models:
        state = model.encode([[7, 8], [9]])
        for ids in ([5, 5], [6, 7], [8, 9]):
            _, state = model.step(state, np.array(ids))
        both = model.take([state, model.encode([[7, 8]])], np.array([1, 2]))
        logits, both = model.step(both, np.array([9, 5]))
        alone, _ = model.step(model.encode([[7, 8]]), np.array([5]))
        np.testing.assert_allclose(logits[1:], alone, atol=1e-4)
        later = model.take([both], np.array([1]))
        sizes = []
        for of_rows in (state, both, later):
            cells = of_rows["cells"] if isinstance(of_rows, dict) else of_rows.tensors["cells"]
            sizes.append({x.shape[2] for x in tf.nest.flatten(cells) if len(x.shape) == 4})
        assert sizes == [{3}, {4}, {1}]
        np.testing.assert_allclose(
            model.step(later, np.array([6]))[0], model.step(both, np.array([6, 6]))[0][1:], atol=1e-4
        )


@pytest.mark.parametrize(("name", "counts"), [("tiny", True), ("onnx", True), ("other", False)])
def test_ratings_of_the_attempt_and_of_its_export_count(preset: Path, tmp_path: Path, name: str, counts: bool) -> None:
    ratings = tmp_path / "ratings.jsonl"
    append_rating(ratings, rating_record("你好吗", "今天好", [], "good", name, written_to=""))
    responder = load_model(preset.with_name("onnx"), ratings=ratings).responder
    assert responder.replier.follows_ratings
    assert responder.origin("你好吗", "今天好") == (Origin("你好吗", is_rated=True) if counts else Origin())
    unrated = load_model(preset.with_name("onnx"), ratings=None).responder
    assert not unrated.replier.follows_ratings


def test_attention_is_that_of_the_attempt(preset: Path) -> None:
    expected = responder_of(load_trained(preset), DecodingSettings()).attention("你好吗", "今天好")
    found = of_export(load_export(preset.with_name("onnx")), DecodingSettings()).attention("你好吗", "今天好")
    assert expected is not None
    assert found is not None
    assert (found.question, found.reply) == (expected.question, expected.reply)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-5)


def test_engine_answers_in_batches_as_the_responder_alone(preset: Path) -> None:
    decoding = DecodingSettings(**{**SAMPLING, "anti_lm": 0.5, "anti_lm_tokens": 2})
    responder = of_export(load_export(preset.with_name("onnx")), decoding)
    worker = StreamWorker(responder, RequestQueue(1))
    messages: list[list[Message]] = [[] for _ in QUESTIONS]
    waiting = [asked(Question(text), own) for text, own in zip(QUESTIONS, messages, strict=True)]
    for step in range(15):  # two arrive at each step
        worker.step(waiting[2 * step : 2 * step + 2])
    assert [Answer(own).texts for own in messages] == [[reply_of(responder, question)] for question in QUESTIONS]


GRU = {
    "cell": "gru",
    "num_layers": 2,
    "residual": True,
    "attention": "bahdanau",
    "tied_embeddings": False,
    "ngrams": 2,
}
# With more than ten tensors of state, their names are not in the order of their numbers.
DEEP = {"history": 2, "copy": True, "bidirectional": False, "num_layers": 5}
NO_ATTENTION = {"attention": "none", "bidirectional": False, "both_directions": "off"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "search"),
    [
        (GRU, SAMPLING),
        ({**TRANSFORMER, "copy": True}, BEAM),
        (DEEP, {"temperature": 1.0, "anti_lm": 0.5}),
        (NO_ATTENTION, {"beam_size": 1}),
    ],
    ids=["gru", "transformer", "deep, copying and history", "no attention"],
)
def test_other_models_reply_alike(tmp_path: Path, settings: dict[str, Any], search: dict[str, Any]) -> None:
    directory = write_attempt(tmp_path / "tiny", **settings)
    found = load_export(exported(directory, tmp_path / "export", "onnx"))
    check_replies(load_trained(directory), found, DecodingSettings(**search))


def run_python(program: str, *arguments: str, stdin: str) -> str:
    """The output of a Python program in a new process."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, env=ENVIRONMENT, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_onnx_answers_in_a_process_without_tensorflow(preset: Path) -> None:
    """And without jieba, which a tokenizer of characters does not need."""
    names = ["tensorflow", "keras", "jieba", "rjieba", "tf2onnx", "onnx"]
    blocked = f"import sys; sys.modules.update(dict.fromkeys({names}))"
    program = f"{blocked}; sys.argv = ['chat.py', *sys.argv[1:]]; from chatbot.commands import main; main('chat')"
    questions = ["", *QUESTIONS, "xyz"]
    found = run_python(program, "--export", str(preset.with_name("onnx")), stdin="\n\n".join(questions) + "\n")
    attempt = responder_of(load_trained(preset), with_default_search(DecodingSettings(), preset))
    replies = replies_of(attempt, questions)
    assert found.splitlines()[::2] == replies  # each of a conversation of its own
    assert {bool(attempt.origin(q, r).question) for q, r in zip(questions, replies, strict=True)} == {True, False}


def test_signatures_of_a_savedmodel_reply_as_the_attempt(
    preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not saved, which takes most of the time."""
    signatures: dict[str, Any] = {}
    monkeypatch.setattr(tf.saved_model, "save", lambda module, folder, functions: signatures.update(functions))
    exported(preset, tmp_path / "export", "savedmodel", decoding=DecodingSettings(**CANDIDATES, ban=("我",)))
    trained = load_trained(preset)
    attempt, greedy, beam, sample = (
        responder_of(trained, DecodingSettings(**flags, ban=("我",)))
        for flags in (CANDIDATES, {"beam_size": 1}, {"beam_size": 5}, {**CANDIDATES, "rerank": None})
    )
    words = max(QUESTIONS, key=len)
    ids = signatures["ids"](tokens=tf.constant([[*words, "", ""]]))["ids"]
    assert ids[0].numpy().tolist() == [*attempt.source(words, []).ids]
    shape = signatures["reply"].structured_input_signature[1]["uniform"].shape[1:]
    uniform = tf.constant(np.random.default_rng([1, *ids[0].numpy()]).random(shape, np.float32)[None])
    assert signatures["reply"](ids=ids, uniform=uniform)["text"][0].numpy().decode() == reply_of(attempt, words)
    for name, responder in {"greedy": greedy, "beam": beam, "sample": sample}.items():
        numbers = {"uniform": uniform} if name == "sample" else {}
        rows = signatures[name](ids=ids, **numbers)["ids"][0].numpy().tolist()
        texts = [trained.vocabulary.text([i for i in row if i > EOS]).strip() for row in rows]
        assert reply_of(responder, words) in (texts if name == "sample" else texts[:1])


@pytest.mark.slow
def test_savedmodel_answers_in_a_process_with_tensorflow_alone(preset: Path, tmp_path: Path) -> None:
    """By the program of docs/export.md."""
    document = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    flags: dict[str, Any] = {**CANDIDATES, "ban": ("我",)}
    folder = exported(preset, tmp_path / "export", "savedmodel", decoding=DecodingSettings(**flags))
    program = f"import sys; sys.modules['chatbot'] = None\n{program}"
    found = run_python(program, str(folder), stdin="\n".join(QUESTIONS[:3]) + "\n")
    attempt = responder_of(load_trained(preset), DecodingSettings(**flags))
    assert found.splitlines() == replies_of(attempt, QUESTIONS[:3])
