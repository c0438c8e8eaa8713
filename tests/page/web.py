"""Requests to an application without a network."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from starlette.applications import Starlette


class Web:
    """Sends requests to an application, in the order of calls; `together` sends several at once."""

    def __init__(self, app: Starlette, base: str, headers: dict[str, str] | None = None) -> None:
        self.app, self.base, self.headers = app, base, headers or {}
        self.cookies = httpx.Cookies()

    def get(self, address: str, **options: Any) -> httpx.Response:
        """GET an address."""
        return self.together([("GET", address, options)])[0]

    def post(self, address: str, **options: Any) -> httpx.Response:
        """POST to an address."""
        return self.together([("POST", address, options)])[0]

    def together(self, requests: Sequence[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        """Send requests at the same time, while the application runs; return the answers."""

        async def send() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app)
            client = httpx.AsyncClient(
                transport=transport, base_url=self.base, headers=self.headers, cookies=self.cookies
            )
            async with self.app.router.lifespan_context(self.app), client:
                sent = (client.request(method, address, **options) for method, address, options in requests)
                answers = await asyncio.gather(*sent)
                self.cookies = client.cookies
                return list(answers)

        return asyncio.run(send())
