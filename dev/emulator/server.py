"""Serves the metrics of all emulated pods, each under its own path, and takes faults on request."""

from __future__ import annotations

import json

from aiohttp import web

from dev.emulator.config import faults_of
from dev.emulator.emulation import Emulation

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def application(emulation: Emulation, namespace: str) -> web.Application:
    """The routes: ``/pods/<namespace>/<pod>/metrics``, ``/state``, ``/faults``."""

    async def metrics(request: web.Request) -> web.Response:
        page = emulation.page(request.match_info["pod"]) if request.match_info["namespace"] == namespace else None
        if page is None:
            # Nothing listens in a pod that is not ready; Prometheus sees a failed scrape either way.
            return web.Response(status=503, text="this pod does not answer\n")
        return web.Response(body=page, headers={"Content-Type": TEXT})

    async def state(_request: web.Request) -> web.Response:
        return web.json_response(emulation.state())

    async def faults(request: web.Request) -> web.Response:
        try:
            emulation.faults = faults_of(await request.json(), emulation.faults)
        except (ValueError, TypeError, json.JSONDecodeError) as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.json_response(emulation.state()["faults"])

    app = web.Application()
    app.router.add_get("/pods/{namespace}/{pod}/metrics", metrics)
    app.router.add_get("/state", state)
    app.router.add_post("/faults", faults)
    return app
