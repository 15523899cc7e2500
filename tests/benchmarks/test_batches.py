"""The benchmark of batch sizes: its runs and its errors."""

from pathlib import Path

import pytest

from benchmarks.batches import BatchesBenchmark, measure
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark


@pytest.mark.slow
def test_batches_are_compared_at_equal_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are found from the folder of the benchmark, which gets no attempt."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"问{i}\t答{i % 5}\n" for i in range(200)), encoding="utf-8")
    Path("held.tsv").write_text("".join(f"问{i}\t答{i % 5}\n" for i in range(200, 260)), encoding="utf-8")
    tiny = [
        "--rnn-size",
        "8",
        "--embedding-size",
        "8",
        "--tokenizer",
        "char",
        "--both-directions",
        "off",
        "--columns",
        "1",
        "2",
    ]
    flags = ["--sizes", "100", "--rules", "none", "linear", "--epochs", "2", "--"]
    data = ["--data", "pairs.tsv", "--validation", "held.tsv", "--preset", "small", "--both-directions", "off"]
    rows = benchmark("batches", *flags, *data, *tiny)["runs"]
    assert [(row["pairs per step"], row["rule"], row["steps per epoch"]) for row in rows] == [
        *((64, "none", 4), (100, "none", 2), (100, "linear", 2)),
    ]
    assert rows[0]["difference"] == 0
    for row in rows:
        assert row["difference"] == pytest.approx(row["best"] - rows[0]["best"], abs=1e-5)
        assert row["best"] <= row["last"]
        assert row["best epoch"] in (1, 2)
    assert rows[1]["last"] != rows[2]["last"]
    assert not Path("checkpoints").exists()


def test_settings_of_the_benchmark_are_refused() -> None:
    with pytest.raises(UserError, match=r"^--epochs: the benchmark determines it; leave it out$"):
        measure(BatchesBenchmark(), ["--preset", "large", "--epochs", "3"])
