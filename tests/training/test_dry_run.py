"""--dry-run plans a run by a few steps, and writes nothing."""

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

import chatbot
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, replace
from chatbot.model.sequences import MULTIPLE
from chatbot.training import dry_run as module
from chatbot.training.data import prepare
from chatbot.training.devices.towers import Tower
from chatbot.training.dry_run import dry_run, epoch_times
from chatbot.training.run import Run, open_run
from chatbot.training.start import start
from tests.training.small_run import TOWERS, small_settings
from tests.training.untraced_update import train_untraced


def files() -> dict[Path, tuple[bytes, int]]:
    """The content and the time of each file outside the cache, and the time of each folder."""
    paths = [path for path in Path().rglob("*") if path.parts[0] != "data"]
    return {path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in paths}


def test_plan_of_an_attempt_that_exists_changes_no_file(
    pairs_file: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two towers, the first of which has the weights. The attempt is at step 3 of 9, and 10 pairs are 3 batches."""
    held_out.write_text("甲甲\t癸癸癸\n乙乙\t子\n")
    train_untraced(validation=str(held_out), both_directions="off", steps=3, validate_every=4)
    before = files()
    capsys.readouterr()
    result = chatbot.train(attempt="default", steps=9, dry_run=True, towers=2)
    assert (result.step, result.stopped, result.interrupted) == (3, "--dry-run", False)
    assert result.directory == Path("checkpoints/default").absolute()
    assert files() == before
    printed = capsys.readouterr().out
    lines = printed[printed.index("Settings: --data") :].splitlines()
    assert "--rnn-size 16" in lines[0]
    parameters = int(lines[1].removeprefix("Parameters: ").replace(",", ""))
    millions = [float(line.split()[-1]) for line in lines[3 : lines.index("Memory, at the largest batch:")]]
    assert sum(millions) == pytest.approx(parameters / 1e6, abs=0.0006 * len(millions))
    assert re.search(r"\n  embedding +embedding\S* +272x8 +0\.002\n", printed)
    sizes = rf" +{parameters * 4e-6:.1f} MB +{parameters * 8e-6:.1f} MB +{parameters * 4e-6:.1f} MB +not measured "
    assert re.search(rf"\n  cpu_0 {sizes}", printed), printed
    assert re.search(r"\n  cpu_1 +0\.0 MB +0\.0 MB +(0\.\d MB) +not measured +over \1\n", printed), printed
    if sys.platform == "linux":
        whole = re.search(r"\n  Peak memory of the whole process so far: ([\d,]+) MB\n", printed)
        assert whole is not None, printed
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        assert 1e6 * int(whole[1].replace(",", "")) == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.5)
    assert re.search(r"\nSteps: 3 per epoch of 10 pairs; \d+\.\d ms per step\n", printed)
    assert re.search(r"\nTime: 6 steps; 0:00:\d\d left, [-\d]+ \d\d:\d\d, without validations\n", printed)
    assert re.search(
        r"\nOne epoch: 0:00:\d\d on 1 tower, 0:00:\d\d on 2 towers; measured with batches of the same size\n", printed
    )


def test_plan_of_two_replicas(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one has the weights, and vectors beside them; the other one only these."""
    settings = small_settings(data=("pairs.tsv",), dry_run=True, variable_update="replicated")
    settings = replace(settings, rnn_size=128, embedding_size=64)
    dry_run(open_run(settings, prepare(settings), TOWERS))
    printed = capsys.readouterr().out
    first, second = (float(found) for found in re.findall(r"\n  cpu_\d +(\d+\.\d) MB", printed))
    assert second > 0.5
    assert 1.8 * second < first <= 2.1 * second
    assert "Time: 1,000 steps; " in printed
    assert not Path("checkpoints").exists()
    assert not Path("tensorboard").exists()


def test_epochs_are_measured_with_fewer_devices(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of three devices, and with two. An epoch has three batches, the first with two of the ten pairs."""
    measured = []
    too_large = False

    def seconds_per_step(run: Run) -> float:
        shares = next(run.batches_ahead()).batch.shares
        measured.append(
            (len(run.towers), sorted(len(share.source) for share in shares), run.model.loss_size.max_tokens)
        )
        if too_large:
            raise UserError("out of memory")
        return 3600.0 * len(shares)

    monkeypatch.setattr(module, "seconds_per_step", seconds_per_step)
    settings = small_settings(data=("pairs.tsv",), dry_run=True, max_length=10)
    run = open_run(settings, prepare(settings), [*TOWERS, Tower("cpu_2", "/CPU:2", "CPU", None)])
    times = "3:00:00 on 1 tower, 6:00:00 on 2 towers, 3:00:00 on 3 towers"
    assert epoch_times(run, 3600.0) == f"{times}; measured with batches of the same size"
    assert measured == [(1, [2], 4 * 10 + MULTIPLE), (2, [1, 1], 2 * 10 + MULTIPLE)]
    too_large = True
    assert epoch_times(run, 3600.0).startswith("not measured on 1 tower, not measured on 2 towers, 3:00:00 on 3 ")
    gpus = [dataclasses.replace(tower, device="/GPU:0") for tower in TOWERS[:1]]
    assert epoch_times(dataclasses.replace(run, towers=gpus), 10.0) == "0:00:30 on 1 GPU"
    gpus = [dataclasses.replace(gpus[0], virtual=True)]
    assert epoch_times(dataclasses.replace(run, towers=gpus), 10.0) == "0:00:30 on 1 tower"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"local_workers": 2}, "--dry-run supports only one machine: leave out --local-workers"),
        ({"selftest": True}, "--dry-run and --selftest cannot be combined; leave out one of the two"),
    ],
)
def test_other_processes_are_refused(work_dir: Path, flags: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        start(compose(Settings, dry_run=True, **flags))
