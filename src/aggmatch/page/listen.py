"""Runs an application on a port of this machine until Ctrl-C."""

import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from aggmatch.errors import AggMatchError

PORT, TRIED = 8765, 20
"""The usual port, and how many are tried from there on."""


def listen(app: ASGIApp, host: str, port: int | None, ready: Callable[[int], None], *, usual: int = PORT) -> None:
    """Run an application until SIGINT or SIGTERM.

    port: 0 for any; None for the usual one or the next that is free. ready: called with the port once it is open.
    """
    found = bind(host, [port] if port is not None else range(usual, usual + TRIED))
    with found:
        ready(found.getsockname()[1])
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[found])


def bind(host: str, ports: "range | list[int]") -> socket.socket:
    """Return a socket on the first free port; raise `AggMatchError` if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem = ""
    for port in ports:
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that answers are sent at once
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError as error:
            found.close()
            problem = error.strerror or str(error)
            continue
        found.listen(128)
        return found
    raise AggMatchError(f"Cannot listen on {host}, port {ports[0]}: {problem}. Choose another --port or --host.")


def gone(request: Request, error: Exception) -> Response:
    """Return the response to a client that disconnected while it sent its request, which is no error to log."""
    return Response(status_code=400)


def open_browser(link: str) -> None:
    """Open a page in the user's browser, if this machine has a screen."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        with suppress(webbrowser.Error):
            webbrowser.open(link)
