"""The OpenAPI description of a served model."""

from collections.abc import Sequence
from typing import Any

from aggmatch import __version__

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
IMAGE = {"type": "string", "format": "binary"}
REFUSALS = {
    "400": "There is no image in the request.",
    "413": "The request is too large or has too many images.",
    "422": "None of the files is an image.",
    "503": "Too many images are waiting.",
}


def record(**fields: Any) -> dict[str, Any]:
    """Return the schema of an object that has all these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


ERROR = record(error=TEXT)
HEALTH = record(status={"const": "ok"}, engine={"enum": ["onnx", "torch"]}, predicted=NUMBER, version=TEXT)


def describe(classes: Sequence[str], most_images: int, most_bytes: int) -> dict[str, Any]:
    """Return the description of the service as an OpenAPI 3.1 document.

    classes: of the model. most_images, most_bytes: limits of one request.
    """
    share = {"type": "number", "minimum": 0, "maximum": 1}
    name = {"type": ["string", "null"], "description": "Its name, if the request has one."}
    known = {
        "class": {"enum": list(classes)},
        "probability": share,
        "probabilities": record(**dict.fromkeys(classes, share)),
    }
    failed = {"type": "string", "description": "Why the file is not an image."}
    answer = record(predictions=listed({"oneOf": [record(file=name, **known), record(file=name, error=failed)]}))
    form = record(files=listed(IMAGE) | {"maxItems": most_images})
    names = record(classes=listed(TEXT))
    return {
        "openapi": "3.1.0",
        "info": {"title": "aggmatch serve", "version": __version__},
        "paths": {
            "/predict": {
                "post": {
                    "summary": "Predict the classes of one or several images",
                    "description": f"At most {most_images} images and {most_bytes:,} bytes.",
                    "requestBody": {
                        "required": True,
                        "content": {
                            "multipart/form-data": {"schema": form},
                            "image/*": {"schema": IMAGE},
                            "application/octet-stream": {"schema": IMAGE},
                        },
                    },
                    "responses": {"200": response("The class of each image.", answer)}
                    | {
                        status: response(text, answer if status == "422" else ERROR)
                        for status, text in REFUSALS.items()
                    },
                }
            },
            "/classes": {"get": {"summary": "The classes of the model", "responses": {"200": response("", names)}}},
            "/healthz": {"get": {"summary": "Whether the server works", "responses": {"200": response("", HEALTH)}}},
        },
    }


def listed(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the description of one answer."""
    return {"description": description or "The answer.", "content": {"application/json": {"schema": schema}}}
