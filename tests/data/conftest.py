"""Tiny files in the official layouts, and small data sets."""

import io
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggmatch.data import DataSet, Images
from aggmatch.data.builtin.cifar import CIFAR10_ARCHIVE, CIFAR100_ARCHIVE

Pickler: Any = pickle._Pickler  # the pure Python one, whose dispatch can be changed


class Python2Pickler(Pickler):  # type: ignore[misc]
    """Writes pickles as Python 2 and its numpy did: byte strings, 0 and 1 for booleans, old module names of numpy."""

    dispatch = Pickler.dispatch.copy()

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else value
        header = b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + len(raw).to_bytes(4, "little")
        self.write(header + raw)
        self.memoize(value)

    def save_boolean(self, value: bool) -> None:
        self.save(int(value))

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = {"numpy._core.multiarray": "numpy.core.multiarray"}.get(value.__module__, value.__module__)
        self.write(f"c{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[bool] = save_boolean


def python2_pickle(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


@pytest.fixture(name="python2_pickle")
def python2_pickle_fixture() -> Callable[[Any], bytes]:
    return python2_pickle


def random_batch(seed: int, images: int, label_key: str, classes: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
    return {"batch_label": f"batch {seed}", label_key: rng.integers(0, classes, images).tolist(), "data": pixels}


@pytest.fixture
def cifar10_batches() -> dict[str, dict[str, Any]]:
    """Member of the archive → content: five training batches of four images and a test batch of four."""
    return {member: random_batch(n, 4, "labels", 10) for n, member in enumerate(CIFAR10_ARCHIVE.members)}


@pytest.fixture
def cifar100_batches() -> dict[str, dict[str, Any]]:
    batches = {member: random_batch(n, 4, "fine_labels", 100) for n, member in enumerate(CIFAR100_ARCHIVE.members)}
    for batch in batches.values():
        batch["coarse_labels"] = [0] * 4
    return batches


def unpack(folder: Path, members: Mapping[str, bytes]) -> None:
    for name, content in members.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def pack(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        # The order in the official archive is not sorted either.
        for name, content in reversed(list(members.items())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


@pytest.fixture(params=["unpacked", "packed"])
def put_cifar10(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Writes batches as the official folder or as the official archive; returns the data folder."""

    def put(batches: Mapping[str, Any]) -> Path:
        members = {name: python2_pickle(batch) for name, batch in batches.items()}
        if request.param == "unpacked":
            unpack(tmp_path, members)
        else:
            pack(tmp_path / CIFAR10_ARCHIVE.file, members)
        return tmp_path

    return put


@pytest.fixture(name="unpack")
def unpack_fixture() -> Callable[[Path, Mapping[str, bytes]], None]:
    return unpack


@pytest.fixture(name="pack")
def pack_fixture() -> Callable[[Path, Mapping[str, bytes]], None]:
    return pack


def small_data(labels: list[int], classes: int = 3, **changes: Any) -> DataSet:
    """A data set of 2×2 images with these training labels; classes are called a, b, c, ..."""
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:classes])
    train = Images(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(labels, dtype=torch.int64))
    test = Images(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    values: dict[str, Any] = {"name": "small", "train": train, "test": test, "classes": names, "mirror": False}
    return DataSet(**(values | changes))


@pytest.fixture(name="small_data", scope="session")
def small_data_fixture() -> Callable[..., DataSet]:
    return small_data


class Handler(BaseHTTPRequestHandler):
    """Sends `server.content` as the attributes of `Loopback` say."""

    server: "Loopback"

    def do_GET(self) -> None:
        server, start = self.server, 0
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if server.status >= 400:
            self.send_error(server.status)
            return
        if wanted and server.ranges == "refused":
            self.send_error(416)
            return
        if wanted and server.ranges == "served":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        elif wanted and server.ranges == "wrong":
            self.send_response(206)
            self.send_header("Content-Range", f"bytes 0-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        if server.lengths:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        end = len(server.content) if server.sent is None else start + server.sent
        self.wfile.write(server.content[start:end])
        if server.stalls:
            self.wfile.flush()
            server.released.wait(10)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Loopback(ThreadingHTTPServer):
    """A web server for one file, on this machine, that fails in the ways a test asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = b""
        self.status = 200
        self.ranges = "served"
        """Answer to a request for a range: served, ignored, refused, or served from the wrong byte."""
        self.lengths = True
        """Whether Content-Length is sent."""
        self.sent: int | None = None
        """Bytes after which the connection is closed."""
        self.stalls = False
        """Whether the connection stays open without sending anything."""
        self.released = threading.Event()
        self.requests: list[str | None] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if the client hangs up."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file"


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("no_proxy", "*")
    with Loopback() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()
