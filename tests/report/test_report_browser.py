"""The page in a real browser: nothing fails, everything has a size, and it fits a phone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: chromium, chromium-browser or google-chrome")

HARNESS = """<!doctype html><meta charset="utf-8">
<iframe id="frame" srcdoc="{page}" style="border: 0; width: {width}px; height: 4000px"></iframe>
<pre id="measured"></pre>
<script>
document.getElementById("frame").addEventListener("load", () => {{
  const page = document.getElementById("frame").contentDocument;
  const root = page.documentElement;
  page.querySelectorAll("details").forEach((fold) => {{ fold.open = true; }});
  const box = (element) => {{ const {{ width, height }} = element.getBoundingClientRect(); return [width, height]; }};
  const table = page.querySelector("table.sortable");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
  const before = column();
  table.querySelector("th button").click();
  document.getElementById("measured").textContent = JSON.stringify({{
    page: root.scrollWidth, window: root.clientWidth,
    figures: [...page.querySelectorAll("figure .plots")].map(box),
    bars: [...page.querySelectorAll(".fill")].map((bar) => box(bar)[0] / box(bar.parentElement)[0]),
    scales: [...page.querySelectorAll("figure svg")].map((svg) => box(svg)[0] / (svg.viewBox.baseVal.width * 4 / 3)),
    rows: [...page.querySelectorAll("figure .plots")].map(
      (each) => new Set([...each.children].map((plot) => plot.getBoundingClientRect().top)).size / each.children.length
    ),
    hints: [...page.querySelectorAll(".scroll")].map(
      (each) => [each.scrollWidth > each.clientWidth + 1, each.matches(".wide.more")]
    ),
    before, after: column(), sorted: table.querySelector("th").getAttribute("aria-sort"),
    background: getComputedStyle(page.body).backgroundColor, color: getComputedStyle(page.body).color,
  }});
}});
</script>
"""


def measure(source: str, width: int, place: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """Sizes and colours of the page in a window of so many pixels, and the errors that the browser logged."""
    harness = place / "harness.html"
    harness.write_text(HARNESS.format(page=html.escape(source), width=width), encoding="utf-8")
    assert BROWSER
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={place / 'profile'}",
    ]
    command += ["--enable-logging=stderr", "--virtual-time-budget=10000"]
    command += [*options, "--dump-dom", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout)
    assert found, done.stderr
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])), errors


class Look(NamedTuple):
    """A page in a window."""

    page: str
    width: int
    dark: bool


LOOKS = [Look("one", 320, dark=True), Look("several", 390, dark=False), Look("one", 1200, dark=False)]


@pytest.fixture(scope="module", params=LOOKS, ids=lambda look: f"{look.page}-{look.width}")
def seen(request, tmp_path_factory) -> tuple[Look, dict[str, Any], list[str]]:
    look: Look = request.param
    scheme = f"--blink-settings=preferredColorScheme={0 if look.dark else 1}"
    found, errors = measure(request.getfixturevalue(look.page), look.width, tmp_path_factory.mktemp("browser"), scheme)
    return look, found, errors


def test_the_browser_logs_no_error(seen):
    assert seen[2] == []


def test_nothing_is_wider_than_the_window(seen):
    look, found, _ = seen
    assert found["window"] == look.width
    assert found["page"] <= look.width


def test_every_figure_has_a_size(seen):
    _, found, _ = seen
    assert len(found["figures"]) >= 7
    assert all(width > 50 and height > 50 for width, height in found["figures"])


def test_text_in_figures_keeps_its_size(seen):
    look, found, _ = seen
    assert min(found["scales"]) > (0.75 if look.width < 390 else 0.99)
    assert max(found["scales"]) < 1.01


def test_plots_wrap_on_a_phone_and_share_rows_in_a_wide_window(seen):
    look, found, _ = seen
    several = [share for share in found["rows"] if share < 1]
    assert bool(several) is (look.width > 960)


def test_bars_are_as_long_as_the_accuracies(seen, trained):
    look, found, _ = seen
    accuracies = [json.loads((path / "summary.json").read_text())["accuracy"] for path in trained.values()]
    wanted = sorted(accuracies, reverse=True) if look.page == "several" else []
    assert [100 * share for share in found["bars"]] == pytest.approx(wanted, abs=0.5)


def test_a_table_wider_than_the_window_has_a_hint(seen):
    look, found, _ = seen
    assert all(wider is hinted for wider, hinted in found["hints"])
    assert any(wider for wider, _ in found["hints"]) is (look.width < 960)


def test_text_contrasts_with_the_page_in_light_and_dark(seen):
    look, found, _ = seen
    background, color = (luminance(found[name]) for name in ("background", "color"))
    assert (background < color) is look.dark
    assert (max(background, color) + 0.05) / (min(background, color) + 0.05) > 7


def test_a_click_sorts_a_table(seen):
    _, found, _ = seen
    assert found["sorted"] == "descending"
    assert found["before"] == sorted(found["after"])
    assert found["after"] == sorted(found["after"], reverse=True)


def luminance(color: str) -> float:
    """Relative luminance of a colour as the browser writes it (WCAG)."""
    shares = [int(value) / 255 for value in re.findall(r"\d+", color)[:3]]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
