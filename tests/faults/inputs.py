"""Hostile inputs: how they are made, and what reads them."""

import gzip
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy.io import savemat
from tests.faults.runs import SETTINGS

import aggmatch
from aggmatch.cli.app import gather
from aggmatch.config import read_assignment, read_file
from aggmatch.console import stdout
from aggmatch.data.builtin.cifar import CIFAR10_ARCHIVE, read_cifar
from aggmatch.data.builtin.mnist import MNIST_FILES, read_idx
from aggmatch.data.builtin.pickles import read_pickle
from aggmatch.data.builtin.svhn import _read_mat
from aggmatch.data.images import reading
from aggmatch.data.splits import read_content
from aggmatch.experiments.results_table import ResultsTable, group_runs
from aggmatch.inference.model import read_saved
from aggmatch.runs.checkpoint import Checkpoint, pack, unpack
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.results import add_results, encode, read_results
from aggmatch.runs.stored import read_run
from aggmatch.settings import resolve
from aggmatch.tables import CONTROL, Table, visible
from aggmatch.training.begin import start

Try = Callable[[bytes], object]
"""Reads an input; an `AggMatchError` is a good end."""

# Mutations ------------------------------------------------------------------------------------------------------------

WORDS = [
    b"9" * 5000,
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"true",
    b"[" * 3000,
    b"\0",
    b"\xff",
    b"\x1b[2J",
]
WORDS += [
    b"evil:Evil",
    b"evil.py:Evil",
    b"../..",
    b"/etc/passwd",
    b"${HOME}",
    b"<script>",
    b"\\u0000",
    b'"\\ud800"',
    b"1" * 19,
]
NAMES = [
    "\x1b[31m",
    "\x1b]0;x\x07",
    "<img src=x onerror=alert(1)>",
    "\u202egpj",
    "a\nb",
    "\udce9",
    "\0",
    "=1+1",
    "$\\frac{",
    "{{ 7 }}",
]


def mutate(random: Random, raw: bytes) -> bytes:
    """Change some bytes: flip, replace, delete, insert, repeat, or put in something nasty."""
    data = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(data) + 1)
        match random.randrange(7):
            case 0 if place < len(data):
                data[place] ^= 1 << random.randrange(8)
            case 1:
                data[place : place + 1] = random.randbytes(1)
            case 2:
                del data[place : place + random.randint(1, 40)]
            case 3:
                data[place:place] = random.randbytes(random.randint(1, 8))
            case 4:
                data[place:place] = data[place : place + random.randint(1, 200)]
            case 5:
                data[place : place + 4] = random.choice(
                    (b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\0\0\0\0", b"\xff\xff\xff\x7f")
                )
            case _:
                data[place : place + random.randint(0, 6)] = random.choice(WORDS)
    return bytes(data)


def mutate_json(random: Random, raw: bytes) -> bytes:
    """Put a value of another type or size somewhere into a JSON text, or change its bytes."""
    if random.random() < 0.3:
        return mutate(random, raw)
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        10**19,
        1e308,
        "",
        "x" * 10_000,
        [],
        {},
        [[]],
        {"a": {}},
        "evil:Evil",
        [1, "a"],
    ]
    content = json.loads(raw)
    place = content
    while isinstance(place, (dict, list)) and place:
        key: Any = random.choice([*place]) if isinstance(place, dict) else random.randrange(len(place))
        if not isinstance(place[key], (dict, list)) or random.random() < 0.4:
            place[key] = random.choice([*values, *NAMES])
            if random.random() < 0.1:
                del place[key]
            break
        place = place[key]
    return json.dumps(content).encode()


# Readers --------------------------------------------------------------------------------------------------------------


def readers(place: Path) -> Iterator[tuple[str, Try, bytes, Callable[[Random, bytes], bytes]]]:
    """Yield each kind of input: its name, what reads it, a valid one, and how to make it hostile."""
    run = start(resolve(SETTINGS | {"train.steps": 4, "train.log_every": 1}), place / "run")
    for _ in run.train():
        pass
    folder = run.folder

    def put(name: str, raw: bytes) -> Path:
        (place / name).write_bytes(raw)
        return place / name

    def in_folder(path: Path) -> Try:
        valid = path.read_bytes()

        def read(raw: bytes) -> None:
            path.write_bytes(raw)
            try:
                read_folder(folder)
            finally:
                path.write_bytes(valid)

        return read

    def unsealed(path: Path) -> bytes:
        return json.dumps(
            {key: value for key, value in json.loads(path.read_bytes()).items() if key != "digest"}
        ).encode()

    for path in (folder.config, folder.split, folder.summary):
        yield path.name, in_folder(path), unsealed(path), mutate_json
    yield "metrics.jsonl", in_folder(folder.metrics), folder.metrics.read_bytes(), mutate
    stopped = RunFolder(shutil.copytree(folder.path, place / "stopped"))
    stopped.summary.unlink()
    lines = [json.dumps(record).encode() + b"\n" for record in stopped.records()]
    yield "metrics of a stopped run", metrics_reader(stopped), b"".join(lines), mutate
    yield "one record", metrics_reader(stopped), lines[-1], mutate_json
    yield "sessions.jsonl", sessions_reader(stopped), stopped.sessions.read_bytes(), mutate
    yield "model.safetensors", in_folder(folder.model), folder.model.read_bytes(), mutate
    yield (
        "facts of a model",
        facts_reader(folder),
        json.dumps({**unpack(folder.model.read_bytes()).facts}).encode(),
        mutate_json,
    )
    line = encode(read_run(folder.path)).encode()
    yield "results file", lambda raw: results_reader(put("r.jsonl", raw)), line, mutate_json
    yield (
        "--set",
        lambda raw: resolve([read_assignment(own(raw).decode(errors="surrogateescape"))]),
        b"train.steps=5",
        mutate_setting,
    )
    yield "TOML", lambda raw: resolve([read_file(put("c.toml", own(raw)))]), TOML, mutate
    yield "--config", lambda raw: resolve(gather(put("c.json", raw))), unsealed(folder.config), mutate_json
    yield "names", names_reader, b"", lambda random, _: json.dumps(random.choices(NAMES, k=3)).encode()
    yield (
        "pickle",
        lambda raw: pickle_reader(raw),
        pickle.dumps({b"data": np.ones((2, 30), np.uint8), b"l": [1, 2]}, 3),
        mutate,
    )
    yield ".mat", lambda raw: _read_mat(put("a.mat", raw)), mat(), mutate
    (place / "mnist").mkdir()
    idx = gzip.compress(
        b"\0\0\x08\x03" + b"".join(side.to_bytes(4, "big") for side in (2, 28, 28)) + bytes(2 * 28 * 28)
    )
    yield "idx", lambda raw: (put(MNIST_FILES[0].file, raw), read_idx(place, MNIST_FILES[0], 3)), idx, mutate
    tar = archive()
    yield "archive", lambda raw: archive_reader(place, raw), tar, mutate
    yield "archive content", lambda raw: archive_reader(place, gzip.compress(raw, 1)), gzip.decompress(tar), mutate


def own(raw: bytes) -> bytes:
    """An input of the user's own, which may name code, without the code that must not run."""
    return raw.replace(b"evil", b"good")


TOML = b'[train]\nsteps = 5\n[optim]\nlr = 0.1\n[views]\nops = ["identity", "rotate"]\n[method]\nname = "fixmatch"\n'


def mutate_setting(random: Random, _: bytes) -> bytes:
    """A random setting with a nasty value."""
    keys = [
        "train.steps",
        "train.batch",
        "data.name",
        "method.name",
        "method.slots",
        "views.ops",
        "model.name",
        "optim.lr",
    ]
    keys += [
        "runtime.device",
        "data.labels",
        "data.split",
        "data.noise_map",
        "recipe",
        "a",
        "train",
        "views.crops",
        "data.fold",
    ]
    value = mutate(random, random.choice([*WORDS, b"5", b"[1, 2]", b'"text"', b"0.5"]))
    return random.choice(keys).encode() + b"=" + value


def read_folder(folder: RunFolder) -> None:
    """Read all of a run folder, and print its table."""
    run = read_run(folder.path)
    read_content(folder.split)
    aggmatch.TrainedModel.load(folder.path)
    table = ResultsTable(group_runs([run]), [], True)
    for kind in ("md", "tex", "csv", "json"):
        table.printed(kind)


def metrics_reader(folder: RunFolder) -> Try:
    """Read a run that is not finished from its log."""

    def read(raw: bytes) -> None:
        folder.metrics.write_bytes(raw)
        ResultsTable(group_runs([read_run(folder.path)]), [1, 2], False).printed("md")

    return read


def sessions_reader(folder: RunFolder) -> Try:
    """Read a run that is not finished, and note that a process trains in it."""
    log = folder.metrics.read_bytes()

    def read(raw: bytes) -> None:
        folder.metrics.write_bytes(log)
        folder.sessions.write_bytes(raw)
        run = read_run(folder.path)
        folder.note_session({"step": 1, "started": "now", "hardware": run.hardware or "", "versions": {}})
        assert folder.last_session()

    return read


def facts_reader(folder: RunFolder) -> Try:
    """Read a model with other facts and a digest that matches them."""
    saved, path = unpack(folder.model.read_bytes()), folder.path / "facts.safetensors"

    def read(raw: bytes) -> None:
        try:
            facts = json.loads(raw)
            path.write_bytes(pack(Checkpoint(saved.tensors, facts)))
        except (ValueError, TypeError, RecursionError):
            return  # not even JSON
        finally_remove(path, lambda: read_saved(path))

    return read


def finally_remove(path: Path, read: Callable[[], object]) -> None:
    """Read a file, then delete it."""
    try:
        read()
    finally:
        path.unlink(missing_ok=True)


def results_reader(path: Path) -> None:
    """Read a results file, print its table, and add to it."""
    runs = [line.run for line in read_results(path) if line.run]
    if runs:
        ResultsTable(group_runs(runs), [], True).printed("md")
        add_results(path, runs)


def names_reader(raw: bytes) -> None:
    """Show names of classes and files; no control character may reach the terminal."""
    names = json.loads(raw)
    with stdout.capture() as captured:
        stdout.print(Table([names[0]], [[names[1]]], names[2], [names[0]]))
    shown = captured.get().replace("\n", "")
    assert not CONTROL.search(shown), "a control character reached the terminal"
    assert not CONTROL.search(visible("".join(names)).replace("\n", ""))


def pickle_reader(raw: bytes) -> None:
    """Read a pickle as data sets do."""
    with reading(Path("a pickle")):
        read_pickle(io.BytesIO(raw), "a pickle")


def archive_reader(place: Path, raw: bytes) -> None:
    """Read CIFAR-10 from an archive."""
    (place / CIFAR10_ARCHIVE.file).write_bytes(raw)
    read_cifar(place, CIFAR10_ARCHIVE, b"labels", 10)


def mat() -> bytes:
    """A small file of SVHN."""
    file = io.BytesIO()
    savemat(file, {"X": np.ones((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)})
    return file.getvalue()


def archive() -> bytes:
    """A small archive of CIFAR-10."""
    file = io.BytesIO()
    batch = pickle.dumps({b"data": np.ones((2, 3072), np.uint8), b"labels": [1, 2]}, 3)
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for member in CIFAR10_ARCHIVE.members:
            entry = tarfile.TarInfo(member)
            entry.size = len(batch)
            tar.addfile(entry, io.BytesIO(batch))
    return file.getvalue()
