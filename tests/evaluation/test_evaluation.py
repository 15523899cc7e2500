"""The measures of a model, against slow twins; beside it the baseline by retrieval, and fluency by n-grams."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot import commands
from chatbot.attempts.trained import Trained
from chatbot.config.corpus import MIN_VOCABULARY, CorpusSettings
from chatbot.config.decoding import MIN_SCORE, DecodingSettings
from chatbot.config.evaluation import HeldOutSettings
from chatbot.config.training import Settings
from chatbot.corpus.dataset import encode
from chatbot.corpus.files import training_files
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import tokenizer, tokens_of
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.decoding.reply_text import Reply
from chatbot.errors import UserError
from chatbot.evaluation import evaluate as evaluate_module
from chatbot.evaluation import held_out
from chatbot.evaluation.evaluate import Evaluation, evaluate
from chatbot.evaluation.held_out import Baseline, baseline_of
from chatbot.evaluation.likelihood import Likelihood, Scorer
from chatbot.evaluation.measures import ORDER, Fluency, Sample
from chatbot.flags import compose
from chatbot.inference.replier import Replier
from chatbot.inference.tensorflow_model import replier_for
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.new_model import build_model
from tests.decoding.kneser_ney import SlowKneserNey, grams_of
from tests.export.untrained import write_attempt
from tests.oracle import likelihood as log_probability
from tests.tiny_models import next_id_of

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "\u2581", *BYTES])
SETTINGS = compose(Settings, rnn_size=8, embedding_size=6, max_length=6)


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    """An untrained model."""
    return build_model(SETTINGS.model, len(VOCABULARY), SETTINGS.learning.seed)


def test_likelihood_covers_every_token_of_whole_replies(model: Seq2Seq) -> None:
    """One reply is much longer than max_length."""
    pairs = [(["你好"], ["好"] * 30), (["你", "好", "\u2581吗"], ["你", "\u2581好"]), (["他"], ["她"])]
    sources, targets = (Ragged.from_rows([VOCABULARY.ids(pair[side]) for pair in pairs]) for side in (0, 1))
    data = EncodedPairs.question_to_answer(sources, targets, np.array([30, 2, 1]))
    rows, next_id = [data.select([i]) for i in range(len(pairs))], next_id_of(model)
    ids = [(row.sources.row(0).tolist(), row.targets.row(0).tolist()) for row in rows]
    expected = -sum(log_probability(next_id, *pair) for pair in ids)
    likelihood = Scorer(model)([data.select([0]), data.select([1, 2])])
    assert likelihood.nats == pytest.approx(expected, rel=1e-5)
    assert likelihood.tokens == 31 + 4 + 4  # "她" in bytes
    assert likelihood.characters == 30 + 2 + 1
    likelihood = Likelihood(nats=6.0, tokens=3, characters=4)
    assert (likelihood.nats_per_token, likelihood.nats_per_character) == (2.0, 1.5)
    assert likelihood.perplexity == pytest.approx(math.exp(2.0))
    assert math.isfinite(Likelihood(nats=1e9, tokens=1, characters=1).perplexity)


@pytest.fixture(scope="module")
def scorers(model: Seq2Seq) -> list[Scorer]:
    """On one device, and on three."""
    return [Scorer(model), Scorer(model, DeviceCopies(model, ["/CPU:0", "/CPU:1", "/CPU:2"]))]


@hypothesis.settings(max_examples=10)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=2), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_likelihood_is_the_same_for_any_number_of_devices(
    model: Seq2Seq, scorers: list[Scorer], shards: list[int], positions: int, seed: int
) -> None:
    """shards: the pairs of each. positions: of a batch; with 1, it has one pair."""
    rng = np.random.default_rng(seed)
    parts = []
    for pairs in shards:
        rows = [[rng.integers(5, len(VOCABULARY), rng.integers(1, 9)).tolist() for _ in range(pairs)] for _ in "qa"]
        sources, targets = map(Ragged.from_rows, rows)
        parts.append(EncodedPairs.question_to_answer(sources, targets, targets.lengths))
    for scorer in scorers:
        scorer.positions = positions
    one, three = (scorer(parts) for scorer in scorers)
    assert three.nats == pytest.approx(one.nats, rel=1e-6)
    assert (three.tokens, three.characters) == (one.tokens, one.characters)
    scorers[0].positions = 10_000  # one batch a shard
    assert scorers[0](parts).nats == pytest.approx(one.nats, rel=1e-5)


@pytest.fixture
def command(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs the command with flags. Returns its JSON and what it printed on standard error."""

    def run(*flags: str) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert commands.run("evaluate", flags) == 0
        printed = capsys.readouterr()
        return json.loads(printed.out.splitlines()[-1]), printed.err

    return run


def test_command_prints_one_json_object(
    command: Callable[..., tuple[dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n没有\n")
    write_attempt(Path("checkpoints/default"), data=("pairs.tsv",), both_directions="off")
    Path("held_out").write_bytes("[a\tb\n[c\tde\nno tab\n".encode("cp037"))  # not detected
    beam_sizes: list[int] = []

    def replier(*arguments: Any) -> Replier:
        beam_sizes.append(arguments[1].beam_size)
        return replier_for(*arguments)

    monkeypatch.setattr(evaluate_module, "replier_for", replier)
    flags = ["--encoding", "cp037", "--format", "tsv", "--beam-size", "3", "--baseline", "--tokenize", "intl"]
    measures, error = command("--data", "held_out", *flags)
    assert beam_sizes == [3]
    of_replies = [
        *("bleu", "chrf", "distinct_1", "distinct_2", "distinct_characters_1", "distinct_characters_2"),
        *("top_reply_share", "top10_reply_share", "relevance_at_1", "repeated_reply_share", "reply_entropy"),
        *("mean_reply_tokens", "question_nats_per_character", "fluency_nats_per_character"),
    ]
    assert list(measures) == [
        *("pairs", "tokens", "characters", "perplexity", "nats_per_token", "nats_per_character"),
        *("choice_random_at_1", "choice_nearest_at_1", "bleu_tokenize"),
        *(*of_replies, "references", "random", "baseline"),
    ]
    assert [*measures["references"]] == [*measures["random"]] == [*measures["baseline"]] == of_replies
    assert measures["question_nats_per_character"] is None  # one direction was learned
    assert measures["references"]["fluency_nats_per_character"] is None
    assert "nats by n-grams" not in error
    assert (measures["pairs"], measures["characters"], measures["bleu_tokenize"]) == (2, 3, "intl")
    assert "lines without a tab: 1" in error
    assert "Replies to 2 held-out questions; BLEU by sacrebleu's tokenisation intl:\n" in error
    rows = [line.split("  ")[0] for line in error.splitlines()]
    assert [*filter(None, rows)][-5:-1] == ["model", "references", "random of this file", "baseline"]
    assert measures["choice_random_at_1"] is measures["choice_nearest_at_1"] is None
    assert error.endswith("chosen among ten: - with random others, - with replies to the nearest questions.\n")


def test_command_compares_with_other_corpora(
    command: Callable[..., tuple[dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline that has the held-out pairs answers with their references. Fluency is that of replies alone."""
    Path("pairs.tsv").write_text("你好\t我很好\n吃了吗\t吃了\n", encoding="utf-8")
    dialogue = {"conversation": ["他他他", "我很好", "吃了", "我很好"]}
    Path("usual.jsonl").write_text(json.dumps(dialogue) + "\n", encoding="utf-8")
    known = "known.jsonl"
    Path(known).write_text('{"x": "你好", "y": "我很好"}\n{"x": "吃了吗", "y": "吃了"}\n', encoding="utf-8")
    write_attempt(Path("checkpoints/default"), data=(known,))
    used: list[DecodingSettings] = []

    def replier(trained: Trained, decoding: DecodingSettings, model: Any) -> Any:
        used.append(decoding)
        return SimpleNamespace(best=lambda ids: [Reply("吃了", float(len(x))) for x in ids])

    monkeypatch.setattr(evaluate_module, "replier_for", replier)
    flags = ["--baseline-data", "pairs.tsv", "--report", "r.html", "--fluency-corpus", "usual.jsonl"]
    Path("outside.txt").write_text("好\n\n今天天气怎么样\n", encoding="utf-8")
    flags += ["--precision", "0.5", "--outside", "outside.txt"]
    flags += ["--retrieve", "5"]
    measures, error = command("--data", known, *flags, "--map", "{question: x, answer: y}")  # of --data alone
    assert used[0].min_score == MIN_SCORE  # no answer is left out below the score that training has fitted
    assert measures["baseline"]["chrf"] == pytest.approx(100)
    curve = measures["precision_curve"]
    assert curve[-1][:2] == [1, 1 / 4]  # all answered; one of two is right, and none of those from outside
    assert [measures["answered_share"], 0.5, measures["least_score"]] in curve
    assert "<polyline points=" in Path("r.html").read_text(encoding="utf-8")
    assert f"--min-score {measures['least_score']:.4g}: 50% of the questions are answered" in error
    references, others = (measures[row]["fluency_nats_per_character"] for row in ("references", "random"))
    assert 0 < references < 3
    assert others == pytest.approx(references)
    assert re.search(r"nats by n-grams$", error, re.MULTILINE)
    assert re.search(r"^baseline +\d", error, re.MULTILINE)
    assert "Replies to 2 questions; BLEU" in error
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<td>我很好" in page
    assert f'<strong><span lang="en">Warning: {known}: this attempt was trained on it;' in page
    assert f"警告：{known} 参与过该模型的训练" in page


def test_each_reply_is_compared_with_its_own_reference(
    model: Seq2Seq, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that answers every question with its reference, in batches of questions of similar length."""
    pairs = [
        ("你好你好吗", "我今天很好啊"),
        ("吗", "他明日不坏吗"),
        ("你好", "他明日不坏吗"),
        ("你你好", "再见 吧朋友们"),
    ]
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in pairs))
    vocabulary = Vocabulary(["你好", *dict.fromkeys("".join(q + a for q, a in pairs).replace(" ", "\u2581")), *BYTES])
    references = {tuple(vocabulary.ids(tokenizer()(q))): a for q, a in pairs}

    def best(questions: list[list[int]]) -> list[Reply]:
        return [Reply(references[tuple(question)], 0.0) for question in questions]

    monkeypatch.setattr(evaluate_module, "replier_for", lambda *_: SimpleNamespace(best=best))
    monkeypatch.setattr(evaluate_module, "BATCH", 3)
    model = build_model(SETTINGS.model, len(vocabulary), seed=1)
    files = training_files(CorpusSettings(data=("pairs.tsv",), clean=("none",)))
    corpus = encode(files, Selection(), vocabulary)
    measures = evaluate(Evaluation(Trained(SETTINGS, vocabulary, model, step=0), corpus, DecodingSettings()))
    assert measures["bleu"] == pytest.approx(100.0)
    assert (measures["pairs"], measures["characters"], measures["top_reply_share"]) == (4, 24, 0.5)
    assert measures["distinct_1"] < 1  # of words
    assert {**measures, **measures["references"]} == measures
    assert measures["random"]["bleu"] < 100
    assert measures["random"]["reply_entropy"] == measures["reply_entropy"]
    scored = Scorer(model)(corpus.shards)
    assert measures["nats_per_character"] == pytest.approx(scored.nats_per_character)
    assert (measures["perplexity"], measures["tokens"]) == (pytest.approx(scored.perplexity), scored.tokens)


PAIRS = [
    ("今天天气怎么样", "下雨了"),
    ("你叫什么名字", "我叫小明"),
    ("你喜欢吃什么", "饺子"),
    ("你喜欢吃苹果吗", "喜欢"),
]


def test_reply_to_the_most_similar_question() -> None:
    samples = [Sample([], *pair) for pair in PAIRS]
    baseline = Baseline(samples)
    questions = ["明天的天气呢", "名字叫什么", "吃不吃苹果", "xyz"]
    assert [*map(baseline.reply, questions)] == ["下雨了", "我叫小明", "喜欢", "下雨了"]
    assert Baseline(samples[:1]).reply("") == "下雨了"


def test_training_pairs_of_an_attempt_exclude_its_validation_pairs(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in [*PAIRS, PAIRS[0]]))
    Path("held_out.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS[1:2]))
    settings = compose(Settings, data=("pairs.tsv",), validation="held_out.tsv")
    trained: Any = SimpleNamespace(settings=settings, vocabulary=Vocabulary(BYTES))
    given = HeldOutSettings(data=("held_out.tsv",), cache="cache")
    monkeypatch.setattr(held_out, "Baseline", lambda samples: [sample[1:] for sample in samples])
    expected = [PAIRS[0], *PAIRS[2:]]  # duplicates are dropped, too
    assert [*baseline_of(trained, None, given)] == expected  # type: ignore[misc]
    monkeypatch.setattr(held_out, "MAX_PAIRS", 2)
    drawn = [*baseline_of(trained, None, given)]  # type: ignore[misc]
    assert len(drawn) == 2
    assert [pair for pair in expected if pair in drawn] == drawn
    Path("pairs.tsv").unlink()
    with pytest.raises(UserError, match=r"--baseline: .*pairs\.tsv.*; give pairs with --baseline-data FILE"):
        baseline_of(trained, None, given)


REPLIES = ["丙乙", "甲乙丁丁", "乙丙甲", "丁乙丙丙", "甲乙丙"]


@pytest.fixture
def fluency(work_dir: Path) -> Fluency:
    Path("usual.tsv").write_text("".join(f"问\t{reply}\n" for reply in REPLIES), encoding="utf-8")
    settings = CorpusSettings(data=("usual.tsv",), columns=("1", "2"), clean=("none",), tokenizer="char", cache="cache")
    return Fluency(encode(training_files(settings), Selection(), 1000), tokens_of(settings))


def test_fluency_equals_the_slow_twin(fluency: Fluency) -> None:
    """Each character after those before it. The end of a text counts, and an empty one is its end alone."""
    begin, end, size = 0, 1, MIN_VOCABULARY + len({*"".join(REPLIES), "问"})
    slow = SlowKneserNey(grams_of([[*map(ord, reply)] for reply in REPLIES], ORDER, begin, end), ORDER, size)
    texts = ["甲乙丙", "丁", "", "乙乙乙乙"]
    grams = grams_of([[*map(ord, text)] for text in texts], ORDER, begin, end)
    nats = -sum(math.log(slow.probability(tuple(history), token)) for *history, token in grams)
    assert fluency(texts) == pytest.approx(nats / (3 + 1 + 4), rel=1e-5)


def test_common_texts_have_fewer_nats(fluency: Fluency) -> None:
    usual, turned, foreign = map(fluency, (["甲乙丙"], ["丙甲丁"], ["x y😀"]))
    assert usual is not None
    assert turned is not None
    assert foreign is not None
    assert usual < turned < foreign
    assert fluency(["", " "]) is fluency([]) is None
