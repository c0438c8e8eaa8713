"""The page as a whole: self-contained, safe with any names, its figures those of the runs."""

import json
import re
import shutil
from collections import Counter, deque
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NoReturn

import pytest
from tests.conftest import toy_settings
from tests.folders import line, write_folder

from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.models import Network
from aggmatch.report import attention, labels, predictions
from aggmatch.report import page as report
from aggmatch.report.page import CHAPTERS, page, unbroken, whole_options
from aggmatch.report.summary import final
from aggmatch.runs import stored as run_folders
from aggmatch.runs.stored import RunRecord, read_runs
from aggmatch.training import run as loop

HOSTILE = ("<script>a()</script>", "$\\frac{ $", "\"'><img src=x> &amp; {{ 7 * 7 }}")


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text outside of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self.inside = tag
        self.text += " "

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text += data

    def values(self, *names: str) -> Iterator[str]:
        return (value for _, attributes in self.found for name, value in attributes.items() if name in names)

    def tags(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.found if tag == name]


def words(source: str) -> str:
    """The text of a page with single spaces."""
    return " ".join(Elements(source).text.replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.mark.parametrize("which", ["one", "several"])
def test_the_page_loads_nothing_from_anywhere(which, request):
    source = request.getfixturevalue(which)
    elements = Elements(source)
    references = list(elements.values("src", "href", "xlink:href", "srcset", "action", "data", "poster", "formaction"))
    assert references
    assert [value for value in references if not value.startswith(("#", "data:"))] == []
    styles = "".join(re.findall(r"<style.*?</style>", source, flags=re.DOTALL))
    assert "@import" not in styles
    assert re.findall(r"url\((?!#)", source) == []
    (policy,) = [tag["content"] for tag in elements.tags("meta") if tag.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert len(source) < 5e6


@pytest.mark.parametrize("which", ["one", "several"])
def test_ids_are_unique_and_everything_that_points_to_one_finds_it(which, request):
    source = request.getfixturevalue(which)
    elements = Elements(source)
    ids = Counter(elements.values("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    anchors = [value[1:] for value in elements.values("href", "xlink:href") if value.startswith("#")]
    named = [name for value in elements.values("aria-labelledby") for name in value.split()]
    drawn = re.findall(r"url\(#(.*?)\)", source)
    assert anchors
    assert named
    assert drawn
    assert set(anchors) | set(named) | set(drawn) <= set(ids)


@pytest.mark.parametrize("which", ["one", "several"])
def test_every_chapter_has_its_figures(which, request):
    source = request.getfixturevalue(which)
    elements = Elements(source)
    sections = {tag.get("id") for tag in elements.tags("section")}
    assert {chapter.anchor for chapter in CHAPTERS} <= sections
    assert source.count("<figure ") == source.count("<figcaption>") >= 7
    assert "Not shown" not in source
    assert len(elements.tags("h1")) == 1


def test_the_figures_of_the_verdict_are_those_of_the_summary(trained, one):
    summary = json.loads((trained["aggmatch"] / "summary.json").read_text())
    text = words(one)
    assert f"after step 12 its averaged network is right on {summary['accuracy']:.2f} % of 360 test images" in text
    assert f"{100 * summary['pseudo_precision']:.1f} % of the pseudo labels" in text
    assert f"{round(summary['accuracy'] * 3.6)} of 360 images" in text
    assert summary["hardware"] in text
    assert f"torch {summary['versions']['torch']}" in text
    assert "Shorter than the recipe. It trains for 12 steps; the recipe of aggmatch on digits has 1,000." in text


def test_the_table_of_classes_gives_the_accuracies_of_the_summary(trained, one):
    summary = json.loads((trained["aggmatch"] / "summary.json").read_text())
    for name, value in summary["class_accuracy"].items():
        row = re.search(rf'<th scope="row">{name}</th>\s*<td class="n">2</td>\s*<td class="n bar".*?>(.*?)</td>', one)
        assert row
        assert row[1] == f"{value:.1f}"


def test_several_runs_start_with_a_table_of_all(trained, several):
    text = words(several)
    for method, path in trained.items():
        summary = json.loads((path / "summary.json").read_text())
        assert f"{method} fold 0 {summary['accuracy']:.2f}" in text
    assert several.index("Median (of last)") < several.index('id="training"')
    assert "exact McNemar test" in text
    assert "Settings in which the runs differ" in text
    assert several.count("<summary>All settings of") == 2


def test_runs_of_several_folds_are_averaged(tmp_path):
    paths = [
        write_folder(tmp_path / str(fold), [], {"accuracy": accuracy}, data__fold=fold)
        for fold, accuracy in enumerate((90.0, 94.0))
    ]
    assert "fixmatch 92.00 ± 2.83 % (2 runs)" in words(page(read_runs(paths), quick=True))


def test_means_of_different_conditions_are_told_apart(tmp_path):
    paths = [
        write_folder(tmp_path / "0", [], {"accuracy": 90.0}),
        write_folder(tmp_path / "1", [], {"accuracy": 90.0}, data__fold=1),
        write_folder(tmp_path / "2", [], {"accuracy": 70.0}, data__noise="asymmetric", data__noise_rate=0.5),
    ]
    text = words(page(read_runs(paths), quick=True))
    assert "Kind Learns from Accuracy" in text
    assert "fixmatch digits, 40 labels 90.00 ± 0.00 % (2 runs)" in text
    assert "fixmatch digits, 40 labels, 50 % asymmetric noise 70.00 %" in text


@pytest.mark.parametrize(
    ("evaluations", "shown"), [(1, None), (3, "Median of last 3 50.00 %"), (25, "Median of last 20 ")]
)
def test_the_median_names_its_number_of_evaluations(tmp_path, evaluations, shown):
    log = [line(step, accuracy_average=50.0, accuracy_online=50.0) for step in range(1, evaluations + 1)]
    paths = [write_folder(tmp_path / str(fold), log, data__fold=fold) for fold in range(2)]
    text = words(page(read_runs(paths[:1]), quick=True))
    assert shown in text if shown else "Median" not in text
    assert f" 50.00 ({min(evaluations, 20)}) " in words(page(read_runs(paths), quick=True))


def test_options_and_percent_signs_are_not_broken():
    assert unbroken("a <b> -- 5 % --steps 1000, or --set.") == (
        "a &lt;b&gt; -- 5\N{NO-BREAK SPACE}% <code>--steps 1000</code>, or <code>--set</code>."
    )


def test_a_command_can_be_copied_as_it_is():
    command = "aggmatch train --out '5 % <x>' --steps 10"
    assert whole_options(command) == "aggmatch train <code>--out</code> &#39;5 % &lt;x&gt;&#39; <code>--steps 10</code>"


def test_runs_of_other_labels_are_not_tested_against_each_other(trained, tmp_path, monkeypatch):
    path = shutil.copytree(trained["aggmatch"], tmp_path / "other")
    split = json.loads((path / "split.json").read_text())
    (path / "split.json").write_text(json.dumps(split | {"fold": 1}))
    keep_chapters(monkeypatch)
    runs = read_runs([path, *trained.values()])
    text = words(page(runs))
    assert re.findall(r"\w+ fold \d against \w+ fold \d", text) == [
        "aggmatch fold 0 against supervised fold 0"
        if final(runs[1]) >= final(runs[2])
        else "supervised fold 0 against aggmatch fold 0"
    ]


def keep_chapters(monkeypatch, *anchors: str) -> None:
    """Leave out the other chapters: a page with all of them takes seconds."""
    monkeypatch.setattr(report, "CHAPTERS", [chapter for chapter in CHAPTERS if chapter.anchor in anchors])


def test_an_unfinished_run_is_reported_as_far_as_it_is(trained, tmp_path, monkeypatch):
    path = shutil.copytree(trained["aggmatch"], tmp_path / "part")
    for name in ("summary.json", "model.safetensors"):
        (path / name).unlink()
    keep_chapters(monkeypatch, "predictions", "pseudo-labels")
    source = page(read_runs([path]))
    text = words(source)
    assert "The run is not finished" in text
    assert f"aggmatch train --resume --out {path}" in text
    assert "Before and after aggregation" in text
    assert "Confusion" not in text
    assert 'http-equiv="refresh"' not in source


def test_a_run_that_has_not_logged_yet_is_reported(tmp_path):
    text = words(page(read_runs([write_folder(tmp_path / "a")])))
    assert "its accuracy has not been measured yet" in text
    assert "How to repeat it" in text


def test_without_the_data_set_the_rest_is_there_and_the_reason_is_given(trained, monkeypatch):
    monkeypatch.setattr(RunRecord, "data", missing)
    text = words(page(read_runs([trained["aggmatch"]])))
    assert text.count("Not shown: digits is not in data.") == len(CHAPTERS) - 1  # once in each that needs it
    assert "Test accuracy" in text
    assert "95 % interval" not in text.split("What it gets right")[0]


@pytest.mark.parametrize("methods", [["aggmatch"], ["aggmatch", "supervised"]])
def test_where_a_model_does_otherwise_than_its_summary_says_the_page_says_so(trained, tmp_path, monkeypatch, methods):
    paths = [shutil.copytree(trained[method], tmp_path / method) for method in methods]
    summary = json.loads((paths[0] / "summary.json").read_text())
    changed = summary | {"accuracy": summary["accuracy"] + 0.06, "hardware": "NVIDIA H200"}
    (paths[0] / "summary.json").write_text(json.dumps(changed))
    keep_chapters(monkeypatch, "predictions")
    text = words(page(read_runs(paths)))
    sentence = f"the run itself ended with {changed['accuracy']:.2f} % on NVIDIA H200, whose arithmetic may differ."
    assert text.count(f": {summary['accuracy']:.2f} %; {sentence}") == text.count(sentence) == 1


def test_figures_that_need_snapshots_are_left_out_with_the_reason(trained, tmp_path, monkeypatch):
    keep_chapters(monkeypatch, "pseudo-labels", "attention", "features")
    monkeypatch.setattr(report, "make_tables", lambda *_: report.Tables())
    runs = []
    for name, shares in (("none", []), ("lost", [1.0])):
        path = shutil.copytree(trained["aggmatch"], tmp_path / name)
        shutil.rmtree(path / "snapshots")
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"runtime": config["runtime"] | {"snapshots": shares}}))
        runs.append(path)
    queue = "what aggregation changed, its doubtful pseudo labels, its attention, "
    rest = "the calibration of its pseudo labels and its feature space are left out."
    kept_none = "Not shown: aggmatch fold 0 kept no snapshots (runtime.snapshots is empty), so "
    assert words(page(read_runs(runs[:1]))).count(kept_none + queue + rest) == 1
    lost = "Not shown: aggmatch fold 0 lost its snapshots (its folder holds none), so "
    assert lost in words(page(read_runs(runs[1:])))
    text = words(page(read_runs([write_folder(tmp_path / "begun", [line(1)])])))
    assert f"Not shown: fixmatch fold 0 has no snapshots yet, so {rest}" in text
    assert "Not shown: fixmatch fold 0 is not finished, so its accuracy by class" in text


def missing(_: RunRecord) -> NoReturn:
    raise AggMatchError("digits is not in data.")


def test_hostile_names_stay_text(toy_data, tmp_path, monkeypatch):
    data = DataSet("toy", toy_data.train, toy_data.test, HOSTILE, True)
    monkeypatch.setattr(run_folders, "load", lambda *_, **__: data)
    run_folders.load_once.cache_clear()
    paths = []
    for number, name in enumerate(('"><script>alert(2)</script>'.replace("/", "\N{FRACTION SLASH}"), "<b onclick=x>")):
        settings = toy_settings(train__steps=4, train__log_every=2, runtime__snapshots=[1.0], train__seed=number)
        paths.append(tmp_path / name)
        deque(loop.start(settings, paths[-1], data=data).train(), maxlen=0)
    try:
        for chosen in (paths, paths[:1]):
            source = page(read_runs(chosen))
            elements = Elements(source)
            assert "Not shown" not in source
            assert all(name in elements.text for name in HOSTILE)
            assert all(path.name in elements.text for path in chosen)
            assert len(elements.tags("script")) == 1
            assert not elements.tags("img")
            assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
            keep_chapters(monkeypatch, "predictions")  # where one run is told unlike several
    finally:
        run_folders.load_once.cache_clear()


def test_a_page_that_is_watched_reloads_and_leaves_out_what_takes_long(trained):
    source = page(read_runs([trained["aggmatch"]]), quick=True, refresh=4)
    assert '<meta http-equiv="refresh" content="4">' in source
    assert "Test accuracy" in source
    assert 'id="features"' not in source
    assert "follow when training has finished" in source


def test_progress_is_told_part_by_part(trained, quick_map):
    lines: list[str] = []
    page(read_runs([trained["supervised"]]), tell=lines.append)
    assert [text for text in lines if text.endswith(" of 6 ...")] == [
        "curves, 1 of 6 ...",
        "predictions, 2 of 6 ...",
        "labels, 3 of 6 ...",
        "doubts, 4 of 6 ...",
        "attention, 5 of 6 ...",
        "embedding, 6 of 6 ...",
    ]
    assert lines[0] == "Model of supervised fold 0 on 360 test images ..."
    made = lines[lines.index("predictions, 2 of 6 ...") + 1]
    assert re.fullmatch(r"  Confusion, supervised fold 0: \d+\.\d s", made)


def test_what_is_left_out_is_told_too(trained, monkeypatch):
    monkeypatch.setattr(RunRecord, "data", missing)
    keep_chapters(monkeypatch, "features")
    lines: list[str] = []
    page(read_runs([trained["aggmatch"]]), tell=lines.append)
    assert lines[:2] == ["embedding, 1 of 1 ...", "  Not shown: digits is not in data."]


def test_networks_look_at_the_same_images_once_for_all_figures(rival_folders, monkeypatch):
    looked: list[int] = []
    forward = Network.forward

    def counting(network, images, *words, **options):
        looked.append(len(images))
        return forward(network, images, *words, **options)

    monkeypatch.setattr(Network, "forward", counting)
    runs = read_runs(rival_folders[:1])
    shown = [panel.name for module in (predictions, labels, attention) for panel in module.panels(runs)]
    assert len(shown) == 5
    assert sum(looked) == 360 + 3 * 1417, "the test images by the model, the unlabelled ones by each snapshot"


def test_concerns_that_runs_share_are_told_once(tmp_path):
    paths = [write_folder(tmp_path / str(fold), [], {}, train__steps=10, data__fold=fold) for fold in range(2)]
    text = words(page(read_runs(paths), quick=True))
    assert text.count("Shorter than the recipe") == 1
    assert "(fixmatch fold 0, fixmatch fold 1)" in text


def test_a_run_without_concerns_has_no_box(tmp_path):
    assert "Before you rely on it" not in page(read_runs([write_folder(tmp_path / "a", [line(1000)], {})]), quick=True)
