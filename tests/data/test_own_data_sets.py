"""Data sets from a Python file and from an installed package."""

import json

import pytest
import torch
from tests.data.packages import install, write

from aggmatch.data import SOURCES, is_own_images, load
from aggmatch.errors import AggMatchError
from aggmatch.settings import resolve

FILE = """
import torch
from aggmatch.data import Images, Source

def draw(count):
    labels = torch.arange(count) % 2
    return Images((labels * 200).to(torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8).contiguous(), labels)

def read(folder):
    return draw(40), draw(10)

def source(read=read, shape=(1, 8, 8), classes=("dark", "bright"), **more):
    return Source("shades", "Dark and bright.", classes, shape, 40, 10, mirror=True, read=read, **more)

def fail(folder):
    raise KeyError("pixels")

SHADES = source()
FAILING = source(fail)
EMPTY = source(lambda folder: None)
TENSORS = source(lambda folder: (draw(40).pixels, draw(10).pixels))
OTHER_SHAPE = source(shape=(3, 8, 8))
ONE_CLASS = source(classes=("dark",))
NUMBER = 3
"""
TINY = ["--method", "supervised", "--set", "data.labels=4", "--set", "model.name=small-4", "--set", "train.batch=4"]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path, "shades.py", FILE)


@pytest.fixture
def package(file, tmp_path, monkeypatch):
    """An installed package with the data sets `shades` and, under a name of this package, `digits`."""
    names = {"shades": "shades:SHADES", "digits": "shades:SHADES", "broken": "shades_of_nothing:SHADES"}
    install(tmp_path, monkeypatch, "aggmatch.data", **names)


def test_a_source_with_the_required_fields_only_needs_no_files(file, tmp_path):
    source = SOURCES.load(f"{file}:SHADES")
    assert (source.archives, source.noise_map) == ((), {})
    assert source.present(tmp_path / "nowhere")


def test_a_data_set_from_a_file_is_loaded(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (f"{file}:SHADES", "shades.py:SHADES", "./shades.py:SHADES"):
        assert not is_own_images(name)
        data = load(name)
        assert data.train.pixels.shape == (40, 1, 8, 8)
        assert (data.name, data.classes, data.mirror) == (name, ("dark", "bright"), True)


def test_a_data_set_from_a_file_trains_and_the_run_stores_its_full_path(run, file):
    code, _, error = run("train", "shades.py:SHADES", *TINY, "--steps", 3, "--out", "a", "--quiet")
    assert code == 0, error
    assert json.loads((file.parent / "a/config.json").read_text())["data"]["name"] == f"{file}:SHADES"
    assert json.loads((file.parent / "a/split.json").read_text())["images"] == 40


def test_a_data_set_from_a_file_is_benchmarked_under_its_short_name(run, file):
    code, out, error = run("bench", "shades.py:SHADES", *TINY, "--steps", 1, "--no-stages", "--quiet")
    assert code == 0, error
    assert "A training step on shades.SHADES" in out
    assert "shades.SHADES, which needs no download" in out


def test_a_data_set_of_an_installed_package_is_known_by_name(package, tmp_path):
    assert "shades" in SOURCES
    assert ("shades", "extras") in SOURCES.origins()
    assert torch.equal(load("shades").train.labels, torch.arange(40) % 2)
    assert resolve({"data.name": "shades"}).data.name == "shades"


def test_a_data_set_of_an_installed_package_trains(run, package):
    code, _, error = run("train", "shades", *TINY, "--steps", 2, "--out", "a", "--quiet")
    assert code == 0, error


def test_a_data_set_of_this_package_wins_over_the_same_name_elsewhere(package, tmp_path):
    assert len(load("digits", tmp_path).classes) == 10
    assert ("digits", "aggmatch") in SOURCES.origins()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NOTHING", "NOTHING"),
        ("NUMBER", "must be an aggmatch.data.Source, got 3"),
        ("FAILING", "Cannot read data set shades .*KeyError: 'pixels'"),
        ("EMPTY", "Cannot read data set shades .*unpack"),
        ("TENSORS", "Cannot read data set shades .*pixels"),
        ("OTHER_SHAPE", r"\(3, 8, 8\), got \(1, 8, 8\)"),
        ("ONE_CLASS", r"Labels of .*shades\.py:ONE_CLASS must be in \[-1, 0\], got 0 to 1"),
    ],
)
def test_a_faulty_data_set_gives_one_clear_error(file, name, problem):
    with pytest.raises(AggMatchError, match=problem):
        load(f"{file}:{name}")


@pytest.mark.parametrize("text", ["1 / 0", "import nothing_of_that_name", "def", "raise SystemError"])
def test_a_file_that_cannot_be_imported_gives_one_clear_error(tmp_path, text):
    file = write(tmp_path, "faulty.py", text)
    with pytest.raises(AggMatchError, match=r"Cannot load data set '.*faulty\.py:SHADES'"):
        load(f"{file}:SHADES")


def test_a_missing_file_or_package_is_named(package, tmp_path):
    with pytest.raises(AggMatchError, match=r"missing\.py"):
        load(f"{tmp_path}/missing.py:SHADES")
    with pytest.raises(AggMatchError, match="Cannot load data set 'broken' from shades_of_nothing:SHADES"):
        load("broken")


def test_a_mistake_in_a_data_set_exits_with_2_and_leaves_no_run_folder(run, file):
    code, _, error = run("train", "shades.py:FAILING", *TINY, "--out", "a", "--quiet")
    assert code == 2
    assert error.startswith("Error: Cannot read data set shades")
    assert not (file.parent / "a").exists()
