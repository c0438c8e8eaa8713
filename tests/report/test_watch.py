import json
import shutil

import pytest
from tests.folders import line

from aggmatch.report import page as module
from aggmatch.report.page import watch
from aggmatch.runs.log import Log


@pytest.fixture
def training(trained, fakes, tmp_path):
    """The folder of a run that seems to be training, and a function that finishes it."""
    path = shutil.copytree(trained["supervised"], tmp_path / "run")
    kept = {name: (path / name).read_bytes() for name in ("metrics.jsonl", "summary.json")}
    (path / "summary.json").unlink()
    return path, lambda: [(path / name).write_bytes(data) for name, data in kept.items()]


def test_the_page_follows_the_run_and_is_complete_when_it_has_finished(training, tmp_path):
    path, finish = training
    out = tmp_path / "report.html"
    seen: list[str] = []
    told: list[str] = []

    def pause(_: float) -> None:
        seen.append(out.read_text())
        if len(seen) == 1:
            with Log(path / "metrics.jsonl", (path / "metrics.jsonl").stat().st_size) as log:
                log.write(line(13))
        else:
            finish()

    assert watch([path], out, progress=told.append, pause=pause)
    first, second = seen
    assert "at step 12 of 12" in first
    assert "at step 13 of 12" in second
    assert all('http-equiv="refresh"' in source and 'id="features"' not in source for source in seen)
    last = out.read_text()
    assert "learned digits from 20 labels" in last
    assert 'http-equiv="refresh"' not in last
    assert 'id="features"' in last
    assert told[:2] == ["supervised fold 0 step 12 of 12", "supervised fold 0 step 13 of 12"]
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_every_reading_of_the_run_may_download_its_data(training, tmp_path, monkeypatch):
    path, finish = training
    asked = []

    def page(runs, **_):
        asked.append(runs[0].download)
        return ""

    monkeypatch.setattr(module, "page", page)
    assert watch([path], tmp_path / "report.html", download=True, pause=lambda _: finish())
    assert asked == [True, True]


def test_the_page_is_not_rewritten_if_nothing_was_logged(training, tmp_path):
    path, _ = training
    out = tmp_path / "report.html"
    versions: list[int] = []

    def pause(_: float) -> None:
        versions.append(out.stat().st_ino)
        if len(versions) == 3:
            raise KeyboardInterrupt

    watch([path], out, pause=pause)
    assert len(set(versions)) == 1


def test_an_interrupt_leaves_a_page_that_no_longer_reloads(training, tmp_path):
    path, _ = training

    def pause(_: float) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "report.html"
    assert not watch([path], out, pause=pause)
    assert 'http-equiv="refresh"' not in out.read_text()
    assert "The run is not finished" in out.read_text()


def test_the_page_of_finished_runs_is_written_at_once(trained, fakes, tmp_path):
    out = tmp_path / "report.html"
    assert watch([trained["supervised"]], out, pause=lambda _: pytest.fail("nothing to wait for"))
    summary = json.loads((trained["supervised"] / "summary.json").read_text())
    assert f"{summary['accuracy']:.1f}" in out.read_text()
