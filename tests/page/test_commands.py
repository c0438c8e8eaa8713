"""The commands label and serve."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.page.browser import wait
from tests.page.conftest import BACKBONE, TINY, write_images

SETTINGS = [word for key, value in TINY.items() for word in ("--set", f"{key}={json.dumps(value)}")]


@contextmanager
def started(*words: object, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Within, the process of a command that listens, and its address."""
    command = [sys.executable, "-m", "aggmatch", *map(str, words), "--port", "0"]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout
        text = ""
        while not (found := re.search(r"http://[^ ]+", text)):
            line = process.stdout.readline()
            assert line, text
            text += line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def send(address: str, token: str, **body: object) -> dict[str, Any]:
    origin = re.match(r"http://[^/]+", address)
    headers = {"origin": origin[0] if origin else "", "x-token": token, "content-type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


def test_labels_survive_a_killed_server_and_training_starts_by_itself(tmp_path: Path):
    write_images(tmp_path / "photos")
    words = ("label", "photos", "--no-open", "--train-every", "4", *SETTINGS)
    with started(*words, cwd=tmp_path) as (process, address):
        token = re.search(r'name="token" content="([^"]+)"', read(address))
        assert token
        items = json.loads(read(f"{address}api/list/all"))["items"]
        for name, start in (("left", 0), ("top", 1)):
            send(f"{address}api/event", token[1], event="class", name=name)
            label = {"event": "label", "class": name, "ids": [items[start][0], items[start + 2][0]]}
            send(f"{address}api/event", token[1], **label)
        wait(lambda: '"kind":"train"' in read(f"{address}api/state"), "training after the preparation")
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        worker = int(found.stdout)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        wait(lambda: not is_running(worker), "the end of the process that trained")
    with started(*words, cwd=tmp_path) as (process, address):
        assert json.loads(read(f"{address}api/state"))["counts"]["labeled"] == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (tmp_path / "runs" / "label-photos" / "0001" / "labels.jsonl").exists()


def test_a_model_is_served(tmp_path: Path, trained_once: Path):
    run = trained_once / "out" / "0001" / "run"
    with started("serve", run, "--allow-code", BACKBONE, cwd=tmp_path) as (_, address):
        base = address.removesuffix("/predict")
        assert json.loads(read(f"{base}/classes")) == {"classes": ["left", "top"]}
        data = (trained_once / "photos" / "20.png").read_bytes()
        with urllib.request.urlopen(urllib.request.Request(address, data, {"content-type": "image/png"})) as answer:
            assert json.load(answer)["predictions"][0]["class"] in ("left", "top")


def test_wrong_places_are_errors(run, tmp_path: Path):
    code, _, text = run("label", "gone")
    assert (code, "no folder gone" in text) == (2, True)
    write_images(tmp_path / "photos")
    code, _, text = run("label", "photos", "--out", "photos/out")
    assert (code, "inside the folder of images" in text) == (2, True)
    code, _, text = run("label", "photos", "--labels-file", "labels.csv")
    assert (code, "must end in .jsonl" in text) == (2, True)


def test_a_port_that_is_taken_is_an_error(run, tmp_path: Path):
    from aggmatch.page.listen import bind

    write_images(tmp_path / "photos")
    with bind("127.0.0.1", [0]) as taken:
        code, _, text = run("label", "photos", "--no-open", "--port", taken.getsockname()[1])
    assert code == 2
    assert "--port" in text


def test_models_are_kept_beside_images_that_are_the_working_folder(tmp_path: Path, monkeypatch):
    from aggmatch.cli.page import default_out

    photos = write_images(tmp_path / "photos")
    monkeypatch.chdir(photos)
    assert default_out(Path()) == tmp_path / "photos-models"
    monkeypatch.chdir(tmp_path)
    assert default_out(Path("photos")) == Path("runs/label-photos")
