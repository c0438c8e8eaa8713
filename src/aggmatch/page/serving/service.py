"""A trained model behind HTTP: `aggmatch serve RUN`."""

import io
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aggmatch import __version__
from aggmatch.config import Changes
from aggmatch.data.own.decode import Budget, decode_stream, printable, reason
from aggmatch.inference.model import TrainedModel
from aggmatch.page.listen import gone
from aggmatch.page.serving.batching import Batcher, BusyError, Predict
from aggmatch.page.serving.openapi import describe
from aggmatch.runs.folder import RunFolder
from aggmatch.tables import plural

MEGABYTE = 10**6
TOGETHER = 8
"""Requests of the largest size that are held at the same time."""


@dataclass(frozen=True)
class Engine:
    """What predicts."""

    predict: Predict
    classes: tuple[str, ...]
    side: int
    channels: int
    name: str
    """`onnx` or `torch`."""


def load_engine(run: Path, changes: Changes = (), allow: Iterable[str] = ()) -> Engine:
    """Return the exported model of a run if it has one and onnxruntime is installed, else the model itself.

    run: folder of a finished run. changes, allow: see `TrainedModel.load`. An exported model is usually faster on a
    CPU. One that is older than the model itself is not used.
    """
    exported, model_file = run / "model.onnx", RunFolder(run).model
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        onnxruntime = None
    fresh = exported.exists() and (
        not model_file.exists() or exported.stat().st_mtime_ns >= model_file.stat().st_mtime_ns
    )
    if onnxruntime and fresh:
        session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
        classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
        _, channels, side, _ = session.get_inputs()[0].shape

        def with_onnx(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            return session.run(None, {"images": images})[0]

        return Engine(with_onnx, tuple(classes), side, channels, "onnx")
    model = TrainedModel.load(run, changes, allow=allow)

    def with_torch(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        import torch

        return model.predict(torch.from_numpy(images)).numpy()

    return Engine(with_torch, model.classes, model.side, model.network.channels, "torch")


class Image(NamedTuple):
    """An image of a request."""

    name: str | None
    """Its file name, if the client gave one."""
    data: bytes


def make_app(
    engine: Engine, *, most_images: int = 64, most_megabytes: int = 32, batch: int = 32, waiting: int = 1024
) -> Starlette:
    """Return the application that predicts.

    engine: see `load_engine`. most_images, most_megabytes: limits of one request. batch: images that are predicted
    together. waiting: images of all requests above which further ones are refused.

    Example: `uvicorn.run(make_app(load_engine(Path("runs/mine"))))`.
    """
    batcher = Batcher(engine.predict, most=batch, waiting=waiting)
    service = Service(engine, most_images, most_megabytes * MEGABYTE, batcher)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with batcher:
            yield

    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/healthz", service.health),
        Route("/classes", service.classes),
        Route("/openapi.json", service.description),
    ]
    handlers: dict[Any, Any] = {HTTPException: refused, ClientDisconnect: gone}
    return Starlette(routes=routes, lifespan=running, exception_handlers=handlers)


def refused(request: Request, error: Exception) -> Response:
    """Return an error as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


class Service:
    """The answers to requests."""

    def __init__(self, engine: Engine, most_images: int, most_bytes: int, batcher: Batcher) -> None:
        self.engine, self.most_images, self.most_bytes = engine, most_images, most_bytes
        self.batcher = batcher
        self.budget = Budget()
        self.predicted = 0
        self.held = 0
        """Bytes of the requests that are being answered."""

    async def health(self, request: Request) -> Response:
        """Whether the server works, and what it has done."""
        facts = {"status": "ok", "engine": self.engine.name, "predicted": self.predicted, "version": __version__}
        return JSONResponse(facts)

    async def classes(self, request: Request) -> Response:
        """The classes of the model, in the order of its output."""
        return JSONResponse({"classes": list(self.engine.classes)})

    async def description(self, request: Request) -> Response:
        """The OpenAPI description."""
        return JSONResponse(describe(self.engine.classes, self.most_images, self.most_bytes))

    async def predict(self, request: Request) -> Response:
        """The class of each image of a request."""
        with self.limited(request):
            return await self.answer_to(await self.read(request))

    async def answer_to(self, images: list[Image]) -> Response:
        """The class of each image."""
        if not images:
            raise HTTPException(400, "The request holds no image: send one as its body, or several as form files.")
        if len(images) > self.most_images:
            raise HTTPException(413, f"A request may hold at most {plural(self.most_images, 'image')}.")
        decoded = await run_in_threadpool(self.decode, images)
        good = [pixels for pixels, _ in decoded if pixels is not None]
        try:
            probs = iter(await self.batcher.predict(np.stack(good)) if good else ())
        except BusyError:
            raise busy() from None
        self.predicted += len(good)
        answers = [
            {"file": image.name, "error": f"Not an image: {why}."}
            if pixels is None
            else {"file": image.name, **self.answer(next(probs))}
            for image, (pixels, why) in zip(images, decoded, strict=True)
        ]
        return JSONResponse({"predictions": answers}, 200 if good else 422)

    def answer(self, probs: NDArray[np.float32]) -> dict[str, Any]:
        """Return the most probable class and all probabilities."""
        best = self.engine.classes[int(probs.argmax())]
        shares = {name: round(float(share), 6) for name, share in zip(self.engine.classes, probs, strict=True)}
        return {"class": best, "probability": shares[best], "probabilities": shares}

    def decode(self, images: list[Image]) -> list[tuple[NDArray[np.uint8] | None, str]]:
        """Return the pixels of each image, or None and why it has none."""
        found: list[tuple[NDArray[np.uint8] | None, str]] = []
        for image in images:
            try:
                stream: Any = io.BytesIO(image.data)
                pixels = decode_stream(stream, self.engine.side, self.engine.channels, self.budget)
                found.append((np.ascontiguousarray(pixels.numpy()), ""))
            except Exception as error:  # Pillow raises almost any exception for a corrupt file
                found.append((None, reason(error)))
        return found

    @contextmanager
    def limited(self, request: Request) -> Iterator[None]:
        """Within, refuse the body of a request if it is too large, by its header or when it arrives.

        Also if the requests that are being answered are too large together: so memory is bounded.
        """
        problem = HTTPException(413, f"A request may have at most {self.most_bytes / MEGABYTE:g} MB.")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise problem
        receive, total = request._receive, 0

        async def counted() -> Any:
            nonlocal total
            message = await receive()
            size = len(message.get("body", b""))
            total, self.held = total + size, self.held + size
            if total > self.most_bytes:
                raise problem
            if self.held > TOGETHER * self.most_bytes:
                raise busy()
            return message

        request._receive = counted
        try:
            yield
        finally:
            self.held -= total

    async def read(self, request: Request) -> list[Image]:
        """Return the images of a request: form files, or its whole body."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "multipart/form-data":
            body = await request.body()
            return [Image(None, body)] if body else []
        try:
            most = {"max_files": self.most_images + 1, "max_fields": self.most_images + 1}
            async with request.form(**most) as form:
                files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
                return [Image(printable(file.filename or ""), await file.read()) for file in files]
        except HTTPException as error:
            status = 413 if "Too many" in str(error.detail) else error.status_code
            raise HTTPException(status, str(error.detail)) from None


def busy() -> HTTPException:
    """Return the answer to a request for which there is no room now."""
    return HTTPException(503, "Too many images are waiting. Try again soon.", {"retry-after": "1"})
