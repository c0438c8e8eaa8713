"""The label page over HTTP. Requests name images by id; what they change is on the disk before the answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from aggmatch import __version__
from aggmatch.data.own.decode import printable
from aggmatch.errors import AggMatchError
from aggmatch.page import outputs
from aggmatch.page.index import PHOTO, jpeg
from aggmatch.page.listen import gone
from aggmatch.page.project import ConflictError, Project
from aggmatch.page.security import Access, Guard
from aggmatch.storage.files import digest

STATIC = Path(__file__).with_name("static")
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LARGEST = 8 * 2**20
"""Bytes of a request: the ids of some hundred thousand images."""
CACHED = {"cache-control": "private, max-age=60"}
FRESH = {"cache-control": "no-store"}


def make_app(project: Project, access: Access) -> Starlette:
    """Return the application of the label page.

    Example: `uvicorn.run(make_app(Project(Path("photos"), Path("runs/label-photos")), Access("127.0.0.1")))`.
    """
    page = Page(project, access)
    routes = [
        Route("/", page.home),
        Route("/static/{name}", page.static),
        Route("/thumbnail/{key}", page.thumbnail),
        Route("/photo/{key}", page.photo),
        Route("/api/state", page.state),
        Route("/api/list/{name}", page.list_images),
        Route("/api/image/{key}", page.image),
        Route("/api/event", page.posted(page.event), methods=["POST"]),
        Route("/api/undo", page.posted(project.undo), methods=["POST"]),
        Route("/api/import", page.posted(page.import_labels), methods=["POST"]),
        Route("/api/train", page.posted(page.train), methods=["POST"]),
        Route("/api/stop", page.posted(page.stop), methods=["POST"]),
        Route("/api/every", page.posted(page.every), methods=["POST"]),
        Route("/api/sort", page.posted(page.sort), methods=["POST"]),
        Route("/download/{name}", page.download),
    ]
    handlers: dict[Any, Any] = {AggMatchError: refused, HTTPException: refused, ClientDisconnect: gone}
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=access)], exception_handlers=handlers)


def refused(request: Request, error: Exception) -> Response:
    """Return an error as JSON."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": str(error)}, status_of(error))


def status_of(error: Exception) -> int:
    """Return the status of an error that a user can fix: 409 if something changed meanwhile."""
    return 409 if isinstance(error, ConflictError) else 422


class Page:
    """The answers to requests. Those that are not coroutines run in a pool of threads."""

    def __init__(self, project: Project, access: Access) -> None:
        self.project, self.access = project, access
        self.templates = Environment(
            loader=PackageLoader("aggmatch.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )

    # Pages and pictures -------------------------------------------------------------------------------------------

    def home(self, request: Request) -> Response:
        """The page itself; opening it reads the folder again."""
        with self.project.lock:
            if self.project.index.scan():
                self.project.note_changes()
        text = self.templates.get_template("label.html").render(
            folder=printable(self.project.root.name) or "images",
            path=printable(self.project.root),
            token=self.access.token,
            version=__version__,
        )
        return HTMLResponse(text, headers=FRESH)

    def static(self, request: Request) -> Response:
        """A script or a style sheet of this package."""
        name = request.path_params["name"]
        file = next((file for file in STATIC.iterdir() if file.name == name and file.suffix in KINDS), None)
        if file is None:
            raise HTTPException(404, "There is no such file.")
        return Response(file.read_bytes(), media_type=KINDS[file.suffix], headers={"cache-control": "no-cache"})

    def thumbnail(self, request: Request) -> Response:
        """A small copy of an image, as JPEG."""
        key = request.path_params["key"]
        return self.picture(request, key, lambda file: self.project.thumbnails.get(key, file))

    def photo(self, request: Request) -> Response:
        """An image for the single view, as JPEG."""
        return self.picture(request, request.path_params["key"], lambda file: jpeg(file, PHOTO))

    def picture(self, request: Request, key: str, make: Callable[[Path], bytes]) -> Response:
        """A picture of an image; 404 if there is no such image or file, 422 if it cannot be read."""
        file = self.file_of(key)
        try:
            data = make(file)
        except FileNotFoundError:
            raise HTTPException(404, "The file is gone.") from None
        except OSError as error:
            why = str(error).split(": ", 1)[-1].rstrip(".")
            if not file.exists():
                raise HTTPException(404, "The file is gone.") from None
            self.project.index.unreadable[key] = why
            raise HTTPException(422, f"The file cannot be read: {why}.") from None
        tag = f'"{digest(data)}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag, **CACHED})
        return Response(data, media_type="image/jpeg", headers={"etag": tag, **CACHED})

    def file_of(self, key: str) -> Path:
        """The file of an id."""
        try:
            return self.project.index.file(key)
        except KeyError:
            raise HTTPException(404, "There is no such image.") from None

    # What is known ------------------------------------------------------------------------------------------------

    def state(self, request: Request) -> Response:
        """Classes, counts, progress, and the images that changed since a version."""
        return JSONResponse(self.project.state(request.query_params.get("since")), headers=FRESH)

    def list_images(self, request: Request) -> Response:
        """The images of a list; see `Lists.rows`."""
        items = self.project.lists.rows(request.path_params["name"], request.query_params.get("class", ""))
        return JSONResponse({"version": self.project.stamp, "items": items}, headers=FRESH)

    def image(self, request: Request) -> Response:
        """Everything about one image, with the reasons for its predicted label."""
        key, project = request.path_params["key"], self.project
        self.file_of(key)
        with project.lock:
            name = project.index.names[key]
            label, mark = project.lists.marked(key)
            facts = {"id": key, "name": printable(name), "label": label, "mark": mark}
            return JSONResponse(facts | {"why": self.why(printable(name))}, headers=FRESH)

    def why(self, name: str) -> dict[str, Any] | None:
        """The stored examples that made the pseudo label of an image; None if there is no explanation."""
        result, index = self.project.rounds.result, self.project.index
        if result is None or name not in result.position or not result.why:
            return None
        row, why, classes = result.position[name], result.why, self.project.lists.model_classes()
        parts = zip(*(why[key][row] for key in ("source", "share", "held", "given")), strict=True)
        examples = [
            {
                "id": index.shown.get(result.names[source]) if source >= 0 else None,
                "share": round(float(share), 4),
                "class": classes[held],
                "given": bool(given),
            }
            for source, share, held, given in parts
        ]
        shares = {
            title: {classes[k]: round(float(values[row, k]), 4) for k in values[row].argsort()[::-1][:4]}
            for title, values in (("model", result.probs), ("neighbours", why["refined"]), ("votes", why["votes"]))
        }
        return {"examples": examples, "shares": shares, "consensus": round(float(result.consensus[row]), 4)}

    # Changes ------------------------------------------------------------------------------------------------------

    def posted(self, change: Callable[[dict[str, Any]], object]) -> Callable[[Request], Any]:
        """Return an endpoint that makes a change and answers with the new state, also if it was refused."""

        async def endpoint(request: Request) -> Response:
            body = await read_json(request)
            since = body.get("version") if isinstance(body.get("version"), str) else None

            def answer() -> Response:
                try:
                    said, error, status = change(body), "", 200
                except AggMatchError as refusal:
                    said, error, status = None, str(refusal), status_of(refusal)
                return JSONResponse({**self.project.state(since), "said": said, "error": error}, status)

            return await run_in_threadpool(answer)

        return endpoint

    def event(self, body: dict[str, Any]) -> None:
        """Save a label or another event."""
        if body.get("event") == "undo":
            raise AggMatchError("An undo is not an event here. Send it to /api/undo.")
        self.project.add(body)

    def import_labels(self, body: dict[str, Any]) -> None:
        """Take over labels that are in the folder."""
        self.project.import_labels()

    def train(self, body: dict[str, Any]) -> None:
        """Begin to train; new files of the folder take part."""
        with self.project.lock:
            self.project.index.scan()
            self.project.train()

    def stop(self, body: dict[str, Any]) -> None:
        """Stop training."""
        with self.project.lock:
            self.project.rounds.stop()

    def every(self, body: dict[str, Any]) -> None:
        """Change after how many new labels training begins by itself; 0 for never."""
        count = body.get("every")
        if not isinstance(count, int) or not 0 <= count <= 100_000:
            raise AggMatchError(f"The number of labels must be from 0 to 100,000, got {count!r}.")
        self.project.train_every = count

    def sort(self, body: dict[str, Any]) -> dict[str, object]:
        """Copy or link files into folders of classes."""
        return outputs.sort_files(self.project, str(body.get("what")), str(body.get("how")))

    def download(self, request: Request) -> Response:
        """A table, or the model."""
        name = request.path_params["name"]
        tables = {"labels.csv": outputs.labels_csv, "predictions.csv": outputs.predictions_csv}
        if name in tables:
            disposition = {"content-disposition": f'attachment; filename="{name}"', **FRESH}
            return Response(tables[name](self.project), media_type="text/csv; charset=utf-8", headers=disposition)
        if name == "model.onnx":
            return FileResponse(outputs.onnx_file(self.project), filename=name, headers=FRESH)
        raise HTTPException(404, "There is no such file.")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; raise `HTTPException` if it is too large or something else."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST:
            raise HTTPException(413, f"A request may have at most {LARGEST:,} bytes.")
    try:
        body = json.loads(data or b"{}")
    except ValueError:
        raise HTTPException(400, "The request is not JSON.") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "The request must be a JSON object.")
    return body
