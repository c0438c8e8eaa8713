"""The label page over HTTP: answers, errors, and who may use it."""

import errno
import json
import os

import pytest
from tests.page.conftest import ODD
from tests.page.web import Web

from aggmatch.page.index import image_id
from aggmatch.page.project import Project
from aggmatch.page.security import COOKIE, Access
from aggmatch.page.server import STATIC, make_app

FIRST, SECOND = image_id("00.png"), image_id("01.png")
LOCAL = "http://127.0.0.1:8765"


def client(project: Project, access: Access | None = None, base: str = LOCAL) -> Web:
    access = access or Access("127.0.0.1")
    return Web(make_app(project, access), base, {"origin": base, "x-token": access.token})


@pytest.fixture
def web(project: Project) -> Web:
    return client(project)


def test_a_label_is_on_the_disk_when_the_answer_comes(web: Web, project: Project):
    web.post("/api/event", json={"event": "class", "name": ODD})
    version = web.get("/api/state").json()["version"]
    answer = web.post("/api/event", json={"event": "label", "ids": [FIRST], "class": ODD, "version": version})
    assert answer.status_code == 200
    assert answer.json()["changes"] == {FIRST: [ODD, None]}
    last = json.loads(project.notes.path.read_text().splitlines()[-1])
    assert (last["files"], last["class"]) == (["00.png"], ODD)


def test_undo_gives_the_state_before(web: Web):
    before = web.post("/api/event", json={"event": "class", "name": "rose"}).json()
    saved = web.post("/api/event", json={"event": "label", "ids": [FIRST], "class": "rose"}).json()
    answer = web.post("/api/undo", json={"version": saved["version"]}).json()
    assert answer["said"] == "rose: 1 image"
    assert answer["counts"] == before["counts"]
    assert answer["changes"] == {FIRST: [None, None]}


def test_a_conflict_answers_409_with_the_new_state(web: Web):
    web.post("/api/event", json={"event": "class", "name": "rose"})
    answer = web.post("/api/event", json={"event": "label", "ids": [FIRST], "class": "tulip"})
    assert answer.status_code == 409
    assert "no class 'tulip'" in answer.json()["error"]
    assert [each["name"] for each in answer.json()["classes"]] == ["rose"]


def test_a_full_disk_answers_422_and_nothing_is_labelled(web: Web, monkeypatch: pytest.MonkeyPatch):
    web.post("/api/event", json={"event": "class", "name": "rose"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer = web.post("/api/event", json={"event": "label", "ids": [FIRST], "class": "rose"})
    assert answer.status_code == 422
    assert "No space left" in answer.json()["error"]
    assert answer.json()["counts"]["labeled"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"event": "label", "ids": "00.png", "class": "rose"},
        {"event": "label", "files": ["../secret"], "class": "rose"},
        {"event": "undo"},
        {"event": "class", "name": ""},
        {"event": "class", "name": ["rose"]},
        {},
    ],
    ids=str,
)
def test_wrong_requests_change_nothing(web: Web, project: Project, body):
    web.post("/api/event", json={"event": "class", "name": "rose"})
    before = project.notes.path.read_bytes()
    assert web.post("/api/event", json=body).status_code == 422
    assert project.notes.path.read_bytes() == before


def test_a_request_that_is_not_json_or_too_large_is_refused(web: Web, monkeypatch: pytest.MonkeyPatch):
    assert web.post("/api/event", content=b"nonsense").status_code == 400
    assert web.post("/api/event", content=b"[]").status_code == 400
    monkeypatch.setattr("aggmatch.page.server.LARGEST", 10)
    assert web.post("/api/event", content=b" " * 11).status_code == 413


# Pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["thumbnail", "photo"])
def test_pictures_are_jpeg_and_are_not_sent_twice(web: Web, kind: str):
    answer = web.get(f"/{kind}/{FIRST}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.content[:2] == b"\xff\xd8"
    assert web.get(f"/{kind}/{FIRST}", headers={"if-none-match": answer.headers["etag"]}).status_code == 304


def test_thumbnails_are_made_once(web: Web, monkeypatch: pytest.MonkeyPatch):
    first = web.get(f"/thumbnail/{FIRST}").content
    monkeypatch.setattr("aggmatch.page.index.jpeg", None)
    assert web.get(f"/thumbnail/{FIRST}").content == first


def test_an_unreadable_image_is_reported_and_leaves_the_queue(web: Web, project: Project):
    (project.root / "00.png").write_text("no image")
    answer = web.get(f"/thumbnail/{FIRST}")
    assert answer.status_code == 422
    assert "not a JPEG" in answer.json()["error"]
    assert "1 file cannot be read, such as 00.png" in web.get("/api/state").json()["problems"][0]
    assert FIRST not in {item[0] for item in web.get("/api/list/queue").json()["items"]}


def test_a_vanished_file_is_404(web: Web, project: Project):
    (project.root / "00.png").unlink()
    assert web.get(f"/thumbnail/{FIRST}").status_code == 404
    assert web.get(f"/photo/{FIRST}").status_code == 404


@pytest.mark.parametrize("address", ["/thumbnail/00.png", "/thumbnail/..%2f..%2fetc%2fpasswd", "/static/../server.py"])
def test_paths_are_no_ids(web: Web, address: str):
    assert web.get(address).status_code == 404


def test_files_of_the_package_that_are_no_scripts_are_not_served(web: Web):
    assert web.get("/static/main.js").status_code == 200
    assert web.get("/static/nothing.js").status_code == 404


# Who may use it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": ""}, {"x-token": "wrong"}, {"x-token": ""}, {"origin": "null"}],
    ids=str,
)
def test_changes_of_other_sites_are_refused(web: Web, project: Project, headers: dict[str, str]):
    answer = web.post("/api/event", json={"event": "class", "name": "rose"}, headers=headers)
    assert answer.status_code == 403
    assert not project.notes.path.exists()


def test_other_names_of_this_machine_are_refused(web: Web):
    assert web.get("/api/state", headers={"host": "evil.example:8765"}).status_code == 403
    assert web.get("/api/state", headers={"host": "["}).status_code == 403
    assert web.get("/api/state", headers={"host": "localhost:8765"}).status_code == 200


def test_another_address_needs_the_token_of_the_link(project: Project):
    access, base = Access("192.168.0.2"), "http://192.168.0.2:8765"
    web = Web(make_app(project, access), base)
    assert web.get("/").status_code == 403
    assert web.get(f"/thumbnail/{FIRST}").status_code == 403
    answer = web.get(access.link(8765).removeprefix(base))
    assert answer.status_code == 200
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert COOKIE in web.cookies
    assert web.get(f"/thumbnail/{FIRST}").status_code == 200
    assert web.post("/api/train", headers={"origin": base}).status_code == 403


def test_the_local_link_has_no_token():
    assert Access("127.0.0.1").link(80) == "http://127.0.0.1:80/"
    assert Access("::1").local
    link = Access("0.0.0.0").link(80)
    assert "?token=" in link
    assert "0.0.0.0" not in link


def test_the_page_loads_nothing_from_elsewhere(web: Web):
    answer = web.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in answer.text
    sources = [file.read_text() for file in STATIC.iterdir() if file.suffix != ".svg"]
    assert len(sources) > 5
    namespace = "http://www.w3.org/2000/svg"  # a name, which is never loaded
    assert not [source for source in sources if "://" in source.replace(namespace, "")]


# After training ---------------------------------------------------------------------------------------------------


def test_why_names_the_stored_examples_with_most_weight(trained: Project):
    answer = client(trained).get(f"/api/image/{image_id('20.png')}").json()
    why = answer["why"]
    assert answer["name"] == "20.png"
    assert set(why["shares"]) == {"model", "neighbours", "votes"}
    shares = [example["share"] for example in why["examples"]]
    assert shares == sorted(shares, reverse=True)
    assert all(example["id"] in trained.index.names for example in why["examples"])
    assert {example["class"] for example in why["examples"]} <= {"top", "left"}


def test_predictions_and_labels_can_be_downloaded(trained: Project):
    web = client(trained)
    labels, predictions = (web.get(f"/download/{name}.csv") for name in ("labels", "predictions"))
    assert labels.text.splitlines()[0] == "file,label"
    assert len(labels.text.splitlines()) == 13
    assert len(predictions.text.splitlines()) == 31
    assert "attachment" in predictions.headers["content-disposition"]
    assert web.get("/download/labels.jsonl").status_code == 404


def test_without_a_model_there_is_nothing_to_download_and_no_reason(web: Web):
    assert "Train a model first" in web.get("/download/predictions.csv").json()["error"]
    assert "Train one first" in web.get("/download/model.onnx").json()["error"]
    assert web.get(f"/api/image/{FIRST}").json()["why"] is None
    assert "two classes" in web.post("/api/train").json()["error"]


def test_the_number_of_labels_between_trainings_is_checked(web: Web, project: Project):
    assert web.post("/api/every", json={"every": 7}).json()["training"]["every"] == 7
    assert web.post("/api/every", json={"every": -1}).status_code == 422
    assert project.train_every == 7
