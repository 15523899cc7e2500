"""The comparison with PyTorch: its environment, text and output, without it."""

import contextlib
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import CompareBenchmark, ratios
from benchmarks.peers import pytorch
from benchmarks.peers.pytorch import COMPLETE, Best, PyTorch, environment
from benchmarks.tokenised import TokenisedPairs, character_corpora, spelled
from chatbot.errors import UserError
from chatbot.flags import replace
from tests.benchmarks.running import benchmark, program

RECURRENT = CompareBenchmark(data="pairs.tsv").settings
TRANSFORMER = CompareBenchmark(data="pairs.tsv", architecture="transformer").settings


@pytest.mark.slow
def test_failed_installation_is_one_line(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds no package. The environment is not complete."""
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"^python -m pip: exit code 1: ERROR: No matching .{1,120}$"):
        benchmark("compare", "--data", pairs, "--held-out", "9", "--environments", str(tmp_path / "peers"))
    assert not [*(tmp_path / "peers").glob(f"*/{COMPLETE}")]


def test_environment_is_created_once_and_again_if_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def install(command: list[object], folder: Path) -> str:
        commands.append([str(word) for word in command])
        if "venv" in command:
            Path(commands[-1][-1]).mkdir()
        return ""

    monkeypatch.setattr(pytorch, "output_of", install)
    home = environment(str(tmp_path))
    assert commands[0][-1] == str(home)
    assert commands[1][-1].endswith("requirements-torch.txt")
    assert environment(str(tmp_path)) == home
    assert len(commands) == 2
    (home / COMPLETE).unlink()
    (home / "half").touch()
    environment(str(tmp_path))
    assert len(commands) == 4
    assert not (home / "half").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--environments .*: Not a directory; use a writable folder"):
        environment(str(tmp_path / "file" / "peers"))


def test_torch_model_gets_the_settings(tmp_path: Path) -> None:
    home = program(tmp_path, "python", 'echo "$@" > arguments; echo \'{"target_tokens_per_s": 7}\'')
    assert PyTorch(home, tmp_path, 2).rate(replace(TRANSFORMER, heads=8), "words", 5, "bfloat16") == 7
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8")
    for flag in ("--architecture transformer", "--heads 8", "--precision bfloat16", "--steps 5", "--keep-prob 1.0"):
        assert flag in arguments
    program(tmp_path, "python", "echo a warning; exec sleep 600")
    with pytest.raises(UserError, match="PyTorch: no result within its time; increase --minutes"):
        PyTorch(home, tmp_path, 2).rate(TRANSFORMER, "words", 5, "bfloat16", seconds=0.2)


def test_best_validation_within_the_time_counts(tmp_path: Path) -> None:
    """The program would run on for ten minutes."""
    lines = "; ".join(f'echo \'{{"step": {step}, "nats": {nats}}}\'' for step, nats in ((1, 9.0), (2, 8.0), (3, 8.5)))
    peer = PyTorch(program(tmp_path, "python", f"echo a warning; {lines}; exec sleep 600"), tmp_path, 2)
    assert peer.best(RECURRENT, "characters", "held_out", 1, 1, "float32") == Best(8.0, 2)
    program(tmp_path, "python", "exec sleep 600")
    with pytest.raises(UserError, match="PyTorch: no validation within its time; increase --quality-seconds"):
        peer.best(RECURRENT, "characters", "held_out", 0.2, 1, "float32")


def test_spelled_text_has_no_unknown_tokens(tmp_path: Path) -> None:
    training, held_out = tmp_path / "train.tsv", tmp_path / "held_out.tsv"
    training.write_text("你好\t好\n你好吗\t好好\n", encoding="utf-8")
    held_out.write_text("你好吗\t龘 a\n", encoding="utf-8")
    corpus, validation = character_corpora(training, held_out, tmp_path / "cache")
    spelled(validation.shards, corpus.vocabulary).write(tmp_path, "text")
    vocabulary = (tmp_path / "text.vocabulary").read_text(encoding="utf-8").splitlines()
    (reply,) = (tmp_path / "text.tgt").read_text(encoding="utf-8").splitlines()
    assert {*reply.split(" ")} <= {*vocabulary}
    assert reply.startswith(" ".join(f"<0x{byte:02X}>" for byte in "龘".encode()))
    assert TokenisedPairs([(["a", "b"], ["c"])], ["a"]).encoded().sources.row(0).tolist() == [5, 3]


def test_ratios_are_of_the_best_precisions() -> None:
    medians = {"this project, bfloat16": 30.0, "this project, float32": 20.0}
    medians |= {"PyTorch, bfloat16": 12.0, "PyTorch, float32": 16.0}
    rates = {name: {"median": median, "lowest": 0.0, "highest": 99.0} for name, median in medians.items()}
    assert ratios(rates) == {"pytorch_best": 30 / 16, "pytorch_float32": 20 / 16}
    del rates["this project, float32"], rates["PyTorch, bfloat16"]
    assert ratios(rates) == {"pytorch_best": 30 / 16}
    del rates["PyTorch, float32"]
    with pytest.raises(UserError, match="PyTorch: no precision works on this machine"):
        ratios(rates)


def test_unsupported_precision_does_not_end_the_benchmark(
    pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of PyTorch in the first round, and of this project, whose process ends."""
    script = """case "$*" in *bfloat16*) echo "RuntimeError: no LSTM in bfloat16"; exit 1;; esac
case "$*" in *--quality*) echo '{"step": 1, "nats": 7}';; *) echo '{"target_tokens_per_s": 2}';; esac"""
    home, asked = program(tmp_path, "python", script), []
    monkeypatch.setattr(compare, "environment", lambda _: home)
    monkeypatch.setattr(compare, "output_of", lambda *_, **__: "")

    def best_validation(folder: Path) -> tuple[float, int]:
        if folder.name == "same":
            raise UserError("same: nothing was validated")
        return 1.0, 1

    monkeypatch.setattr(compare, "best_validation", best_validation)

    class Training:
        def __init__(self, precision: str) -> None:
            self._precision = precision

        def ask(self) -> float:
            asked.append(self._precision)
            if self._precision == "bfloat16":
                raise RuntimeError("a measured process ended")
            return 8.0

    workers = {precision: Training(precision) for precision in ("bfloat16", "float32")}
    monkeypatch.setattr(compare, "training_workers", lambda *_: contextlib.nullcontext(workers))
    report = benchmark("compare", "--data", pairs, "--held-out", "9", "--rounds", "2", "--quality-seconds", "240")
    assert report["ratios"] == {"pytorch_best": 4, "pytorch_float32": 4}
    assert report["not_measured"]["this project, bfloat16"] == "a measured process ended"
    reason = report["not_measured"]["PyTorch, bfloat16"]
    assert reason == "python torch_model.py --architecture: exit code 1: RuntimeError: no LSTM in bfloat16"
    assert asked == ["bfloat16", "float32", "float32"]
    assert report["not_measured"]["this project, the same model"] == "same: nothing was validated"
    assert report["quality"].keys() == {"this project, defaults", "PyTorch"}
