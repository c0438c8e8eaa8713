"""The page as a whole: self-contained, safe with any names, with the numbers of the runs."""

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

import aggmatch
from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.models import Network
from aggmatch.report import figures
from aggmatch.report.page import page, unbroken, whole_options
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.storage.files import sealed

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
def test_the_page_loads_nothing(which, request):
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
    assert set(figures.CHAPTERS) <= sections
    assert source.count("<figure ") == source.count("<figcaption>") >= 7
    assert "Not shown" not in source
    assert len(elements.tags("h1")) == 1


def test_the_verdict_has_the_numbers_of_the_summary(trained, one):
    summary = json.loads((trained["aggmatch"] / "summary.json").read_text())
    text = words(one)
    assert f"after step 12 its averaged network is right on {summary['accuracy']:.2f} % of 360 test images" in text
    assert f"{100 * summary['pseudo_precision']:.1f} % of the pseudo labels" in text
    assert f"{round(summary['accuracy'] * 3.6)} of 360 images" in text
    assert summary["hardware"] in text
    assert f"torch {summary['versions']['torch']}" in text
    assert "Shorter than the recipe. It trains for 12 steps; its recipe has 1,000." in text


def test_the_table_of_classes_gives_the_accuracies_of_the_summary(trained, one):
    summary = json.loads((trained["aggmatch"] / "summary.json").read_text())
    for name, value in summary["class_accuracy"].items():
        row = re.search(rf'<th scope="row">{name}</th>\s*<td class="n">2</td>\s*<td class="n bar".*?>(.*?)</td>', one)
        assert row
        assert row[1] == f"{value:.1f}"


def test_a_table_of_all_runs_precedes_the_chapters(trained, several):
    text = words(several)
    for method, path in trained.items():
        summary = json.loads((path / "summary.json").read_text())
        assert f"{method} fold 0 {summary['accuracy']:.2f}" in text
    assert several.index("Median (of last)") < several.index('id="training"')
    assert "exact McNemar test" in text
    assert "Settings in which the runs differ" in text
    assert several.count("<summary>All settings of") == 2


def test_a_page_on_several_runs_opens_with_a_chart_best_first(tmp_path, fakes):
    results = (("supervised", 0, 70.0), ("fixmatch", 0, 90.0), ("fixmatch", 1, 94.0))
    paths = [
        write_folder(tmp_path / f"{method}{fold}", [], {"accuracy": accuracy}, method=method, data__fold=fold)
        for method, fold, accuracy in results
    ]
    source = page(read_runs(paths), others=[("LabelSpreading <1>", 79.17)], quick=True)
    opening = words(source).split("Result What happened")[0]
    assert "fixmatch is right on 92.00 ± 2.83 % (2 runs) of 360 test images, 12.83 points more than" in opening
    bars = (
        "fixmatch ± 2.83 over 2 runs 92.00 % "
        "LabelSpreading <1> 95 % interval 74.7 to 83.0 %; not a run of aggmatch 79.17 % "
        "supervised 95 % interval 65.1 to 74.5 % 70.00 %"
    )
    assert bars in opening
    widths = re.findall(r'class="track" aria-hidden="true" style="--at: (.*?)%', source)
    assert [float(width) for width in widths] == [92.0, 79.17, 70.0]


def test_a_page_on_one_run_opens_without_a_chart(tmp_path, fakes):
    assert 'class="track"' not in page(read_runs([write_folder(tmp_path / "a", [], {})]), quick=True)


def test_conditions_have_charts_of_their_own(tmp_path, fakes):
    paths = [
        write_folder(tmp_path / "0", [], {"accuracy": 90.0}),
        write_folder(tmp_path / "1", [], {"accuracy": 90.0}, data__fold=1),
        write_folder(tmp_path / "2", [], {"accuracy": 70.0}, data__noise="asymmetric", data__noise_rate=0.5),
    ]
    text = words(page(read_runs(paths), quick=True))
    assert "digits, 40 labels fixmatch ± 0.00 over 2 runs 90.00 %" in text
    assert "digits, 40 labels, 50 % asymmetric noise fixmatch 95 % interval 65.1 to 74.5 % 70.00 %" in text


@pytest.mark.parametrize(
    ("evaluations", "shown"), [(1, None), (3, "Median of last 3 50.00 %"), (25, "Median of last 20 ")]
)
def test_the_median_names_its_number_of_evaluations(tmp_path, fakes, evaluations, shown):
    log = [line(step, accuracy_average=50.0, accuracy_online=50.0) for step in range(1, evaluations + 1)]
    paths = [write_folder(tmp_path / str(fold), log, data__fold=fold) for fold in range(2)]
    text = words(page(read_runs(paths[:1]), quick=True))
    assert shown in text if shown else "Median" not in text
    assert f" 50.00 ({min(evaluations, 20)}) " in words(page(read_runs(paths), quick=True))


@pytest.mark.parametrize(("accuracy", "advised"), [(70.0, False), (60.0, True)])
def test_classic_learners_on_the_same_features_are_shown_and_recommended_if_as_good(tmp_path, fakes, accuracy, advised):
    path = write_folder(tmp_path / "a", [], {"accuracy": accuracy, "probes": {"LabelSpreading": 65.0}})
    text = words(page(read_runs([path]), quick=True))
    assert "LabelSpreading 65.00 %" in text
    assert ("LabelSpreading is at least as good here" in text) == advised


def test_options_and_percent_signs_are_not_broken():
    assert unbroken("a <b> -- 5 % --steps 1000, or --set.") == (
        "a &lt;b&gt; -- 5\N{NO-BREAK SPACE}% <code>--steps 1000</code>, or <code>--set</code>."
    )


def test_a_command_can_be_copied_and_run():
    command = "aggmatch train --out '5 % <x>' --steps 10"
    assert whole_options(command) == "aggmatch train <code>--out</code> &#39;5 % &lt;x&gt;&#39; <code>--steps 10</code>"


def test_runs_on_other_labels_are_not_tested_against_each_other(trained, tmp_path, fakes):
    path = shutil.copytree(trained["aggmatch"], tmp_path / "other")
    split = json.loads((path / "split.json").read_text())
    (path / "split.json").write_text(json.dumps(sealed(split | {"fold": 1})))
    runs = read_runs([path, *trained.values()])
    better, worse = sorted(runs[1:], key=lambda run: run.accuracy or 0, reverse=True)
    assert re.findall(r"\w+ fold \d against \w+ fold \d", words(page(runs))) == [f"{better.name} against {worse.name}"]


@pytest.mark.filterwarnings("ignore:.*is not finished. using its checkpoint")
def test_an_unfinished_run_is_reported_with_what_it_has(trained, tmp_path, fakes):
    path = shutil.copytree(trained["aggmatch"], tmp_path / "part")
    for name in ("summary.json", "model.safetensors"):
        (path / name).unlink()
    source = page(read_runs([path]))
    text = words(source)
    assert "The run is not finished" in text
    assert f"aggmatch train --resume --out {path}" in text
    assert "The title of pseudo-labels" in text
    assert "Accuracy by class on the test images" in text
    assert re.search(r"aggmatch fold 0 is not finished: its predictions are those of the checkpoint of step 12", text)
    assert 'http-equiv="refresh"' not in source
    shutil.rmtree(path / "checkpoints")
    text = words(page(read_runs([path])))
    assert "Accuracy by class on the test images" not in text
    assert "Not shown: aggmatch fold 0 has no model and no checkpoint yet, so its accuracy by class" in text


def test_a_run_that_has_not_logged_yet_is_reported(tmp_path, fakes):
    text = words(page(read_runs([write_folder(tmp_path / "a")])))
    assert "its accuracy has not been measured yet" in text
    assert "How to repeat it" in text


def test_without_the_data_set_the_rest_is_there_with_the_reason(trained, monkeypatch, fakes):
    monkeypatch.setattr(StoredRun, "data", missing)
    text = words(page(read_runs([trained["aggmatch"]])))
    assert text.count("Not shown: digits is not in data.") == 1
    assert "Test accuracy" in text
    assert "95 % interval" not in text.split("What it gets right")[0]


def test_a_figure_that_cannot_be_drawn_leaves_its_reason_once_in_its_chapter(trained, fakes):
    def fail(_):
        raise AggMatchError("the ink is empty")

    for name in ("one", "another"):
        fakes.figures[name] = figures.Figure(fail, "features", "ink")
    lines: list[str] = []
    source = page(read_runs([trained["aggmatch"]]), progress=lines.append)
    assert source.count("Not shown: the ink is empty") == 1
    assert source.index("Not shown: the ink") > source.index('id="features"')
    assert "The title of features" in source
    assert lines.count("  Not shown: the ink is empty") == 1


def test_a_chapter_without_figures_or_reasons_is_left_out(tmp_path, fakes):
    fakes.figures["features_figure"] = figures.Figure(lambda _: iter(()), "features", "nothing")
    source = page(read_runs([write_folder(tmp_path / "a")]))
    assert 'id="features"' not in source
    assert 'id="attention"' in source


def test_every_plot_is_an_inline_svg_with_its_heading(tmp_path, fakes):
    source = page(read_runs([write_folder(tmp_path / "a")]))
    figure = re.search(r'<figure id="attention-1">.*?</figure>', source, flags=re.DOTALL)
    assert figure
    assert figure[0].count("<svg ") == figure[0].count('<div class="plot">') == 2
    assert re.findall(r'<p class="heading">(.*?)</p>', figure[0]) == ["fixmatch fold 0"]
    assert "<figcaption>The caption of attention.</figcaption>" in figure[0]


def test_the_page_on_one_run_shows_classes_as_a_table_and_not_as_a_figure(tmp_path, fakes):
    fakes.figures["class_accuracy"] = fakes.figures.pop("predictions_figure")
    paths = [write_folder(tmp_path / name, [], {}, method=name) for name in ("fixmatch", "supervised")]
    assert "The title of predictions" not in page(read_runs(paths[:1]))
    assert "The title of predictions" in page(read_runs(paths))


def test_missing_snapshots_are_named_with_the_reason(trained, tmp_path, fakes):
    runs = []
    for name, shares in (("none", []), ("lost", [1.0])):
        path = shutil.copytree(trained["aggmatch"], tmp_path / name)
        shutil.rmtree(path / "snapshots")
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"runtime": config["runtime"] | {"snapshots": shares}}))
        runs.append(path)
    explained = "the origin of its pseudo labels, its uncertain pseudo labels, its attention, "
    rest = "the calibration of its pseudo labels and its feature space are left out."
    kept_none = "Not shown: aggmatch fold 0 kept no snapshots (runtime.snapshots is empty), so "
    assert words(page(read_runs(runs[:1]))).count(kept_none + explained + rest) == 1
    assert "Not shown: aggmatch fold 0 lost its snapshots" in words(page(read_runs(runs[1:])))
    text = words(page(read_runs([write_folder(tmp_path / "begun", [line(1)])])))
    assert f"Not shown: fixmatch fold 0 has no snapshots yet, so {rest}" in text


def missing(_: StoredRun) -> NoReturn:
    raise AggMatchError("digits is not in data.")


def test_hostile_names_stay_text(toy_data, tmp_path, monkeypatch):
    data = DataSet("toy", toy_data.train, toy_data.test, HOSTILE, True)
    monkeypatch.setattr("aggmatch.settings.load_for", lambda *_, **__: data)
    paths = []
    for number, name in enumerate(('"><script>alert(2)</script>'.replace("/", "\N{FRACTION SLASH}"), "<b onclick=x>")):
        settings = toy_settings(train__steps=4, train__log_every=2, runtime__snapshots=[1.0], train__seed=number)
        paths.append(tmp_path / name)
        deque(aggmatch.start(settings, paths[-1], data=data).train(), maxlen=0)
    for chosen in (paths, paths[:1]):
        source = page(read_runs(chosen))
        elements = Elements(source)
        assert "Not shown" not in source
        assert all(name in elements.text for name in HOSTILE)
        assert all(path.name in elements.text for path in chosen)
        assert len(elements.tags("script")) == 1
        assert all(image["src"].startswith("data:image/png;base64,") for image in elements.tags("img"))
        assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]


def test_a_watched_page_reloads_and_leaves_out_what_takes_long(trained, fakes):
    source = page(read_runs([trained["aggmatch"]]), quick=True, refresh=4)
    assert '<meta http-equiv="refresh" content="4">' in source
    assert "Test accuracy" in source
    assert 'id="training"' in source
    assert 'id="features"' not in source
    assert "follows when training has finished" in source


def test_progress_is_reported_chapter_by_chapter(trained, fakes):
    lines: list[str] = []
    page(read_runs([trained["supervised"]]), progress=lines.append)
    assert lines[0] == "Model of supervised fold 0 on 360 test images ..."
    titles = [chapter.title for chapter in figures.CHAPTERS.values()]
    assert lines[1::2] == [f"{title}, {number} of {len(titles)} ..." for number, title in enumerate(titles, 1)]
    assert all(re.fullmatch(r"  The title of [a-z-]+: \d+\.\d s", text) for text in lines[2::2])


def test_networks_see_the_same_images_once_for_all_figures(rival_folders, monkeypatch):
    seen: list[int] = []
    forward = Network.forward

    def counting(network, images, *words, **options):
        seen.append(len(images))
        return forward(network, images, *words, **options)

    monkeypatch.setattr(Network, "forward", counting)
    runs = read_runs(rival_folders[:1])
    shown = [panel for _, panel in figures.draw(runs, ["predictions", "labels", "attention"])]
    assert len(shown) >= 5
    assert sum(seen) == 360 + 3 * 1417, "the model sees the test images, each snapshot the unlabelled ones"


def test_warnings_that_runs_share_are_shown_once(tmp_path, fakes):
    paths = [write_folder(tmp_path / str(fold), [], {}, train__steps=10, data__fold=fold) for fold in range(2)]
    text = words(page(read_runs(paths), quick=True))
    assert text.count("Shorter than the recipe") == 1
    assert "(fixmatch fold 0, fixmatch fold 1)" in text


def test_a_run_without_warnings_has_no_box(tmp_path, fakes):
    assert "Before you rely on it" not in page(read_runs([write_folder(tmp_path / "a", [line(1000)], {})]), quick=True)
