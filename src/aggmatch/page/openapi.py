"""The OpenAPI description of a served model."""

from collections.abc import Sequence
from typing import Any

from aggmatch import __version__

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
IMAGE = {"type": "string", "format": "binary"}
REFUSALS = {
    "400": "There is no image in the request.",
    "413": "The request is too large or has too many images.",
    "422": "None of the files is an image.",
    "503": "Too many images are waiting.",
}


def describe(classes: Sequence[str], most_images: int, most_bytes: int) -> dict[str, Any]:
    """Return the description of the service as an OpenAPI 3.1 document.

    classes: of the model. most_images, most_bytes: limits of one request.
    """
    share = {"type": "number", "minimum": 0, "maximum": 1}
    prediction = {
        "type": "object",
        "properties": {
            "file": {"type": ["string", "null"]},
            "class": {"enum": list(classes)},
            "probability": share,
            "probabilities": {"type": "object", "additionalProperties": share},
            "error": {"type": "string", "description": "Why the file is not an image; the other fields are missing."},
        },
    }
    answer = {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}
    form = {"type": "object", "properties": {"files": {"type": "array", "items": IMAGE, "maxItems": most_images}}}
    listed = {"type": "object", "properties": {"classes": {"type": "array", "items": {"type": "string"}}}}
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
            "/classes": {"get": {"summary": "The classes of the model", "responses": {"200": response("", listed)}}},
            "/healthz": {
                "get": {"summary": "Whether the server works", "responses": {"200": response("", {"type": "object"})}}
            },
        },
    }


def response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the description of one answer."""
    return {"description": description or "The answer.", "content": {"application/json": {"schema": schema}}}
