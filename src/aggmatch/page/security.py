"""Who may use the page: the browser on this machine, or somebody who has the link with the token."""

import hmac
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
COOKIE = "aggmatch-token"
HEADER = "x-token"
SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def own_address() -> str:
    """Return the address of this machine in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that no machine has: only the route is looked up
        except OSError:  # no network
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@dataclass(frozen=True)
class Access:
    """What a request must have.

    host: the address that the server listens on. On this machine alone, a request must be for a local name, so that no
    other site can read the page through a name that it controls. On other addresses every request needs the token.
    """

    host: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOCAL

    def link(self, port: int) -> str:
        """Return the address to open in a browser."""
        host = own_address() if self.host in EVERYWHERE else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{port}/" + ("" if self.local else f"?token={self.token}")

    def matches(self, offered: str | None) -> bool:
        """Whether a text is the token."""
        return offered is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def refusal(self, request: HTTPConnection, method: str) -> str:
        """Return why a request is refused; empty if it is not."""
        host, origin = (request.headers.get(name, "") for name in ("host", "origin"))
        if self.local and parts_of(f"//{host}").hostname not in LOCAL:
            return f"This server answers to local names only, not to '{host}'."
        offered = [request.cookies.get(COOKIE), request.query_params.get("token"), request.headers.get(HEADER)]
        if not self.local and not any(map(self.matches, offered)):
            return "The link needs its token. Use the address that the command printed."
        if method not in SAFE:
            if parts_of(origin).netloc != host or not host:
                return "Requests of other sites are refused."
            if not self.matches(request.headers.get(HEADER)):
                return "The token of the page is not valid any more. Reload the page."
        return ""


def parts_of(address: str) -> SplitResult:
    """Return the parts of an address; empty ones if it is not valid."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class Guard:
    """Middleware that refuses requests without access, and adds headers that forbid foreign content."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        if why := self.access.refusal(request, scope["method"]):
            response: Response = JSONResponse({"error": why}, 403)
            await response(scope, receive, with_headers(send, []))
            return
        more = []
        if not self.access.local and self.access.matches(request.query_params.get("token")):
            cookie = f"{COOKIE}={self.access.token}; Path=/; HttpOnly; SameSite=Strict"
            more = [(b"set-cookie", cookie.encode())]
        await self.app(scope, receive, with_headers(send, more))


def with_headers(send: Send, more: Sequence[tuple[bytes, bytes]]) -> Send:
    """Return a function that sends a response with the headers of every response."""
    always = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def forward(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *always, *more]}  # type: ignore[misc]
        await send(message)

    return forward  # type: ignore[return-value]
