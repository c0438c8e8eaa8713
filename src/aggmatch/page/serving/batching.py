"""One model for many requests: images that wait at the same time are predicted together.

Shapes: N images of all requests in a batch, Y classes.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

Predict = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""uint8 images (N, C, side, side) → class probabilities (N, Y)."""


class Waiting(NamedTuple):
    """The images of one request, and where its answer goes."""

    images: NDArray[np.uint8]
    answer: "asyncio.Future[NDArray[np.float32]]"


class BusyError(Exception):
    """Too many images wait."""


class Batcher:
    """Collects the images of requests while the model computes, and predicts them together when it is free.

    A request never waits for others to arrive, so that a single one is as fast as without batches. predict: runs in a
    thread, one batch at a time. most: images of a batch. waiting: images above which requests are refused, unless none
    waits.

    Example: `async with Batcher(predict) as batcher: probs = await batcher.predict(images)`.
    """

    def __init__(self, predict: Predict, *, most: int = 32, waiting: int = 1024) -> None:
        self.compute, self.most, self.limit = predict, most, waiting
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self.images = 0
        """Images that wait."""
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Batcher":
        self.queue = asyncio.Queue()  # belongs to one event loop
        self.task = asyncio.create_task(self.work())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def predict(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the class probabilities of some images, (N, Y); raise `BusyError` if too many wait."""
        if self.images and self.images + len(images) > self.limit:
            raise BusyError
        answer: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()
        self.images += len(images)
        self.queue.put_nowait(Waiting(images, answer))
        try:
            return await answer
        finally:
            self.images -= len(images)

    async def work(self) -> None:
        """Predict batches until the task is cancelled."""
        held: Waiting | None = None  # does not fit into the last batch
        while True:
            batch = [held or await self.queue.get()]
            held, size = None, len(batch[0].images)
            while not self.queue.empty():
                following = self.queue.get_nowait()
                size += len(following.images)
                if size > self.most:
                    held = following
                    break
                batch.append(following)
            await self.predict_batch([each for each in batch if not each.answer.done()])

    def compute_all(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the class probabilities of some images, (N, Y); those of a large request in several batches."""
        starts = range(0, len(images), self.most)
        return np.concatenate([self.compute(images[start : start + self.most]) for start in starts])

    async def predict_batch(self, batch: list[Waiting]) -> None:
        """Answer some requests; an error of the model goes to all of them."""
        if not batch:
            return
        try:
            probs = await run_in_threadpool(self.compute_all, np.concatenate([each.images for each in batch]))
        except Exception as error:
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        start = 0
        for each in batch:
            end = start + len(each.images)
            if not each.answer.done():  # the client may have gone
                each.answer.set_result(probs[start:end])
            start = end
