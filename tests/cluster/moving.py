"""What the tests of moves share: a job whose moves are made by editing its budget, and quick looks at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dev.controlplane import ApiError
from dev.controlplane.rest import MERGE_PATCH
from tests.cluster.jobs import job
from tests.cluster.rig import Rig, eventually

Json = dict[str, Any]

DELAYS = {"dev.rljob.dev/start-delay": "1s", "dev.rljob.dev/stop-delay": "3s"}


def budget_job(namespace: str, **spec: Any) -> Json:
    """A job of 16 GPUs, twelve of them samplers, whose budget alone makes it move: no metric of it is ever read."""
    return job(
        namespace,
        **{
            "sampler": {"drainTimeout": "8s", "template": {"metadata": {"annotations": DELAYS}}},
            "trainer": {"minReplicas": 1, "maxReplicas": 1},
            **spec,
        },
    )


def read(rig: Rig, path: str) -> Json | None:
    """An object by its path; None if it is not there. A process of kubectl for each look would miss a phase."""
    try:
        return rig.plane.api.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def status(rig: Rig) -> Json:
    """The status of the job."""
    found = read(rig, f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job")
    return {} if found is None else dict(found.get("status") or {})


def edit(rig: Rig, **spec: Any) -> None:
    """Edits the job's spec."""
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job"
    rig.plane.api.request("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)


def pods(rig: Rig, role: str | None = None) -> list[Json]:
    """The job's pods."""
    selector = "rljob.dev/name%3Djob" + ("" if role is None else f",rljob.dev/role%3D{role}")
    found = read(rig, f"/api/v1/namespaces/{rig.namespace}/pods?labelSelector={selector}")
    return [] if found is None else list(found["items"])


def staying(rig: Rig, role: str) -> set[str]:
    """Names of the pods of a role that nobody deletes."""
    return {p["metadata"]["name"] for p in pods(rig, role) if not p["metadata"].get("deletionTimestamp")}


def delete(rig: Rig, name: str) -> None:
    """Deletes a pod."""
    rig.plane.api.request("DELETE", f"/api/v1/namespaces/{rig.namespace}/pods/{name}")


def evict(rig: Rig, name: str) -> None:
    """Evicts a pod through the API, as a drain of its node does."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": rig.namespace},
    }
    rig.plane.api.request("POST", f"/api/v1/namespaces/{rig.namespace}/pods/{name}/eviction", body)


def annotate(rig: Rig, name: str, **annotations: str | None) -> None:
    """Annotates a pod with keys under ``dev.rljob.dev/``, dashes as underscores; None takes one off."""
    keys = {f"dev.rljob.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{name}"
    rig.plane.api.request("PATCH", path, {"metadata": {"annotations": keys}}, content_type=MERGE_PATCH)


def codes(rig: Rig) -> list[str]:
    """The codes of the last decisions."""
    return [d["code"] for d in status(rig).get("decisions", ())]


def replicas(split: Json) -> tuple[int, int]:
    """Samplers and trainers of a split."""
    return split["samplers"]["replicas"], split["trainers"]["replicas"]


def condition(rig: Rig, kind: str) -> Json:
    """A condition of the job; empty if it is not there."""
    return next((c for c in status(rig).get("conditions", ()) if c["type"] == kind), {})


def said(rig: Rig, reason: str, words: str = "") -> Callable[[], list[str]]:
    """Asks for the messages of the job's events for a reason that hold ``words``."""
    return lambda: [
        e["message"]
        for e in (read(rig, f"/api/v1/namespaces/{rig.namespace}/events") or {"items": []})["items"]
        if e["reason"] == reason and words in e["message"]
    ]


def until(rig: Rig, holds: Callable[[], Any], what: str, *, timeout_s: float = 120.0) -> Any:
    """Waits for something, and shows the job if it does not come."""
    try:
        return eventually(holds, what, timeout_s=timeout_s, every_s=0.05)
    except AssertionError as error:
        found = status(rig)
        shown = {key: found.get(key) for key in ("phase", "rebalance", "split", "conditions", "decisions")}
        raise AssertionError(f"{error}\n{json.dumps(shown)[:3000]}") from error


def wait_move(rig: Rig, phase: str, *, timeout_s: float = 120.0) -> Json:
    """Waits for a move in a phase and returns it."""

    def under_way() -> Json | None:
        move = status(rig).get("rebalance")
        return move if move and move["phase"] == phase else None

    return dict(until(rig, under_way, f"a move in {phase}", timeout_s=timeout_s))


def settled(rig: Rig, samplers: int, trainers: int, *, timeout_s: float = 150.0) -> Json:
    """Waits until no move is under way, the job is ready and exactly these pods are there; returns the status."""

    def rests() -> Json | None:
        found = status(rig)
        ready = {c["type"]: c["status"] for c in found.get("conditions", ())}.get("Ready") == "True"
        living = [
            p for p in pods(rig) if p["status"].get("phase") != "Failed" or p["metadata"].get("deletionTimestamp")
        ]
        count = tuple(
            sum(p["metadata"]["labels"]["rljob.dev/role"] == r for p in living) for r in ("sampler", "trainer")
        )
        rests = found.get("rebalance") is None and ready and count == (samplers, trainers)
        return found if rests and replicas(found["split"]) == count else None

    return dict(until(rig, rests, f"{samplers} samplers, {trainers} trainers and no move", timeout_s=timeout_s))
