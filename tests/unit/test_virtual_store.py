"""The virtual API server against facts of the real one: versions, conflicts, server-side apply, watches, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from dev.virtual.clock import VirtualClock
from dev.virtual.cluster import NAMESPACE, Passage, VirtualCluster
from dev.virtual.jobs import job
from dev.virtual.store import Store, merged
from rljob_operator.cluster import CONFIG_MAPS, PODS, RLJOBS, ClusterError

Json = dict[str, Any]


def config_map(name: str = "one", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def store() -> Store:
    return VirtualCluster().store


def test_each_write_makes_a_new_version_and_one_that_changes_nothing_makes_none() -> None:
    s = store()
    first = s.create("configmaps", config_map(a="1"))
    same = s.merge("configmaps", NAMESPACE, "one", {"data": {"a": "1"}})
    changed = s.merge("configmaps", NAMESPACE, "one", {"data": {"a": "2"}})
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert int(changed["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert first["data"] == {"a": "1"}  # what was read stays what it was


@pytest.mark.parametrize("stale", [{"resourceVersion": "1"}, {"uid": "another"}])
def test_a_precondition_that_does_not_hold_is_a_conflict(stale: Json) -> None:
    s = store()
    s.create("configmaps", config_map(a="1"))
    with pytest.raises(ClusterError) as caught:
        s.merge("configmaps", NAMESPACE, "one", {"metadata": stale, "data": {"a": "2"}})
    assert caught.value.conflict
    assert s.get("configmaps", NAMESPACE, "one")["data"] == {"a": "1"}  # type: ignore[index]


def test_a_merge_patch_follows_the_rfc() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": None, "e": 3}, "d": [3]}) == {
        "a": {"c": 2, "e": 3},
        "d": [3],
    }


def test_a_status_is_written_apart_and_only_over_the_version_that_was_read() -> None:
    cluster = VirtualCluster()
    cluster.create_job(job())
    api = cluster.connect()

    async def write() -> Json:
        raw = await api.get(RLJOBS, NAMESPACE, "run")
        assert raw is not None
        told = {**raw, "spec": {"gpus": 1}, "status": {"phase": "Pending"}}
        written = await api.put_status(RLJOBS, NAMESPACE, "run", told)
        with pytest.raises(ClusterError, match="has been modified"):
            await api.put_status(RLJOBS, NAMESPACE, "run", told)
        return written

    written = cluster.clock.run(write())
    assert written["status"] == {"phase": "Pending"}
    assert written["spec"]["gpus"] == 16
    assert written["metadata"]["generation"] == 1
    cluster.edit_job("run", {"gpus": 24})
    assert cluster.job("run")["metadata"]["generation"] == 2  # type: ignore[index]


def test_an_apply_keeps_the_fields_of_others_and_removes_its_own_that_it_no_longer_states() -> None:
    s = store()
    s.apply("configmaps", config_map(a="1", b="2"), "operator")
    s.merge("configmaps", NAMESPACE, "one", {"data": {"c": "theirs"}, "metadata": {"labels": {"theirs": "yes"}}})
    applied = s.apply("configmaps", config_map(a="3"), "operator")
    assert applied["data"] == {"a": "3", "c": "theirs"}
    assert applied["metadata"]["labels"] == {"theirs": "yes"}


def test_an_apply_merges_containers_by_name() -> None:
    def deployment(image: str) -> Json:
        template = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "main", "image": image}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": {}}, "template": template}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", "namespace": NAMESPACE},
            "spec": spec,
        }

    s = store()
    first = s.apply("deployments", deployment("one"), "operator")
    containers = [*first["spec"]["template"]["spec"]["containers"], {"name": "sidecar", "image": "theirs"}]
    s.merge("deployments", NAMESPACE, "d", {"spec": {"template": {"spec": {"containers": containers}}}})
    applied = s.apply("deployments", deployment("two"), "operator")
    assert [c["image"] for c in applied["spec"]["template"]["spec"]["containers"]] == ["two", "theirs"]


def test_an_apply_of_a_client_creates_or_changes_the_version_that_it_names() -> None:
    cluster = VirtualCluster()
    api = cluster.connect()

    async def write() -> None:
        created = await api.apply(config_map(a="1"))
        with pytest.raises(ClusterError) as there:
            await api.apply(config_map(a="2"))
        assert there.value.conflict
        meta = {**config_map()["metadata"], "uid": created["metadata"]["uid"]}
        meta["resourceVersion"] = created["metadata"]["resourceVersion"]
        changed = await api.apply({**config_map(a="2"), "metadata": meta})
        assert changed["data"] == {"a": "2"}
        await api.delete(CONFIG_MAPS, NAMESPACE, "one")
        with pytest.raises(ClusterError) as gone:
            await api.apply({**config_map(a="3"), "metadata": meta})
        assert gone.value.conflict

    cluster.clock.run(write())
    assert cluster.store.get("configmaps", NAMESPACE, "one") is None


def test_two_controllers_own_nothing_together_and_a_selector_never_changes() -> None:
    def deployment(owner: str, selected: str) -> Json:
        meta = {"name": "d", "namespace": NAMESPACE, "ownerReferences": [{"uid": owner, "controller": True}]}
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": {"a": selected}},
            "template": {"metadata": {"labels": {}}, "spec": {}},
        }
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}

    s = store()
    s.apply("deployments", deployment("one", "x"), "operator")
    with pytest.raises(ClusterError, match="Controller set to true"):
        s.apply("deployments", deployment("other", "x"), "somebody")
    with pytest.raises(ClusterError, match="field is immutable"):
        s.apply("deployments", deployment("one", "y"), "operator")


def test_gates_of_a_pod_can_be_taken_off_and_not_put_on_and_the_rest_of_it_is_fixed() -> None:
    s = store()
    spec = {"containers": [{"name": "main", "image": "one"}], "schedulingGates": [{"name": "a"}]}
    s.create("pods", {"metadata": {"name": "p", "namespace": NAMESPACE}, "spec": spec, "status": {}})
    with pytest.raises(ClusterError, match="only deletion is allowed"):
        s.merge("pods", NAMESPACE, "p", {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]}})
    with pytest.raises(ClusterError, match="may not change"):
        s.merge("pods", NAMESPACE, "p", {"spec": {"containers": []}})
    narrowed = s.merge("pods", NAMESPACE, "p", {"spec": {"schedulingGates": [], "nodeSelector": {"pool": "a"}}})
    assert narrowed["spec"]["schedulingGates"] == []
    with pytest.raises(ClusterError, match="may not change"):
        s.merge("pods", NAMESPACE, "p", {"spec": {"nodeSelector": {"pool": "a", "zone": "b"}}})


def test_a_watch_sees_every_change_once_and_in_order() -> None:
    s = store()
    seen: list[tuple[str, str]] = []
    s.watch(lambda event, plural, obj: seen.append((event, obj["metadata"]["resourceVersion"])))
    s.create("configmaps", config_map())
    s.merge("configmaps", NAMESPACE, "one", {"data": {"a": "1"}})
    s.merge("configmaps", NAMESPACE, "one", {"data": {"a": "1"}})
    s.delete("configmaps", NAMESPACE, "one")
    assert [event for event, _ in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert [version for _, version in seen] == sorted((version for _, version in seen), key=int)


def test_requests_may_be_refused_done_and_unanswered_or_done_late() -> None:
    lost = ClusterError(0, "Unreachable", "no answer")
    passages = {
        "refused": Passage(error=ClusterError(429, "TooManyRequests", "later"), done=False),
        "unanswered": Passage(error=lost),
        "late": Passage(error=lost, late_s=20.0),
    }
    cluster = VirtualCluster()
    api = cluster.connect(passages=lambda verb, plural, name: passages[name])

    def there(name: str) -> bool:
        return cluster.store.get("configmaps", NAMESPACE, name) is not None

    async def write() -> None:
        for name in passages:
            with pytest.raises(ClusterError):
                await api.create(CONFIG_MAPS, NAMESPACE, config_map(name))

    cluster.clock.run(write())
    assert [there(name) for name in passages] == [False, True, False]
    cluster.clock.run_for(21.0)
    assert there("late")


def test_what_a_dead_client_sent_may_arrive_and_nothing_more_is_sent() -> None:
    cluster = VirtualCluster()
    api = cluster.connect(passages=lambda verb, plural, name: Passage(before_s=5.0, survives=name == "kept"))

    async def write(name: str) -> None:
        await api.create(CONFIG_MAPS, NAMESPACE, config_map(name))

    tasks = [cluster.clock.spawn(write(name)) for name in ("kept", "lost")]
    cluster.clock.run_for(1.0)
    api.closed = True
    for task in tasks:
        task.cancel()
    tasks.append(cluster.clock.spawn(write("never")))
    cluster.clock.run_for(60.0)
    assert [obj["metadata"]["name"] for obj in cluster.store.all("configmaps")] == ["kept"]


def test_lists_select_by_labels() -> None:
    cluster = VirtualCluster()
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "1", "y": "2"}), ("c", {})):
        spec: Json = {"containers": []}
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
        cluster.store.create("pods", {"metadata": meta, "spec": spec, "status": {}})
    found = cluster.clock.run(cluster.connect().list(PODS, NAMESPACE, "x=1,y=2"))
    assert [pod["metadata"]["name"] for pod in found] == ["b"]


def test_the_clock_jumps_from_event_to_event_in_their_order() -> None:
    clock = VirtualClock(start_s=100.0)
    seen: list[tuple[float, str]] = []
    clock.after(10.0, lambda: seen.append((clock.now_s, "late")))
    clock.after(5.0, lambda: seen.append((clock.now_s, "first")))
    clock.after(5.0, lambda: seen.append((clock.now_s, "second")))
    clock.after(3.0, lambda: seen.append((clock.now_s, "never"))).cancel()
    clock.run_until(108.0)
    assert seen == [(105.0, "first"), (105.0, "second")]
    assert clock.now_s == 108.0


def test_what_an_event_raises_ends_the_run() -> None:
    clock = VirtualClock()

    async def fails() -> None:
        await clock.pause(1.0)
        raise ValueError("a mistake of the model")

    clock.spawn(fails())
    with pytest.raises(ValueError, match="a mistake of the model"):
        clock.run_for(2.0)


def test_a_run_that_never_waits_is_found() -> None:
    clock = VirtualClock()

    def again() -> None:
        clock.call_soon(again)

    again()
    with pytest.raises(RuntimeError, match="never waits"):
        clock.run_for(1.0)
