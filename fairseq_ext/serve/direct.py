"""Requests for translations go to their routes at once (`Direct`), past FastAPI's own steps."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from fairseq_ext.serve.service import REFUSED, refusal

BUSY = ("/v1/translate", "/translate", "/v2/translate")


def busy_routes(app: FastAPI) -> dict[str, APIRoute]:
    """Return the busy routes of an application by path."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return {route.path: route for route in routes if route.path in BUSY}


class Direct:
    """An application whose busy routes are called at once: FastAPI's own way to them takes a sixth
    of the CPU time that this process has for a request.

    routes: by path; each takes POST alone, and what it returns is a response or becomes JSON.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, APIRoute]):
        self.app, self.routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self.routes.get(scope["path"]) if is_post else None
        if route is None:
            return await self.app(scope, receive, send)
        scope["route"] = route  # whose path is counted
        try:
            response = await route.endpoint(Request(scope, receive, send))
            if not isinstance(response, Response):
                response = JSONResponse(response)
        except REFUSED as error:
            response = refusal(error, scope["path"])
        await response(scope, receive, send)
