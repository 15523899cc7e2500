"""The chat with a trained attempt."""

import shutil
import signal
from pathlib import Path

import pexpect
import pytest

from chatbot.chat.loading import load_model
from chatbot.chat.terminal.session import CurrentModel
from chatbot.config.decoding import DecodingSettings
from tests.chat.terminal.pseudo_terminal import PseudoTerminal
from tests.chat.terminal.test_pseudo_terminal import CTRL_C, CTRL_D
from tests.commands import ENVIRONMENT, command
from tests.training.small_run import train_small

pytestmark = pytest.mark.system


def test_chat_in_a_terminal(attempt: Path, tmp_path: Path) -> None:
    """With beam search, which is traced again for more replies, and with sampling."""
    arguments = command("chat.py", "--attempt", str(attempt / "checkpoints" / "default"), "--follow")
    with PseudoTerminal(tmp_path, arguments) as terminal:
        terminal.wait("Talking to default: 2 pairs of pairs.tsv; step 2; not validated")
        terminal.wait_for_prompt()
        terminal.ask("", "please say something")
        terminal.ask("你好", "\n> 你好\n")
        terminal.ask("/n 2", "\n2. ")
        terminal.ask("/why", "<eos>")
        terminal.ask("/set temperature=1 min_reply_length=2", "min_reply_length=2")
        terminal.ask("how are you", "\n> how are you\n")
        terminal.ask("/retry", "\n> /retry\n")
        terminal.ask("/model nosuch", "no such attempt")
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.received


def test_ctrl_c_while_loading_ends_without_traceback(attempt: Path) -> None:
    arguments = command("chat.py")
    with pexpect.spawn(
        arguments[0], arguments[1:], cwd=str(attempt), env=ENVIRONMENT, encoding="utf-8", timeout=120
    ) as chat:
        chat.expect(pexpect.TIMEOUT, timeout=1)
        chat.sendintr()
        chat.expect(pexpect.EOF)
        assert "Traceback" not in chat.before
    assert chat.exitstatus == 130 or chat.signalstatus == signal.SIGINT


def test_newer_checkpoint_of_a_run_answers_and_a_damaged_one_does_not(
    attempt: Path, work_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(attempt, work_dir, dirs_exist_ok=True)
    folder = Path("checkpoints/default").absolute()
    greedy = DecodingSettings(beam_size=1)
    current, said = CurrentModel(load_model(folder), greedy, follow=True), list[str]()
    current.update(said.append)
    train_small(1, data=("pairs.tsv",), steps=3)
    current.update(said.append)
    assert said == ["The checkpoint of step 3 answers now, instead of that of step 2."]
    assert current.responder().reply("你好") == load_model(folder).responder_of(greedy).reply("你好")
    (folder / "last").write_text('{"checkpoint": "ckpt-4", "step": 4}')
    capfd.readouterr()
    current.update(said.append)
    assert len(said) == 1
    assert "ckpt-4: checkpoint missing" in capfd.readouterr().err
    assert current.model.card.step == 3


def test_another_seed_or_number_of_replies_is_not_traced_again(attempt: Path) -> None:
    model = load_model(attempt / "checkpoints" / "default")
    current = CurrentModel(model, DecodingSettings(candidates=2, temperature=3.0))
    responder = current.responder()
    replies = {reply.text for seed in range(4) for reply in responder.n_best("你好", (), 2, seed)}
    assert len(replies) > 2
    assert responder.replier.search.graph.traces == 1  # type: ignore[attr-defined]
