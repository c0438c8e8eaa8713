"""Tables of labels: which forms are read, what is refused, and how files are found."""

from pathlib import Path

import pytest

from aggmatch.data.own.labels_file import LabelRow, labels_of, read_labels
from aggmatch.errors import AggMatchError


def table(folder: Path, content: str | bytes, name: str = "labels.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "file,label\na.jpg,rose\nb/c.jpg,\n",
        "\ufefffile,label\r\na.jpg,rose\r\nb/c.jpg,\r\n",
        "label;file\nrose;a.jpg\n;b/c.jpg",
        "File\tLABEL\na.jpg\trose\nb/c.jpg\t\n",
        '"file" , "label"\n"a.jpg", rose \n\n , \nb/c.jpg,\n'.replace('" ', '"').replace(", ", ","),
    ],
    ids=["comma", "byte-order mark", "semicolon", "tab", "quotes and blank lines"],
)
def test_columns_may_come_in_any_order_and_with_any_separator(tmp_path, content):
    rows = read_labels(table(tmp_path, content))
    assert [(row.file, row.label) for row in rows] == [("a.jpg", "rose"), ("b/c.jpg", "")]


def test_names_may_hold_separators_quotes_and_any_language(tmp_path):
    rows = read_labels(table(tmp_path, 'file,label\n"a,b.jpg","x ""y"""\nрозa.jpg,薔薇\n'))
    assert rows == [LabelRow("a,b.jpg", 'x "y"', 2), LabelRow("розa.jpg", "薔薇", 3)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no file and no label: its columns are none"),
        ("name,class\na.jpg,rose\n", "has no file and no label: its columns are name, class"),
        ("file,class\na.jpg,rose\n", "has no label: its columns are file, class"),
        ("a.jpg,rose\nb.jpg,rose\n", "columns file and label in its first line"),
        ("file,label,Label\n", "two columns of the same name"),
        ("file,label\na.jpg\n", "line 2 has 1 field, but its first line has 2"),
        ("file,label\na.jpg,rose\nmy, own.jpg,rose\n", "line 3 has 3 fields, but its first line has 2.*quotes"),
        ("file,label\n,rose\n", "line 2 names no file"),
        ("file,label\na.jpg,red\x1b[31m\n", "line 2: the label red�.* has control characters"),
        (b"file,label\na.jpg,ros\xe9\n", "line 2 is not UTF-8. Save the table as 'CSV UTF-8'"),
        ("file,label\n".encode("utf-16"), "is not UTF-8"),
        ('file,label\na.jpg,"' + "x" * 200_000 + '"\n', "line 2: field larger"),
        ("file,label\na.jpg,rose\n./a.jpg,daisy\n", "gives ./a.jpg two labels: rose in line 2 and daisy in line 3"),
    ],
)
def test_the_error_names_the_line_or_column(tmp_path, content, problem):
    with pytest.raises(AggMatchError, match=problem) as error:
        read_labels(table(tmp_path, content))
    assert str(tmp_path / "labels.csv") in str(error.value)


def test_other_columns_are_named_and_not_used(tmp_path):
    with pytest.warns(UserWarning, match=r"Columns of .*labels\.csv that are not used: date, author\."):
        rows = read_labels(table(tmp_path, "date,file,author,label\n2026,a.jpg,me,rose\n"))
    assert rows == [LabelRow("a.jpg", "rose", 2)]


def test_a_file_that_is_listed_twice_with_one_label_is_no_contradiction(tmp_path):
    assert len(read_labels(table(tmp_path, "file,label\na.jpg,rose\na.jpg,rose\na.jpg,\n"))) == 3


def test_a_missing_table_and_another_format_are_errors(tmp_path):
    with pytest.raises(AggMatchError, match=r"There is no table of labels .*gone\.csv"):
        read_labels(tmp_path / "gone.csv")
    with pytest.raises(AggMatchError, match=r"must end in \.csv, \.tsv or \.jsonl, got .*labels\.xlsx"):
        read_labels(tmp_path / "labels.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(AggMatchError, match=r"Cannot read .*folder\.csv: not a regular file"):
        read_labels(tmp_path / "folder.csv")


# Files ------------------------------------------------------------------------------------------------------------


def found(root: Path, names: list[str], *wanted: str) -> list[str]:
    """Names of the files that get a label."""
    rows = [LabelRow(name, "rose", line) for line, name in enumerate(wanted, 2)]
    labeled = labels_of(rows, [root / name for name in names], root, Path("labels.csv"))
    return sorted(file.relative_to(root).as_posix() for file in labeled)


@pytest.mark.parametrize(
    "name", ["deep/a.jpg", "./deep/a.jpg", "deep\\a.jpg", "photos/deep/a.jpg", "deep//a.jpg", "{root}/deep/a.jpg"]
)
def test_a_file_is_found_however_its_path_is_written(tmp_path, name):
    root = tmp_path / "photos"
    assert found(root, ["deep/a.jpg", "a.jpg"], name.replace("{root}", str(root))) == ["deep/a.jpg"]


def test_composed_and_decomposed_letters_are_the_same(tmp_path):
    assert found(tmp_path, ["rose\u0301.jpg"], "ros\u00e9.jpg") == ["rose\u0301.jpg"]


def test_paths_that_lead_outside_are_not_images_of_the_folder(tmp_path):
    with pytest.raises(AggMatchError, match=r"2 files of labels\.csv are not an image in .*: \.\./a\.jpg, /etc/passwd"):
        found(tmp_path, ["a.jpg"], "../a.jpg", "/etc/passwd")


def test_missing_files_are_named_with_what_they_could_be(tmp_path):
    with pytest.warns(UserWarning, match=r"1 file of labels\.csv is not an image in .*: b\.jpg\. .* you mean deep/b"):
        assert found(tmp_path, ["a.jpg", "deep/b.jpg"], "a.jpg", "b.jpg") == ["a.jpg"]
    with pytest.raises(AggMatchError, match=r"5 files of labels\.csv .*: 0\.gif, 1\.gif, 2\.gif and 2 more"):
        found(tmp_path, ["a.jpg"], *(f"{k}.gif" for k in range(5)))


@pytest.mark.parametrize("name", [r"C:\photos\b.jpg", "/home/me/b.jpg", "B.JPG", "deep/B.jpg"])
def test_paths_of_another_machine_and_other_capitals_are_recognised_in_the_error(tmp_path, name):
    with pytest.raises(AggMatchError, match=r"1 file of labels\.csv .* did you mean deep/b\.jpg\?"):
        found(tmp_path, ["a.jpg", "deep/b.jpg"], name)


def test_the_log_of_the_label_page_is_a_table_of_labels(tmp_path):
    table = tmp_path / "labels.jsonl"
    events = ['{"event": "label", "files": ["1.png", "2.png"], "class": "rose"}', "no event", '{"event": "undo"}']
    table.write_text("\n".join([events[0], *events]))
    with pytest.warns(UserWarning, match=r"line 3 \(it is not JSON\)"):
        assert [(row.file, row.label) for row in read_labels(table)] == [("1.png", "rose"), ("2.png", "rose")]
