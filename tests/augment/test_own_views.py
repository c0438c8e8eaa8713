"""Views from a Python file and from an installed package."""

import pytest
import torch
from tests.augment.images import seeded, some_images
from tests.data.packages import install, write

from aggmatch.augment.settings import ViewSettings
from aggmatch.augment.views import VIEWS, Augmenter
from aggmatch.errors import AggMatchError

FILE = """
import torch
from aggmatch import Method, Views

def inverted(augmenter, images, generator):
    return 255 - images

def shaken(augmenter, images, generator):
    return augmenter.weak(images, generator)

class Rows:
    def __call__(self, augmenter, images, generator):
        return images.flip(2)

rows = Rows()

class Mine(Method):
    views = Views(labeled=("weak", f"{__file__}:inverted", f"{__name__}:rows"))

def two_arguments(images, generator):
    return images

number = 3

def floats(augmenter, images, generator):
    return images / 255

def fewer(augmenter, images, generator):
    return images[1:]

def grey(augmenter, images, generator):
    return images[:, :1]

def nothing(augmenter, images, generator):
    pass
"""


@pytest.fixture
def file(tmp_path):
    return write(tmp_path, "my_views.py", FILE)


def make(view: str, **settings: str) -> torch.Tensor:
    return Augmenter(ViewSettings(**settings), mirror=True)(view, some_images(8, 3), seeded())  # type: ignore[arg-type]


@pytest.mark.parametrize("replaced", ["weak", "strong"])
def test_a_view_from_a_file_replaces_the_weak_or_the_strong_view(file, replaced):
    assert torch.equal(make(replaced, **{replaced: f"{file}:inverted"}), 255 - some_images(8, 3))
    other = "strong" if replaced == "weak" else "weak"
    assert torch.equal(make(other, **{replaced: f"{file}:inverted"}), make(other)), "the other view stays"


def test_a_view_of_this_package_can_replace_another():
    assert torch.equal(make("strong", strong="plain"), some_images(8, 3))


def test_a_view_can_build_on_those_of_the_augmenter(file):
    assert torch.equal(make(f"{file}:shaken"), make("weak"))


def test_a_method_can_name_views_of_its_own_file(file, toy_state):
    trainer = toy_state(f"{file}:Mine")
    position, unlabeled = trainer.draw_indices()
    weak, inverted, rows = trainer.make_batch(position, unlabeled).labeled
    images = trainer.inputs.plain[trainer.labeled_index[position]]
    assert weak.shape == images.shape
    assert torch.equal(inverted, 255 - images)
    assert torch.equal(rows, images.flip(2))


def test_a_view_of_an_installed_package_is_known_by_name(file, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "aggmatch.views", inverted="my_views:inverted", weak="my_views:inverted")
    assert ("inverted", "extras") in VIEWS.origins()
    assert torch.equal(make("inverted"), 255 - some_images(8, 3))
    assert torch.equal(make("strong", strong="inverted"), 255 - some_images(8, 3))
    assert ("weak", "aggmatch") in VIEWS.origins(), "views of this package win"


@pytest.mark.parametrize("name", ["missing", "number", "two_arguments"])
def test_an_object_that_is_not_a_view_fails_before_training(file, name):
    with pytest.raises(AggMatchError, match=rf"view '.*my_views\.py:{name}'"):
        Augmenter(ViewSettings(strong=f"{file}:{name}"), mirror=True)


@pytest.mark.parametrize("name", ["floats", "fewer", "grey", "nothing"])
def test_a_view_with_a_wrong_result_fails_and_is_named(file, name):
    with pytest.raises(AggMatchError, match=rf"(?i)view '.*my_views\.py:{name}'"):
        make(f"{file}:{name}")
    with pytest.raises(AggMatchError, match="(?i)view 'weak'"):
        make("weak", weak=f"{file}:{name}")


def test_a_file_that_cannot_be_imported_gives_one_clear_error(tmp_path):
    file = write(tmp_path, "faulty_views.py", "1 / 0")
    with pytest.raises(AggMatchError, match=r"Cannot load view '.*faulty_views\.py:inverted'"):
        make(f"{file}:inverted")


def test_an_unknown_view_in_the_settings_exits_with_2_and_leaves_no_run_folder(run, tmp_path):
    code, _, error = run("train", "digits", "--set", "views.strong=stong", "--out", "a", "--quiet")
    assert code == 2
    assert "Unknown view 'stong'. Did you mean 'strong'" in error
    assert not (tmp_path / "a").exists()
