"""Output to streams whose encoding lacks some characters."""

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import aggmatch
from aggmatch.console import print_plainly


@pytest.mark.parametrize(
    ("encoding", "text"), [("ascii", b"1 +- 2 - 3 *#@& ?\n"), ("latin-1", b"1 \xb1 2 - 3 *#\xa7\xb6 ?\n")]
)
def test_characters_that_a_stream_cannot_encode_are_replaced_readably(encoding, text):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    print_plainly(stream)
    print("1 ± 2 – 3 †‡§¶ 字", file=stream, flush=True)
    assert stream.buffer.getvalue() == text


def test_a_utf8_stream_prints_every_character():
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    print_plainly(stream, io.StringIO())
    print("1 ± 2 †", file=stream, flush=True)
    assert stream.buffer.getvalue().decode() == "1 ± 2 †\n"


def test_commands_print_tables_and_errors_to_an_ascii_stream(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(aggmatch.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}

    def call(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "aggmatch", *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False)

    stored = Path(__file__).parents[2] / "results/cifar10-40.jsonl"
    table = call("reproduce", "momentum", "--results", str(stored))
    assert table.returncode == 0
    assert b"mean +- deviation" in table.stdout
    mistake = call("reproduce", "zwölf")
    assert (mistake.returncode, mistake.stderr.count(b"\n")) == (2, 1)
    assert b"Unknown table 'zw?lf'" in mistake.stderr


TRAIN = ["train", "digits", "--method", "supervised", "--steps", "4", "--set", "train.evaluate_every=1"]
on_linux = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")


@on_linux
@pytest.mark.parametrize("where", ["> /dev/full", "> /dev/full 2>&1", ">&- 2>&-"])
def test_training_goes_on_when_its_output_cannot_be_written(tmp_path, where):
    environment = os.environ | {"PYTHONPATH": str(Path(aggmatch.__file__).parents[1])}
    words = f"{shlex.join([sys.executable, '-m', 'aggmatch', *TRAIN, '--out', 'run'])} {where}"
    done = subprocess.run(words, shell=True, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/summary.json").exists()
    assert b"Traceback" not in done.stdout + done.stderr
    if where == "> /dev/full":
        assert done.stderr == b"Warning: Cannot print: No space left on device. The command goes on without output.\n"


@on_linux
def test_a_table_that_cannot_be_written_is_an_error(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(aggmatch.__file__).parents[1])}
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "aggmatch", "list", "methods"]
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"Error: Cannot use the output: No space left on device.\n"
