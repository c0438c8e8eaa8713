"""Requests per second of `aggmatch serve` against the bare ONNX session.

    python benchmarks/serve_speed.py RUN IMAGE [--seconds 10] [--clients 8]

RUN: folder of a finished run with its `model.onnx` (`aggmatch export RUN`). IMAGE: a photo that is sent again and
again. The bare session predicts the same image, decoded once, one image at a time and 16 at a time. The server also
decodes each request, and answers in JSON. On a busy machine only the ratio of numbers from one call means something.
"""

import argparse
import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggmatch.data.own.decode import decode
from aggmatch.page.serving.service import Engine, load_engine


def rate(work: Callable[[], int], seconds: float) -> float:
    """Return how many images per second a function predicts that returns their number."""
    work()
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        done += work()
    return done / (time.perf_counter() - begin)


def predict(engine: Engine, images: NDArray[np.uint8]) -> int:
    """Predict some images and return their number."""
    return len(engine.predict(images))


def serve_rate(port: int, image: bytes, clients: int, seconds: float) -> float:
    """Return the requests per second of several clients, each of which sends one image after the other."""
    counts = [0] * clients
    end = time.perf_counter() + seconds

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.perf_counter() < end:
            connection.request("POST", "/predict", image, {"content-type": "image/jpeg"})
            answer = connection.getresponse()
            answer.read()
            counts[number] += answer.status == 200

    begin = time.perf_counter()
    threads = [threading.Thread(target=send, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    engine = load_engine(options.run)
    if engine.name != "onnx":
        sys.exit(f"Export the model first: aggmatch export {options.run}")
    one = decode(options.image, engine.side, engine.channels).numpy()[None]
    stacks = {count: np.repeat(one, count, 0) for count in (1, 16)}
    bare = {count: rate(partial(predict, engine, stack), options.seconds) for count, stack in stacks.items()}
    decoding = rate(lambda: len(decode(options.image, engine.side, engine.channels)[:1]), options.seconds)
    command = [sys.executable, "-m", "aggmatch", "serve", str(options.run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = re.search(r":(\d+)/predict", process.stdout.readline())
            assert port
            served = {
                clients: serve_rate(int(port[1]), options.image.read_bytes(), clients, options.seconds)
                for clients in (1, options.clients)
            }
        finally:
            process.terminate()
    for count, found in bare.items():
        print(f"bare session, {count:2} images at a time: {found:7.1f} images/s")
    print(f"decoding alone, one thread:         {decoding:7.1f} images/s")
    for clients, found in served.items():
        print(f"serve, {clients:2} clients: {found:7.1f} requests/s, {found / bare[1]:.2f} of the bare session")


if __name__ == "__main__":
    main()
