"""What the files of a folder are: which files are found, which folders are classes, and what a table says."""

from pathlib import Path

import pytest
from tests.data.photos import paint

from aggmatch.data.own.folder import find_images, folder_layout, own_table, table_layout, unused_table
from aggmatch.errors import AggMatchError


def test_images_are_found_by_suffix_in_order_and_hidden_files_are_not(tmp_path):
    for name in ("b.PNG", "a.jpg", ".hidden.png", "notes.txt", "sub/c.webp", ".cache/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.relative_to(tmp_path).as_posix() for file in find_images(tmp_path)] == ["a.jpg", "b.PNG", "sub/c.webp"]


def test_a_warning_counts_photos_of_other_formats(tmp_path):
    for name in ("a.jpg", "IMG_2.HEIC", "IMG_1.heic", ".IMG_3.heic"):
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=r"Left out: 2 photos in .*, such as .*IMG_1\.heic\. Convert them to JPEG\."):
        assert [file.name for file in find_images(tmp_path)] == ["a.jpg"]


def test_links_to_folders_are_not_followed_in_circles(tmp_path):
    paint(tmp_path / "rose/0.png")
    (tmp_path / "rose/all").symlink_to(tmp_path, target_is_directory=True)
    assert len(find_images(tmp_path / "rose")) == 1
    (tmp_path / "rose/linked.png").symlink_to(tmp_path / "rose/0.png")
    assert len(find_images(tmp_path / "rose")) == 2, "links to files are"


def test_a_folder_with_a_meaning_inside_a_class_is_doubted(tmp_path):
    for name in ("old/a.png", "photos/rose/a.png", "photos/Unlabeled/b.png"):
        paint(tmp_path / name)
    with pytest.warns(UserWarning, match=r"Images in .*photos/Unlabeled have the label 'photos': only directly in"):
        assert labels(folder_layout(tmp_path).train) == {"a.png": 1, "b.png": 1}


def test_a_folder_of_unlabelled_images_alone_says_how_to_label_them(tmp_path):
    paint(tmp_path / "Unlabeled/deep/a.png")
    with pytest.raises(AggMatchError, match=r"got none, but 1 image without a label\. Label some in the browser"):
        folder_layout(tmp_path)


# Tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.jpg", "deep/c.png", "deep/er/d.png", "e.png"):
        paint(tmp_path / "photos" / name)
    return tmp_path / "photos"


def write(folder: Path, *rows: str) -> Path:
    table = folder.parent / "labels.csv"
    table.write_text("\n".join(["file,label", *rows]))
    return table


def labels(items) -> dict[str, int]:
    return {item.file.name: item.label for item in items}


def test_a_table_labels_files_in_any_folder_and_the_others_have_no_label(photos):
    layout = table_layout(photos, write(photos, "a.jpg,rose", "deep/er/d.png,daisy", "e.png,"))
    assert layout.classes == ("daisy", "rose")
    assert labels(layout.train) == {"a.jpg": 1, "b.jpg": -1, "c.png": -1, "d.png": 0, "e.png": -1}
    assert not layout.test


def test_test_images_have_their_label_from_the_table_or_their_folder(photos):
    for name in ("listed.png", "rose/x.png", "other/y.png", "loose.png"):
        paint(photos / "test" / name)
    table = write(photos, "a.jpg,rose", "b.jpg,daisy", "test/listed.png,daisy")
    with pytest.warns(UserWarning, match="Left out: 2 images in .*test without a label in .*labels.csv, such as"):
        layout = table_layout(photos, table)
    assert labels(layout.test) == {"listed.png": 0, "x.png": 1}
    assert "x.png" not in labels(layout.train)


def test_a_table_needs_two_labels(photos):
    for rows, found in ((["a.jpg,rose", "b.jpg,rose"], "only 'rose'"), (["a.jpg,"], "none")):
        with pytest.raises(AggMatchError, match=f"at least two different labels, got {found}"):
            table_layout(photos, write(photos, *rows))


def test_a_table_in_the_folder_counts_if_there_are_no_folders_of_classes(photos):
    assert own_table(photos) is None
    (photos / "labels.csv").touch()
    assert own_table(photos) == photos / "labels.csv"
    paint(photos / "rose/1.png")
    assert own_table(photos) is None, "the folders deep and rose are two classes"


def test_a_table_that_is_not_used_is_named(photos):
    assert not unused_table(photos)
    (photos / "labels.csv").touch()
    assert not unused_table(photos), "it is used"
    paint(photos / "rose/1.png")
    assert unused_table(photos) == photos / "labels.csv"
    (photos / "labels.jsonl").touch()
    assert unused_table(photos) == photos / "labels.jsonl"
    assert not unused_table(photos / "gone.zip")
