"""What is seen of the cluster: kept small, followed through every break, and told to those whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import kopf
import pytest

from rljob_operator import kept
from rljob_operator.cluster import PODS, ClusterError, Resource
from rljob_operator.config import Config
from rljob_operator.fleet import view as pod_view
from rljob_operator.promises import Promises
from rljob_operator.reflector import Reflector, Store
from rljob_operator.stateless import NoEssence, NoProgress
from rljob_operator.tasks import JobTask, Memo
from rljob_operator.together import AT_ONCE, together
from rljob_operator.view import View
from rljob_operator.watches import Pods
from tests.operator.objects import UID, job_dict, node, pod

Json = dict[str, Any]


@dataclass
class History:
    """An API server that answers lists by page and ends each watch after what it was given for it."""

    pages: list[Json]
    watches: list[list[Json] | ClusterError]
    asked: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def page(self, resource: Resource, namespace: str | None, limit: int, token: str) -> Json:
        self.asked.append(f"list {token}".strip())
        return self.pages.pop(0)

    async def follow(self, resource: Resource, namespace: str | None, version: str) -> AsyncIterator[Json]:
        self.asked.append(f"watch {version}")
        if not self.watches:
            self.over.set()
            await asyncio.Event().wait()
        answer = self.watches.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        for event in answer:
            yield event


def listed(version: str, *pods: Json, token: str = "") -> Json:
    return {"metadata": {"resourceVersion": version, **({"continue": token} if token else {})}, "items": list(pods)}


def event(kind: str, version: str, obj: Json) -> Json:
    return {"type": kind, "object": {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}}


async def follow(history: History) -> tuple[Store, list[tuple[str, str]]]:
    told: list[tuple[str, str]] = []
    store = Store(lambda p: str((p["metadata"].get("labels") or {}).get("rljob.dev/uid", "")), kept.pod)
    reflector = Reflector(history, PODS, None, store, lambda kind, p: told.append((kind, p["metadata"]["name"])))
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(history.over.wait(), 10)
    assert reflector.synced.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return store, told


def names(store: Store) -> set[str]:
    return {p["metadata"]["name"] for row in store.values() for p in row}


async def test_a_list_in_pages_and_a_watch_that_goes_on_where_it_ended() -> None:
    history = History(
        pages=[listed("10", pod("a", uid=UID), token="more"), listed("10", pod("b"))],
        watches=[
            [event("ADDED", "11", pod("c", uid=UID)), event("DELETED", "12", pod("b"))],
            [event("BOOKMARK", "20", {"metadata": {}}), event("MODIFIED", "21", pod("a", uid=UID, node="n1"))],
        ],
    )
    store, told = await follow(history)
    assert history.asked == ["list", "list more", "watch 10", "watch 12", "watch 21"]
    assert names(store) == {"a", "c"}
    assert {p["metadata"]["name"]: p["spec"].get("nodeName") for p in store.get(UID)} == {"a": "n1", "c": None}
    assert store.get("") is None
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "b"), ("MODIFIED", "a")]


@pytest.mark.parametrize("at_once", [True, False])
async def test_where_the_history_is_gone_all_is_listed_anew_and_what_is_missing_is_gone(at_once: bool) -> None:
    expired = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    history = History(
        pages=[listed("10", pod("a"), pod("b")), listed("30", pod("b"), pod("c"))],
        watches=[ClusterError(410, "Expired", "too old") if at_once else [expired]],
    )
    store, told = await follow(history)
    assert history.asked == ["list", "watch 10", "list", "watch 30"]
    assert names(store) == {"b", "c"}
    assert told[-1] == ("DELETED", "a")


async def test_an_api_server_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_operator.reflector.random.uniform", lambda low, high: 0.0)
    history = History(
        pages=[listed("10")], watches=[ClusterError(0, "Unreachable", "no"), [event("ADDED", "11", pod("a"))]]
    )
    store, _ = await follow(history)
    assert history.asked == ["list", "watch 10", "watch 10", "watch 11"]
    assert names(store) == {"a"}


def test_a_pod_that_changes_its_job_is_found_under_the_new_one_alone() -> None:
    store = Store(lambda p: str((p["metadata"].get("labels") or {}).get("rljob.dev/uid", "")), kept.pod)
    store.put(pod("a", uid="one"))
    store.put(pod("a", uid="two"))
    assert store.get("one") is None
    assert len(store.get("two")) == 1
    assert store.places("rl") == {("rl", "a")}
    assert store.places("elsewhere") == set()


def test_equal_parts_of_pods_are_kept_once() -> None:
    first, second = kept.pod(pod("a", uid=UID)), kept.pod(pod("b", uid=UID))
    assert first["spec"]["containers"] is second["spec"]["containers"]
    assert first["metadata"]["labels"] is second["metadata"]["labels"]
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_of_a_pod_is_kept_what_is_read_of_it() -> None:
    whole = pod("a", 4, uid=UID, role="trainer", node="n1")
    whole["metadata"] |= {
        "managedFields": [{"manager": "kubelet"}],
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"rljob.dev/holder": "h", "network.example/status": "[]"},
    }
    whole["spec"]["containers"][0] |= {"image": "i", "env": [{"name": "A", "value": "b"}]}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    bound = {**ready, "type": "PodScheduled"}
    waiting = {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "long"}}, "image": "i"}
    whole["status"] |= {
        "conditions": [ready, bound, {"type": "Initialized"}],
        "containerStatuses": [waiting],
        "hostIP": "x",
    }
    found = kept.pod(whole)
    assert pod_view(found) == pod_view(whole)
    assert found["metadata"]["annotations"] == {"rljob.dev/holder": "h"}
    assert found["spec"]["containers"] == [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "4"}}}]
    assert found["status"]["conditions"] == [ready, {"type": "PodScheduled", "status": "True"}]
    assert found["status"]["containerStatuses"] == [{"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    other = kept.pod(pod("b", 4))
    assert "labels" not in other["metadata"]
    assert other["spec"]["containers"] == [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]


def test_of_a_node_is_kept_what_a_plan_asks() -> None:
    whole = node("n1", taints=("a:NoSchedule",), labels={"zone": "z"})
    whole["status"]["images"] = [{"names": ["i"]}]
    found = kept.node(whole)
    assert "images" not in found["status"]
    assert found["metadata"]["labels"]["zone"] == "z"
    assert found["spec"]["taints"] == whole["spec"]["taints"]
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_what_was_written_counts_until_the_view_has_caught_up() -> None:
    promises = Promises()
    old = job_dict()
    old["metadata"]["resourceVersion"] = "5"
    assert promises.shown(old) is old
    promises.sent({**old, "status": {"split": {"a": 1}}})
    assert promises.shown(old)["status"] == {"split": {"a": 1}}
    newer = {**old, "metadata": {**old["metadata"], "resourceVersion": "6"}, "status": {"split": {"b": 1}}}
    promises.answered(newer)
    assert promises.shown(old)["status"] == {"split": {"b": 1}}
    assert promises.shown(newer) is newer
    promises.sent(newer)
    assert promises.shown(newer)["status"] == {"split": {"b": 1}}
    latest = {**newer, "metadata": {**old["metadata"], "resourceVersion": "7"}, "status": {}}
    assert promises.shown(latest) is latest
    assert promises.shown(old) is old
    promises.sent(newer)
    promises.withdrawn(UID)
    assert promises.shown(old) is old


def test_all_pods_are_counted_once_for_as_long_as_none_changes() -> None:
    view = View(pods={"": [pod("a", 2, node="n1")]})
    assert view.census() is not view.census(), "nobody says when they change"
    view.pods_changed()
    first = view.census()
    assert view.census() is first
    view.pods_changed()
    assert view.census() is not first


async def test_an_event_wakes_whom_it_concerns() -> None:
    memo = Memo(Config())
    memo.jobs = {uid: JobTask("rl", uid, uid) for uid in ("u1", "u2", "waits")}
    memo.view.waiting = {"waits", "gone"}
    pods = Pods(History([], []), (), memo)

    def woken(kind: str, obj: Json) -> set[str]:
        for job in memo.jobs.values():
            job.wake.clear()
        pods._seen(kind, obj)
        if memo.freed is not None:
            memo.freed.cancel()
            memo._wake_waiting()
        return {uid for uid, job in memo.jobs.items() if job.wake.is_set()}

    assert woken("MODIFIED", pod("a", uid="u1", node="n1")) == {"u1"}
    assert woken("MODIFIED", pod("a", node="n1")) == set()
    assert woken("DELETED", pod("a", node="n1")) == {"waits"}
    assert woken("DELETED", pod("a", uid="u2", node="n1")) == {"u2", "waits"}
    assert woken("MODIFIED", pod("a", node="n1", phase="Succeeded")) == {"waits"}
    assert woken("DELETED", pod("a")) == set()


def test_kopf_compares_nothing_and_stores_nothing() -> None:
    essence = NoEssence()
    assert essence.fetch(body=kopf.Body({})) is None
    assert essence.build(body=kopf.Body({"spec": {"a": 1}}), extra_fields=None) == {}
    assert NoProgress().clear(essence={"a": 1}) == {"a": 1}


async def test_requests_of_a_pass_run_a_few_at_a_time() -> None:
    under_way = 0
    most = 0

    async def call(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return item * 2

    assert await together(call, range(30)) == [2 * i for i in range(30)]
    assert most == AT_ONCE
    assert await together(call, []) == []
    begun: list[int] = []

    async def fail(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        raise ClusterError(500, "x", str(item))

    with pytest.raises(ClusterError, match="0"):
        await together(fail, range(30))
    assert len(begun) == AT_ONCE
