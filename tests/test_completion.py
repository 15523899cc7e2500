"""The script of `duida completion`, in the shells that are installed."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pexpect
import pytest

from chatbot.completion import script

# What is completed -> the words that are offered, or with three dots after them some of these.
CASES = {
    "duida ": "train serve init-config ...",
    "duida tr": "train",
    "duida train ": "--data --no-bidirectional --help ...",
    "duida train --rnn": "--rnn-size",
    "duida train --no-b": "--no-bidirectional",
    "duida train --attempt a --cell ": "lstm gru",
    "duida train --architecture ": "recurrent transformer",
    "duida train --architecture = ": "recurrent transformer",  # as bash divides --architecture=
    "duida train --architecture =": "recurrent transformer",
    "duida train --architecture = t": "transformer",
    "duida train --clean markup ": "markup nfkc none ...",
    "duida train --clean markup --no-tied": "--no-tied-embeddings",
    "duida train --deterministic ": "--data --cell ...",
    "duida train --rnn-size 9 ": "--data --cell ...",
    "duida train --help ": "data text model speed learning devices parallel machines run",
    "duida serve --help tok": "tokens",
    "duida export weibo --format ": "onnx savedmodel transformers",
    "duida data ": "inspect pairs prune encode --help --version",
    "duida data inspect --js": "--json",
    "duida attempts ": "compare rename index delete --json --help --version",
    "duida attempts delete --y": "--yes",
    "duida attempts --j": "--json",
    "duida bot telegram --tok": "--token-file",
    "duida evaluate --n": "--no-repeat-ngram",
    "duida completion ": "bash zsh",
    # The shell completes names of files.
    "duida train --data ": "",
    "duida train --steps ": "",
    "duida data inspect ": "",
    "duida evaluate --data pairs.tsv pa": "",
}


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.system)])
def test_shells_complete_commands_flags_and_values(work_dir: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    calls = []
    for line in CASES:
        words = [*line.split(), *([""] if line.endswith(" ") else [])]
        call = f'COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _duida; echo "${{COMPREPLY[@]}}"'
        calls.append(f"emulate ksh -c {shlex.quote(call)}" if shell == "zsh" else call)  # as bashcompinit calls it
    program = "\n".join([script(shell), *calls])
    options = ["--norc"] if shell == "bash" else ["-f"]
    done = subprocess.run([shell, *options, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stderr == ""
    for (line, wanted), printed in zip(CASES.items(), done.stdout.splitlines(), strict=True):
        offered, expected = {*printed.split()}, {*wanted.split()}
        if shell == "zsh":  # which leaves out the words that do not begin with it
            current = line.split(" ")[-1].strip("=")
            offered = {word for word in offered if word.startswith(current)}
        assert offered == expected or ("..." in expected and offered > expected - {"..."}), line


@pytest.mark.system
def test_bash_itself_completes(work_dir: Path) -> None:
    """With its own division of a line into words, and names of files where the script offers nothing."""
    Path("pairs.tsv").touch()
    Path("script").write_text(script("bash"))
    whole = {
        "duida train --architecture=tr": "train --architecture=transformer",
        "duida train --data pai": "train --data pairs.tsv",
        "duida data inspect pai": "data inspect pairs.tsv",
    }
    with pexpect.spawn("bash", ["--norc", "-i"], env={**os.environ, "TERM": "dumb"}, encoding="utf-8") as bash:
        bash.sendline('source ./script; duida() { echo "called: $*"; }')
        for line, arguments in whole.items():
            bash.sendline(f"{line}\t")
            bash.expect_exact(f"called: {arguments}", timeout=240)
