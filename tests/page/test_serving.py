"""A trained model over HTTP: answers, limits, errors, batches."""

import asyncio
import io
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.page.conftest import BACKBONE
from tests.page.web import Web

from aggmatch.errors import AggMatchError
from aggmatch.inference.model import TrainedModel
from aggmatch.page.project import Project
from aggmatch.page.serving.batching import Batcher
from aggmatch.page.serving.service import Engine, load_engine, make_app

BASE = "http://127.0.0.1:8000"


def means(images: np.ndarray) -> np.ndarray:
    """A model that knows dark and bright images."""
    bright = images.reshape(len(images), -1).mean(1) / 255
    return np.stack([1 - bright, bright], 1).astype(np.float32)


def web(predict=means, **limits: int) -> Web:
    return Web(make_app(Engine(predict, ("dark", "bright"), 8, 3, "torch"), **limits), BASE)


def picture(brightness: int, kind: str = "PNG", mode: str = "RGB", size: int = 20) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (size, size), (brightness,) * len(mode) if len(mode) > 1 else brightness).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGB"), ("JPEG", "RGB"), ("PNG", "L"), ("PNG", "RGBA")])
def test_one_image_as_the_body(kind: str, mode: str):
    (found,) = web().post("/predict", content=picture(255, kind, mode)).json()["predictions"]
    assert (found["file"], found["class"], found["probability"]) == (None, "bright", 1.0)
    assert found["probabilities"] == {"dark": 0.0, "bright": 1.0}


def test_several_images_keep_their_order_and_names():
    files = [("files", (f"{value}.png", picture(value), "image/png")) for value in (0, 255, 10)]
    found = web().post("/predict", files=files).json()["predictions"]
    assert [(each["file"], each["class"]) for each in found] == [
        ("0.png", "dark"),
        ("255.png", "bright"),
        ("10.png", "dark"),
    ]


def test_a_file_that_is_no_image_does_not_spoil_the_others():
    files = [("files", ("a.png", b"nonsense")), ("files", ("b.png", picture(255)))]
    answer = web().post("/predict", files=files)
    bad, good = answer.json()["predictions"]
    assert answer.status_code == 200
    assert bad == {"file": "a.png", "error": "Not an image: not a JPEG, PNG, WEBP, TIFF, BMP, GIF or PPM image."}
    assert good["class"] == "bright"


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"nonsense", 422), (picture(9)[:60], 422), (b"", 400), (b"%!PS\n", 422)],
    ids=["text", "torn", "empty", "PostScript"],
)
def test_what_is_no_image_is_an_error(content: bytes, status: int):
    assert web().post("/predict", content=content).status_code == status


def test_a_form_without_files_is_an_error():
    answer = web().post("/predict", data={"files": "text"}, files=[])
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("count", [3, 5])
def test_too_many_images_are_refused(count: int):
    files = [("files", (f"{k}.png", picture(0))) for k in range(count)]
    answer = web(most_images=2).post("/predict", files=files)
    assert answer.status_code == 413
    assert "error" in answer.json()


@pytest.mark.parametrize("known", [True, False], ids=["length in the header", "unknown length"])
def test_a_request_that_is_too_large_is_refused(known: bool):
    def chunks():
        for _ in range(3):
            yield b"x" * 600_000

    async def stream():
        for chunk in chunks():
            yield chunk

    answer = web(most_megabytes=1).post("/predict", content=b"".join(chunks()) if known else stream())
    assert answer.status_code == 413
    assert answer.json()["error"] == "A request may have at most 1 MB."


def test_an_image_that_would_need_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aggmatch.data.own.decode.MOST_PIXELS", 100)
    (found,) = web().post("/predict", content=picture(0)).json()["predictions"]
    assert "400 pixels, more than 100" in found["error"]


def test_health_classes_and_description():
    service = web()
    assert service.get("/healthz").json()["status"] == "ok"
    assert service.get("/classes").json() == {"classes": ["dark", "bright"]}
    described = service.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {"/predict", "/classes", "/healthz"}
    assert service.get("/predict").status_code == 405


def test_concurrent_requests_are_predicted_together_and_get_their_own_answer():
    sizes = []
    entered, proceed = threading.Event(), threading.Event()

    def slow(images: np.ndarray) -> np.ndarray:
        sizes.append(len(images))
        if len(sizes) == 1:
            entered.set()
            proceed.wait(30)
        return means(images)

    async def ask() -> list[np.ndarray]:
        async with Batcher(slow, most=8) as batcher:
            first = asyncio.create_task(batcher.predict(np.zeros((1, 3, 8, 8), np.uint8)))
            await asyncio.to_thread(entered.wait, 30)
            others = [
                asyncio.create_task(batcher.predict(np.full((2, 3, 8, 8), value, np.uint8)))
                for value in range(0, 250, 50)
            ]
            await asyncio.sleep(0)
            proceed.set()
            return await asyncio.gather(first, *others)

    found = asyncio.run(ask())
    assert sizes == [1, 8, 2]
    assert [round(float(probs[0, 1]) * 255) for probs in found[1:]] == [0, 50, 100, 150, 200]


def test_an_error_of_the_model_goes_to_its_requests_and_the_next_ones_work():
    calls = []

    def failing(images: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("broken")
        return means(images)

    async def ask() -> np.ndarray:
        async with Batcher(failing) as batcher:
            with pytest.raises(ValueError, match="broken"):
                await batcher.predict(np.zeros((1, 3, 8, 8), np.uint8))
            return await batcher.predict(np.zeros((1, 3, 8, 8), np.uint8))

    assert asyncio.run(ask()).shape == (1, 2)


def test_too_many_waiting_images_are_503():
    def slow(images: np.ndarray) -> np.ndarray:
        time.sleep(0.3)
        return means(images)

    request = ("POST", "/predict", {"content": picture(0)})
    answers = sorted(web(slow, waiting=1).together([request, request]), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 503]
    assert answers[1].headers["retry-after"] == "1"


def test_requests_that_are_too_large_together_are_503(monkeypatch: pytest.MonkeyPatch):
    async def stream():
        yield bytes(700_000)
        await asyncio.sleep(0.2)

    monkeypatch.setattr("aggmatch.page.serving.service.TOGETHER", 1)
    service = web(most_megabytes=1)
    answers = service.together([("POST", "/predict", {"content": stream()}) for _ in range(2)])
    assert sorted(answer.status_code for answer in answers) == [422, 503]
    assert service.post("/predict", content=picture(0)).status_code == 200, "what was held is free again"


def test_a_client_that_goes_away_is_no_error_of_the_server():
    async def leave() -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []
        parts = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b""}

        async def receive():
            return next(parts)

        async def send(message):
            sent.append(message)

        await web().app(scope, receive, send)
        return sent

    assert asyncio.run(leave())[0]["status"] == 400


def test_a_large_request_is_predicted_in_batches():
    sizes = []

    def noted(images: np.ndarray) -> np.ndarray:
        sizes.append(len(images))
        return means(images)

    files = [("files", (f"{value}.png", picture(value), "image/png")) for value in (0, 50, 100, 150, 200)]
    found = web(noted, batch=2, waiting=3).post("/predict", files=files).json()["predictions"]
    assert sizes == [2, 2, 1]
    assert [round(255 * each["probabilities"]["bright"]) for each in found] == [0, 50, 100, 150, 200]


def test_answers_are_as_described():
    schemas = pytest.importorskip("jsonschema")
    service = web(most_images=1)
    described = service.get("/openapi.json").json()["paths"]
    image, form = picture(0), [("files", ("a.png", picture(0), "image/png"))] * 2
    for options in ({"content": image}, {"content": b""}, {"content": b"text"}, {"files": form}):
        answer = service.post("/predict", **options)
        content = described["/predict"]["post"]["responses"][str(answer.status_code)]["content"]
        schemas.validate(answer.json(), content["application/json"]["schema"])
    for path in ("/classes", "/healthz"):
        content = described[path]["get"]["responses"]["200"]["content"]
        schemas.validate(service.get(path).json(), content["application/json"]["schema"])


def test_a_run_is_served_with_torch_and_after_its_export_with_onnx(trained: Project):
    pytest.importorskip("onnxruntime")
    from aggmatch.inference.export import to_onnx

    assert trained.rounds.done
    run = trained.rounds.done.run
    engine = load_engine(run, allow=[BACKBONE])
    assert (engine.name, engine.classes, engine.side) == ("torch", ("left", "top"), 8)
    (run / "model.onnx").write_bytes(to_onnx(TrainedModel.load(run, {"runtime.device": "cpu"}, allow=[BACKBONE])))
    exported = load_engine(run)
    assert (exported.name, exported.classes, exported.side, exported.channels) == ("onnx", ("left", "top"), 8, 3)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    assert np.allclose(engine.predict(images), exported.predict(images), atol=1e-4)
    os.utime(run / "model.onnx", (1, 1))
    assert load_engine(run, allow=[BACKBONE]).name == "torch"


def test_a_folder_without_a_model_is_an_error(tmp_path: Path):
    with pytest.raises(AggMatchError, match=r"config\.json"):
        load_engine(tmp_path)
