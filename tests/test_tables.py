import csv
import io
import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from aggmatch.tables import (
    PAGE,
    Table,
    duration,
    escape_latex,
    fit,
    line_up,
    mean_and_deviation,
    plural,
    show,
    show_mean,
)

TABLE = Table(
    ["name_of it", "share %", "note"], [["a & b", 12.345, "x"], ["c", None, "y"]], "A 50 % title", ["100 % ± 1"]
)


def test_floats_have_two_decimals_and_a_missing_value_is_a_dash():
    assert TABLE.markdown().splitlines()[2:4] == ["| a & b | 12.35 | x |", "| c | – | y |"]


def test_notes_are_below_the_table_but_not_in_csv_and_json():
    assert TABLE.markdown().endswith("| c | – | y |\n\n100 % ± 1\n")
    assert TABLE.latex().index("y \\\\") < TABLE.latex().index("100 \\% $\\pm$ 1")
    assert "100 %" not in TABLE.csv() + TABLE.json()


def test_a_terminal_shows_title_values_and_notes():
    console = Console(file=io.StringIO(), width=80)
    console.print(TABLE)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert [shown.index(text) for text in ("A 50 % title", "12.35", "100 % ± 1")] == sorted(
        shown.index(text) for text in ("A 50 % title", "12.35", "100 % ± 1")
    )


def test_a_narrow_terminal_breaks_long_words_without_losing_characters():
    console = Console(file=io.StringIO(), width=24)
    console.print(Table(["setting"], [["confidence=thresholding-by-entropy"]]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "".join(shown.split()[2:]) == "confidence=thresholding-by-entropy"


MANY_NUMBERS = Table(
    ["share %", "class term", "sum", "holds", "image"],
    [[4.54, -0.22, 1234.5, "thresholding-by-entropy", "1234, given"], [0.25, None, 7, "dog", "60,000 of 1,000,000"]],
    "A title",
    ["A note."],
)


def shown_lines(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", range(12, 90))
def test_numbers_and_headings_are_never_broken(width):
    lines = shown_lines(MANY_NUMBERS, width)
    words = " ".join(lines).replace(":", "").split()
    numbers = ["4.54", "-0.22", "1234.50", "0.25", "7", "1234,", "60,000", "1,000,000"]
    assert {*numbers, "share", "class", "term", "sum", "holds", "image"} <= set(words)
    assert max(map(len, lines)) <= width


def test_a_terminal_that_is_too_narrow_for_columns_shows_one_value_per_line():
    assert shown_lines(MANY_NUMBERS, 40) == [
        "A title",
        "",
        "share %: 4.54",
        "class term: -0.22",
        "sum: 1234.50",
        "holds: thresholding-by-entropy",
        "image: 1234, given",
        "",
        "share %: 0.25",
        "class term: –",
        "sum: 7",
        "holds: dog",
        "image: 60,000 of 1,000,000",
        "",
        "A note.",
    ]


def test_the_widest_column_is_narrowed_first():
    assert fit([["a", "long word after word"], ["b", "12.00"], ["c", "text"]], 10 + 12 + 5 + 4) == [12, 5, 4]


def test_columns_do_not_fit_if_they_cannot_be_narrowed():
    assert fit([["a", "thresholding"], ["b", "12.00"]], 7 + 8 + 5) == [8, 5]
    assert fit([["a", "thresholding"], ["b", "12.00"]], 7 + 8 + 4) is None
    assert fit([["thresholding", "a"]], 4 + 11) is None


def test_a_terminal_shows_brackets_and_colons_unchanged():
    console = Console(file=io.StringIO(), width=80)
    console.print(Table(["a[bold]b"], [["[red]:dog:"]], "c[/]d", ["e[i]f"]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(text in shown for text in ("a[bold]b", "[red]:dog:", "c[/]d", "e[i]f"))


def test_the_width_is_that_of_the_widest_line_in_a_terminal():
    console = Console(file=io.StringIO(), width=200)
    table = Table(["a", "value"], [["long text", 1.0], ["b", 100.0]])
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= table.width <= max(map(len, lines)) + 2


def test_csv_keeps_all_digits_and_missing_values_are_empty():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["name_of it", "share %", "note"],
        ["a & b", "12.345", "x"],
        ["c", "", "y"],
    ]


def test_json_is_a_list_of_objects():
    assert json.loads(TABLE.json())[1] == {"name_of it": "c", "share %": None, "note": "y"}


def test_latex_aligns_numbers_right_and_escapes_special_characters():
    lines = TABLE.latex().splitlines()
    assert lines == [
        r"\begin{table}",
        r"\centering",
        r"\caption{A 50 \% title}",
        r"\begin{tabular}{lrl}",
        r"\hline",
        r"name\_of it & share \% & note \\",
        r"\hline",
        r"a \& b & 12.35 & x \\",
        r"c & -- & y \\",
        r"\hline",
        r"\end{tabular}",
        r"\par 100 \% $\pm$ 1",
        r"\end{table}",
    ]


def test_latex_shrinks_a_table_that_may_be_wider_than_the_page():
    wide = Table(["x" * PAGE], []).latex()
    assert wide.startswith("% needs \\usepackage{graphicx}\n")
    assert r"\resizebox{\ifdim\width>\linewidth" in wide
    assert "graphicx" not in Table(["x" * (PAGE - 10)], []).latex()


def test_a_backslash_is_escaped_once():
    assert escape_latex(r"a\_{~^") == r"a\textbackslash{}\_\{\textasciitilde{}\textasciicircum{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_with_special_characters_in_cells(tmp_path):
    odd = "&%$#_{}~^\\<>|[]–…±×µλτ†‡§¶"
    table = Table([odd, "b"], [["[1]", 1.0], [odd, 2.0]], odd, [odd])
    compile_latex(tmp_path, table)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("columns", [3, 5, 9])
def test_a_latex_table_is_never_wider_than_the_page(tmp_path, columns):
    table = Table(["CIFAR-10, 40"] * columns, [["92.54 ± 10.76 †"] * columns])
    assert "Overfull" not in compile_latex(tmp_path, table)


def compile_latex(folder: Path, table: Table) -> str:
    """Return the output of pdflatex for a page with a table."""
    document = f"\\documentclass{{article}}\\usepackage{{graphicx}}\n\\begin{{document}}\n{table.latex()}"
    (folder / "table.tex").write_text(document + "\\end{document}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "table.tex"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    printed = done.stdout.decode(errors="replace")
    assert done.returncode == 0, printed[-2000:]
    return printed


def test_latex_sets_a_subscript():
    assert escape_latex("τ_u 1.5, τ, a_u") == r"$\tau_u$ 1.5, $\tau$, a\_u"


def test_decimal_points_are_aligned_and_other_texts_do_not_move():
    assert line_up(["92.5 ± 1", "3.25", "–", "100.0 †", "40"]) == [" 92.5 ± 1", "  3.25", "–", "100.0 †", "40"]
    assert line_up(["a", "–"]) == ["a", "–"]


def test_words_are_broken_only_if_there_is_no_room():
    columns = [["a", "confidence thresholding"], ["b", "a long line of words"]]
    assert fit(columns, 7 + 12 + 9) == [12, 9]
    assert fit(columns, 7 + 12 + 5) == [12, 5]
    assert fit(columns, 7 + 12 + 4) == [8, 8], "only numbers and headings are not broken"


def test_a_number_that_rounds_to_zero_has_no_minus_sign():
    assert show(-0.001) == "0.00"
    assert show(-0.01) == "-0.01"


def test_a_noun_is_plural_unless_the_count_is_one():
    assert [plural(count, "run") for count in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (61, "1 min 1 s"),
        (660, "11 min"),
        (7200, "2 h 0 min"),
        (11_520, "3 h 12 min"),
        (90000, "1 d 1 h"),
        (9e6, "104 d"),
        (9e7, "1,041 d"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds, text):
    assert duration(seconds) == text


def test_a_single_value_has_no_standard_deviation():
    assert mean_and_deviation([3.0]) == (3.0, None)
    assert mean_and_deviation([3.0, 5.0]) == (4.0, statistics.stdev([3, 5]))
    assert show_mean([3.0]) == "3.00"
    assert show_mean([3.0, 5.0], 1) == "4.0 ± 1.4"


def test_numbers_are_aligned_in_columns_but_not_in_a_list():
    table = Table(["method", "figure"], [["a", "3.25 †"], ["b", "92.50"]])
    assert [line.rstrip() for line in shown_lines(table, 40)[-3:-1]] == ["  a         3.25 †", "  b        92.50"]
    assert "figure: 3.25 †" in shown_lines(table, 16)


def test_a_terminal_shows_control_characters_of_names_instead_of_obeying_them():
    screen = Console(file=io.StringIO(), width=200)
    screen.print(Table(["a\x1b[2J"], [["x\x1b]0;title\x07\ny\u202e"]], "t\x1bc", ["n\x9b"]))
    screen.print(Table(["a\x1b[2J"], [["x\x1b]0;title\x07\ny\u202e" * 40]]), width=12)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert r"x\x1b]0;title\x07\ny\u202e" in shown
    assert r"t\x1bc" in shown


def test_a_column_can_be_left_out():
    table = Table(["method", "recipe", "n"], [["uda", "paper", 1]], "Title", ["A note."])
    assert table.without("recipe") == Table(["method", "n"], [["uda", 1]], "Title", ["A note."])
