"""Stands in for Prometheus in the scale benchmark: answers about every job as about one that runs steadily.

Ten thousand exporters and a Prometheus that scrapes them would be another benchmark. What the operator spends on reading, deciding and
reporting is the same whoever answers; so each job gets answers of the form and the size that Prometheus would give, from the pods that
it has at that moment. The number of requests is counted.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

PERIOD_S = 25.0
RUNNING = 8
"""Samples that run on a sampler at a time."""
SAMPLES_PER_STEP = 512
MEAN_TOKENS = 2000.0
EDGES = (250, 500, 1000, 2000, 4000, 8000, 16384)
SHARES = (0.05, 0.18, 0.42, 0.68, 0.88, 0.97, 1.0)
"""Shares of responses up to each of the ``EDGES``."""

Pods = Callable[[str], tuple[Sequence[str], Sequence[str]]]
"""Sampler and trainer pods of the job with a uid."""


class SteadyMetrics:
    """A server with the query API of Prometheus."""

    def __init__(self, pods: Pods) -> None:
        """Listens at a free port; ``pods`` names a job's pods."""
        self._pods = pods
        self._began = time.time()
        self.asked = 0
        """Questions that were answered."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(urllib.parse.urlsplit(self.path).query)

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, form: str) -> None:
                fields = urllib.parse.parse_qs(form)
                body = json.dumps(outer.answer(fields["query"][0], float(fields["time"][0]))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: a line a request says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, promql: str, at: float) -> Json:
        """What Prometheus would say."""
        self.asked += 1
        found = re.search(r'rljob_dev_uid="([^"]+)"', promql)
        assert found is not None
        samplers, trainers = self._pods(found[1])
        if promql.startswith("{__name__"):
            return _matrix([(labels, [(at - 2.0, value)]) for labels, value in self._now(samplers, trainers, at)])
        if promql.startswith("rljob_policy_version"):
            window = re.search(r"\[(\d+)ms\]", promql)
            assert window is not None
            times = range(int(at - int(window[1]) / 1000), int(at), 15)
            return _matrix([({"pod": trainers[0]}, [(t, self._version(t)) for t in times])] if trainers else [])
        rows = self._computed(promql, samplers) if trainers else []
        vector = [{"metric": labels, "value": [at, repr(value)]} for labels, value in rows]
        return {"status": "success", "data": {"resultType": "vector", "result": vector}}

    def _version(self, at: float) -> int:
        return int((at - self._began) / PERIOD_S)

    def _now(self, samplers: Sequence[str], trainers: Sequence[str], at: float) -> list[tuple[Json, float]]:
        rows: list[tuple[Json, float]] = []
        version = self._version(at)
        for name, value in (
            ("rljob_policy_version", version),
            ("rljob_queue_depth_groups", 20.0 + random.randint(0, 8)),
            ("rljob_inflight_samples", float(RUNNING * len(samplers))),
            ("rljob_sample_staleness_versions_count", version * SAMPLES_PER_STEP),
            ("rljob_sample_staleness_max_versions", 4.0),
            ("rljob_train_step_seconds_count", version),
            ("rljob_trainer_wait_seconds_total", 4.0 * version),
            ("rljob_weight_sync_seconds_count", version),
            ("rljob_trained_samples_total", version * SAMPLES_PER_STEP),
            ("rljob_trained_tokens_total", version * SAMPLES_PER_STEP * MEAN_TOKENS),
            ("rljob_response_tokens_count", version * SAMPLES_PER_STEP),
        ):
            rows += [({"__name__": name, "pod": pod}, float(value)) for pod in trainers[:1]]
        rows += [({"__name__": "rljob_layout_generation", "pod": pod}, 2.0) for pod in trainers]
        for pod in samplers:
            labels = {"pod": pod, "engine": "0"}
            for name, value in (
                ("vllm:num_requests_running", float(RUNNING)),
                ("vllm:num_requests_waiting", 0.0),
                ("vllm:kv_cache_usage_perc", 0.3),
                ("vllm:inter_token_latency_seconds_count", 1000.0 * (at - self._began)),
                ("vllm:generation_tokens_total", 1000.0 * (at - self._began)),
            ):
                rows.append(({"__name__": name, **labels}, value))
        return rows

    def _computed(self, promql: str, samplers: Sequence[str]) -> list[tuple[Json, float]]:
        found = re.search(r"increase\([^\[]*\[(\d+)ms\]", promql)
        rows: list[tuple[Json, float]] = []
        config = {"kv_cache_size_tokens": "400000", "num_gpu_blocks": "25000", "block_size": "16", "engine": "0"}
        rows += [({"rljob_reading": "kv_tokens", "pod": pod, **config}, 1.0) for pod in samplers]
        if found is None:
            return rows
        noise = random.uniform(0.97, 1.03)
        steps = int(found[1]) / 1000 / PERIOD_S
        samples = steps * SAMPLES_PER_STEP
        for key, count, mean in (
            ("staleness", samples, 2.0 * noise),
            ("train_step", steps, 20.0 * noise),
            ("weight_sync", steps, 1.0),
            ("response", samples, MEAN_TOKENS * noise),
            ("early", samples / 2, MEAN_TOKENS * noise),
            ("late", samples / 2, MEAN_TOKENS),
        ):
            rows.append(({"rljob_reading": f"{key}_sum"}, count * mean))
            rows.append(({"rljob_reading": f"{key}_count"}, count))
        for key, value in (
            ("staleness_max", 4.0),
            ("wait", 4.0 * steps),
            ("samples", samples),
            ("tokens", samples * MEAN_TOKENS * noise),
        ):
            rows.append(({"rljob_reading": key}, value))
        for edge, share in (*zip(EDGES, SHARES, strict=True), ("+Inf", 1.0)):
            rows.append(({"rljob_reading": "response_bucket", "le": str(edge)}, share * samples))
        for edge, share in ((1, 0.3), (2, 0.7), (3, 0.9), (4, 1.0), ("+Inf", 1.0)):
            rows.append(({"rljob_reading": "staleness_bucket", "le": str(edge)}, share * samples))
        for pod in samplers:
            for key, value in (
                ("running_mean", float(RUNNING)),
                ("kv_usage_mean", 0.3),
                ("latency_sum", float(RUNNING)),
                ("latency_count", RUNNING / 0.008 * noise),
                ("generated", RUNNING / 0.008 * noise),
            ):
                rows.append(({"rljob_reading": key, "pod": pod}, value))
        return rows


def _matrix(rows: list[tuple[Json, list[tuple[float, float]]]]) -> Json:
    result = [{"metric": labels, "values": [[t, repr(v)] for t, v in points]} for labels, points in rows]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}
