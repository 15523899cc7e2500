"""The warning about replies that collapse, and the measures of replies in a run."""

import json
from pathlib import Path

import pytest

from chatbot.errors import UserError
from chatbot.evaluation.measures import top_share
from chatbot.training.data import prepare
from chatbot.training.validation import Collapse
from tests.training.attempts import metrics
from tests.training.small_run import small_settings
from tests.training.untraced_update import train_untraced

DIFFERENT = [str(i) for i in range(200)]


def with_common(number: int) -> list[str]:
    """200 replies, of which this many are equal."""
    return ["嗯"] * number + DIFFERENT[number:]


def test_collapse_is_reported_once_until_replies_recover() -> None:
    collapse = Collapse(top_share(DIFFERENT, 10))  # their ten most common are 5%
    warnings = [collapse.warning(with_common(number)) for number in (2, 52, 80, 200, 40, 100)]
    assert [warning is not None for warning in warnings] == [False, True, False, False, False, True]
    assert warnings[1] == "replies collapse: the ten most common are 30% of 200; references 5%"
    # Few or common references never do.
    assert Collapse(top_share(["好", "是"], 10)).warning(["嗯"] * 2) is None
    assert Collapse(top_share(with_common(170), 10)).warning(["嗯"] * 200) is None


@pytest.fixture
def held_out(held_out: Path) -> Path:
    """30 validation pairs with different answers, which decide."""
    held_out.write_text("".join(f"甲{i}\t{chr(0x4E00 + i)}\n" for i in range(30)))
    return held_out


def test_replies_are_measured_at_each_validation(
    pairs_file: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrained model gives one reply to all questions; so the measure that chooses the best never improves."""
    train_untraced(validation=str(held_out), validate_every=1, steps=3, best_by="relevance_at_1")
    printed = capsys.readouterr()
    assert printed.err.count("Warning: replies collapse: the ten most common are 100% of 30; references 33%.") == 1
    assert "nats per character, 0.1000 relevance_at_1, the best so far" in printed.out
    assert "nats per character, 0.1000 relevance_at_1, no improvement (2 in a row)" in printed.out
    last = metrics()[-1]
    assert (last["validation.relevance_at_1"], last["validation.top_reply_share"]) == (pytest.approx(0.1), 1.0)
    assert "validation.question_nats_per_character" not in last
    best = json.loads(Path("checkpoints/default/best").read_text())
    assert (best["step"], best["best_by"], best["best_value"]) == (1, "relevance_at_1", pytest.approx(0.1))
    assert best["best_nats"] == metrics()[0]["validation.nats_per_character"]


def test_likelihood_of_questions_can_choose_the_best(pairs_file: Path, held_out: Path) -> None:
    flags = {"both_directions": "on", "best_by": "question_nats_per_character"}
    train_untraced(validation=str(held_out), validate_every=1, steps=1, **flags)
    best = json.loads(Path("checkpoints/default/best").read_text())
    assert best["best_value"] == metrics()[0]["validation.question_nats_per_character"]


def test_measured_questions_are_spread_over_the_validation_pairs(
    pairs_file: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.data.MEASURED", 10)
    settings = small_settings(data=(str(pairs_file),), validation=str(held_out))
    measured = prepare(settings).measured
    assert len({sample.question for sample in measured}) == 10
    assert measured == prepare(settings).measured
    assert prepare(small_settings(data=(str(pairs_file),))).measured == []


def test_likelihood_of_questions_needs_both_directions(pairs_file: Path, held_out: Path) -> None:
    """With --both-directions auto, only the data decide whether both are learned."""
    chosen = {"best_by": "question_nats_per_character", "data": (str(pairs_file),), "validation": str(held_out)}
    assert prepare(small_settings(**chosen)).both_directions
    held_out.write_text("甲\t乙\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.data.FEWEST_DECIDING", 50)
        with pytest.raises(UserError, match=r"--best-by question_nats_per_character: .*--both-directions on"):
            prepare(small_settings(**chosen))
