"""Another version of the operator rolls no pods, and still sees who edits a child. The versions here differ in what they add to templates."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from dev.virtual.store import merged
from rljob_operator import children, companions, upgrade
from rljob_operator.companions import companion_template
from rljob_operator.drift import APPLIED_ANNOTATION, workload_differs
from rljob_operator.template import pod_template
from rljob_operator.upgrade import DIGEST_ANNOTATION, RECORD_ANNOTATION, TEMPLATE_EPOCHS, change
from rljob_planner.api.spec import RLJob
from tests.chart.baseline.make import CHILDREN, jobs
from tests.operator.objects import SPLIT
from tests.operator.scene import Scene, scene, split

Json = dict[str, Any]

OWN = (DIGEST_ANNOTATION, RECORD_ANNOTATION)


@contextmanager
def version(word: str) -> Iterator[None]:
    """Another version of the operator: it adds a variable, a volume and a toleration of its own to all pods, and scales otherwise."""

    def adding(make: Callable[..., Json]) -> Callable[..., Json]:
        def made(*args: Any) -> Json:
            template = copy.deepcopy(make(*args))
            spec = template["spec"]
            for container in spec["containers"]:
                container["env"] = [{"name": "RLJOB_VERSION", "value": word}, *container["env"]]
            spec["volumes"] = [*spec.get("volumes", ()), {"name": f"rljob-{word}", "emptyDir": {}}]
            spec["tolerations"] = [*spec.get("tolerations", ()), {"key": word, "operator": "Exists"}]
            return template

        return made

    with (
        mock.patch.object(children, "pod_template", adding(pod_template)),
        mock.patch.object(companions, "companion_template", adding(companion_template)),
        mock.patch.object(children, "_PROGRESS_DEADLINE_S", 60 * len(word)),
    ):
        yield


def made(raw: Json, samplers: int = 3, trainers: int = 2) -> list[Json]:
    """The workloads of a job as this version makes them from nothing, by JSON."""
    job = RLJob.model_validate(raw)
    found = [
        children.sampler_workload(job, SPLIT, samplers),
        children.trainer_workload(job, SPLIT, trainers),
        *companions.companions(job, drivers=1, sandboxes=4),
    ]
    return [json.loads(json.dumps(each)) for each in found if each["kind"] in ("Deployment", "StatefulSet")]


def raw(name: str) -> Json:
    return copy.deepcopy(next(each for each in jobs() if each["metadata"]["name"] == name))


def without_records(obj: Json) -> Json:
    found = copy.deepcopy(obj)
    for name in OWN:
        del found["metadata"]["annotations"][name]
    return found


def template_of(obj: Json) -> Json:
    return dict(obj["spec"]["template"])


NAMES = [each["metadata"]["name"] for each in jobs()]


# --- versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_children_of_the_version_before_the_records_get_them_and_nothing_else(name: str) -> None:
    """What the baseline's own code made of the same jobs (tests/chart/baseline) is what this version makes, the stamp included."""
    before = json.loads(CHILDREN.read_text())[name]
    for live, desired in zip(before, made(raw(name)), strict=True):
        assert without_records(desired) == live
        found = change(live, desired)
        assert found.desired == desired
        assert found.differing == tuple(f"metadata.annotations.{own}" for own in OWN)
        assert found.edited == ()
        assert not found.rolls


@pytest.mark.parametrize("name", NAMES)
def test_another_version_keeps_the_template_and_applies_what_is_outside_of_it(name: str) -> None:
    with version("old"):
        before = made(raw(name))
    with version("newer"):
        fresh = made(raw(name), samplers=5)
    for live, desired in zip(before, fresh, strict=True):
        assert template_of(live) != template_of(desired)
        found = change(live, desired)
        assert not found.rolls
        assert template_of(found.desired) == template_of(live)
        assert found.edited == ()
        outside = {key: value for key, value in desired["spec"].items() if key != "template"}
        assert {key: value for key, value in found.desired["spec"].items() if key != "template"} == outside
        if live["spec"] == found.desired["spec"]:
            assert found.differing == ()
        # Written, it is what is wished, by this version and by the one before.
        assert change(found.desired, desired).differing == ()
    with version("old"):
        for live, desired in zip(fresh, made(raw(name)), strict=True):
            found = change(live, desired)
            assert (template_of(found.desired), found.rolls) == (template_of(live), False), "a downgrade keeps it too"


def test_the_version_before_the_records_finds_nothing_to_do_in_a_child_that_has_them() -> None:
    before = json.loads(CHILDREN.read_text())["rich"]
    for live, desired in zip(made(raw("rich")), before, strict=True):
        assert workload_differs(live, desired) == ()


# --- the user's part ------------------------------------------------------------------------------------------------------

EDITS: list[tuple[str, int, Json]] = [
    ("plain", 0, {"sampler": {"template": {"spec": {"containers": [{"name": "main", "image": "x:2"}]}}}}),
    ("plain", 0, {"sampler": {"template": {"metadata": {"annotations": {"a": "b"}}}}}),
    ("plain", 0, {"sampler": {"drainTimeout": "61s"}}),
    ("plain", 0, {"nodes": {"selector": {"pool": "rl"}}}),
    ("plain", 1, {"nodes": {"tolerations": [{"key": "a", "operator": "Exists"}]}}),
    ("placed", 1, {"trainer": {"nodes": {"selector": {"pool": "wide"}}}}),
    ("placed", 1, {"trainer": {"template": {"spec": {"hostNetwork": True}}}}),
    ("pools", 0, {"sampler": {"pools": [{"name": "near", "selector": {"zone": "a"}}]}}),
    ("rich", 0, {"sampler": {"template": {"spec": {"volumes": None, "nodeSelector": None}}}}),
    ("rich", 0, {"sampler": {"template": {"spec": {"terminationGracePeriodSeconds": None}}}}),
    ("agentic", 2, {"workload": {"environment": {"secondsPerTurn": 31.0}}}),
    ("agentic", 2, {"sandbox": {"template": {"spec": {"enableServiceLinks": True}}}}),
    ("agentic", 3, {"driver": {"template": {"spec": {"containers": [{"name": "driver", "image": "x:2"}]}}}}),
]


@pytest.mark.parametrize(("name", "index", "edit"), EDITS)
def test_a_change_of_the_user_applies_the_template_of_the_version_that_sees_it(
    name: str, index: int, edit: Json
) -> None:
    job = raw(name)
    with version("old"):
        live = made(job)[index]
    job["spec"] = merged(job["spec"], edit)
    with version("newer"):
        desired = made(job)[index]
        found = change(live, desired)
    assert found.desired == desired
    assert found.rolls
    assert found.edited == (), "the user's own change is nobody's edit"


def test_a_label_that_is_handed_on_to_the_pods_is_part_of_their_templates() -> None:
    job = raw("plain")
    with version("old"):
        before = made(job)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", "other": "label"}
    with version("newer"):
        fresh = made(job)
    assert [change(live, desired).desired for live, desired in zip(before, fresh, strict=True)] == fresh


def test_the_shape_of_a_replica_is_part_of_its_template() -> None:
    job = RLJob.model_validate(raw("plain"))
    shapes: list[Json] = [{}, {"tensor_parallel": 1}, {"max_running": 32}, {"gpus_per_replica": 4}]
    splits = [SPLIT.model_copy(update={"samplers": SPLIT.samplers.model_copy(update=shape)}) for shape in shapes]
    made = [children.sampler_workload(job, each, 3)["metadata"]["annotations"][DIGEST_ANNOTATION] for each in splits]
    assert len(set(made)) == len(shapes)


def test_what_does_not_go_into_pods_changes_no_digest() -> None:
    job = raw("rich")
    before = [each["metadata"]["annotations"][DIGEST_ANNOTATION] for each in made(job)]
    job["spec"] |= {"gpus": 64, "priority": 7, "suspend": True, "staleness": {"max": 8}}
    job["spec"]["sampler"] |= {"drainTimeout": "99s", "minReplicas": 2}
    assert [each["metadata"]["annotations"][DIGEST_ANNOTATION] for each in made(job, 7, 1)] == before


def test_digests_are_the_same_for_ever() -> None:
    """A version in which these change rolls the pods of all running jobs: that is what TEMPLATE_EPOCHS is for."""
    found = {
        each["metadata"]["name"]: each["metadata"]["annotations"][DIGEST_ANNOTATION].partition(".")[0]
        for name in NAMES
        for each in made(raw(name))
    }
    assert found == {
        "plain-samplers": "573312760e6006db",
        "plain-trainers": "f0bfe1ee1a31ebeb",
        "placed-samplers": "ac73717825a4b6c3",
        "placed-trainers": "40181e63523d600e",
        "pools-samplers": "7a4c2296932d4687",
        "pools-trainers": "f0bfe1ee1a31ebeb",
        "rich-samplers": "d7fb45fa9a952403",
        "rich-trainers": "e07ae194017db272",
        "agentic-samplers": "573312760e6006db",
        "agentic-trainers": "f0bfe1ee1a31ebeb",
        "agentic-sandboxes": "3cf7afe1fe7cefc7",
        "agentic-driver": "d541aac1d64c99db",
    }


@pytest.mark.parametrize(("role", "index"), [("sampler", 0), ("trainer", 1), ("sandbox", 2), ("driver", 3)])
def test_a_raised_epoch_rolls_the_pods_of_its_role_alone(role: str, index: int) -> None:
    with version("old"):
        before = made(raw("agentic"))
    with version("newer"), mock.patch.object(upgrade, "TEMPLATE_EPOCHS", {**TEMPLATE_EPOCHS, role: 2}):
        fresh = made(raw("agentic"))
    rolled = [change(live, desired).rolls for live, desired in zip(before, fresh, strict=True)]
    assert rolled == [at == index for at in range(4)]
    assert change(before[index], fresh[index]).desired == fresh[index]


def test_a_workload_without_pods_takes_the_template_of_this_version() -> None:
    with version("old"):
        live = made(raw("plain"), samplers=0)[0]
    with version("newer"):
        desired = made(raw("plain"))[0]
    assert change(live, desired).desired == desired
    assert change(live, desired).edited == ()


# --- edits of others ------------------------------------------------------------------------------------------------------

HANDS: list[tuple[Callable[[Json], None], str]] = [
    (lambda spec: spec.update(replicas=9), "spec.replicas"),
    (lambda spec: spec["template"]["spec"]["containers"][0].update(image="x:9"), "containers[main].image"),
    (lambda spec: spec["template"]["spec"].update(schedulingGates=[]), "schedulingGates[rljob.dev/budget]"),
    # Of the additions of an older version this one knows nothing, but by the record.
    (lambda spec: spec["template"]["spec"]["volumes"].pop(), "volumes[rljob-old]"),
    (lambda spec: spec["template"]["spec"]["containers"][0]["env"][0].update(value="x"), "env[RLJOB_VERSION].value"),
]


@pytest.mark.parametrize(("by_hand", "path"), HANDS)
def test_an_edit_by_hand_of_a_kept_template_is_named_and_undone(by_hand: Callable[[Json], None], path: str) -> None:
    with version("old"):
        old = made(raw("plain"))[0]
    with version("newer"):
        desired = made(raw("plain"))[0]
        live = change(old, desired).desired
        edited = copy.deepcopy(live)
        by_hand(edited["spec"])
        found = change(edited, desired)
    assert [each.endswith(path) for each in found.edited] == [True]
    assert found.desired == live, "what it was before, and not what this version would make"


def test_records_that_somebody_takes_off_are_written_again_without_a_word() -> None:
    desired = made(raw("plain"))[0]
    found = change(without_records(desired), desired)
    assert (found.edited, found.rolls, found.desired) == ((), False, desired)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "no base64",
        "bm8gZGVmbGF0ZQ==",
        upgrade._record({"metadata": {}, "spec": {"containers": [{"name": "main"}]}}),
        upgrade._record({"spec": []}),
        upgrade._record({"filled": " " * (upgrade._LARGEST_TEMPLATE_BYTES + 1)}),
    ],
)
def test_a_record_that_no_version_wrote_is_not_kept(record: str) -> None:
    with version("old"):
        live = made(raw("plain"))[0]
    live["metadata"]["annotations"][RECORD_ANNOTATION] = record
    with version("newer"):
        desired = made(raw("plain"))[0]
        assert change(live, desired).desired == desired


def forged(live: Json, template: Json | str, *, seal: bool = True) -> Json:
    """A workload whose record somebody has replaced; with its seal if he knows how that is made."""
    found = copy.deepcopy(live)
    record = template if isinstance(template, str) else upgrade._record(template)
    own = found["metadata"]["annotations"]
    own[RECORD_ANNOTATION] = record
    if seal:
        own[DIGEST_ANNOTATION] = upgrade.sealed(own[DIGEST_ANNOTATION].partition(".")[0], record)
    return found


def nested(levels: int) -> Json:
    found: Json = {}
    for _ in range(levels):
        found = {"a": found}
    return found


RESOURCE = "nvidia.com/gpu"


def no_gate(template: Json) -> None:
    template["spec"]["schedulingGates"] = []


def more_gpus(template: Json) -> None:
    template["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "8"}, "requests": {RESOURCE: "8"}}


def no_gpus(template: Json) -> None:
    del template["spec"]["containers"][0]["resources"]


def gpus_of_another_kind(template: Json) -> None:
    template["spec"]["containers"][0]["resources"]["limits"]["example.com/gpu"] = "1"


def gpus_in_passing(template: Json) -> None:
    template["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {RESOURCE: "8"}}}]


def endless_gpus(template: Json) -> None:
    template["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1e999999999"}}


def endless_cpus(template: Json) -> None:
    template["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1e999999999"


def another_role(template: Json) -> None:
    template["metadata"]["labels"]["rljob.dev/role"] = "driver"


def another_name(template: Json) -> None:
    template["metadata"]["labels"]["rljob.dev/name"] = "other"


def labels_that_are_none(template: Json) -> None:
    template["metadata"]["labels"] = 5


def a_container_that_is_none(template: Json) -> None:
    template["spec"]["containers"] = [1]


def resources_that_are_none(template: Json) -> None:
    template["spec"]["containers"][0]["resources"] = [1]


def deep(template: Json) -> None:
    template["spec"]["affinity"] = nested(600)


UNFIT: list[Callable[[Json], None]] = [
    no_gate,
    more_gpus,
    no_gpus,
    gpus_of_another_kind,
    gpus_in_passing,
    endless_gpus,
    another_role,
    another_name,
    labels_that_are_none,
    a_container_that_is_none,
    resources_that_are_none,
    deep,
]


@pytest.mark.parametrize("by_hand", UNFIT)
def test_a_record_that_does_not_fit_is_not_kept_even_under_a_seal_of_its_own(by_hand: Callable[[Json], None]) -> None:
    with version("old"):
        live = made(raw("plain"))[0]
    template = copy.deepcopy(template_of(live))
    by_hand(template)
    with version("newer"):
        desired = made(raw("plain"))[0]
    assert change(forged(live, live["spec"]["template"]), desired).desired["spec"]["template"] == template_of(live)
    found = change(forged(live, template), desired)
    assert found.desired == desired
    assert change(found.desired, desired).differing == ()


def test_a_number_that_takes_for_ever_is_not_worked_out() -> None:
    live = made(raw("plain"))[0]
    template = copy.deepcopy(template_of(live))
    endless_cpus(template)
    # It is written once, and what the API server says of it is that it is no quantity.
    assert change(forged(live, template), live).differing


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        '{"a":' * 900 + "1" + "}" * 900,
        "[]",
        '{"a": 1' + "0" * 9000 + "}",
    ],
)
def test_no_json_of_a_record_ends_a_pass(text: str) -> None:
    live = made(raw("plain"))[0]
    found = change(forged(live, upgrade._pack(text)), live)
    assert found.desired == live


def test_a_record_alone_that_somebody_has_replaced_is_reported_and_not_applied() -> None:
    """Not even one that fits: same GPUs, gate and labels, and another image."""
    live = made(raw("plain"))[0]
    template = copy.deepcopy(template_of(live))
    template["spec"]["containers"][0]["image"] = "example.com/theirs:1"
    edited = forged(live, template, seal=False)
    found = change(edited, live)
    path = f"metadata.annotations.{RECORD_ANNOTATION}"
    assert (found.desired, found.edited, found.differing, found.rolls) == (live, (path,), (path,), False)
    with version("newer"):
        desired = made(raw("plain"))[0]
    found = change(edited, desired)
    assert (found.desired, found.edited, found.rolls) == (desired, (path,), True)
    # Nor is it hidden by another digest, or by taking one of the two off.
    for change_of in ({DIGEST_ANNOTATION: "0" * 16}, {RECORD_ANNOTATION: None}):
        edited = copy.deepcopy(live)
        edited["metadata"]["annotations"] |= change_of
        found = change(edited, live)
        assert (found.desired, path in found.edited) == (live, True)


def test_templates_that_are_long_are_packed_and_not_kept_in_memory() -> None:
    upgrade._packed.cache_clear()
    upgrade._record({"a": "b" * upgrade._LARGEST_KEPT_CHARS})
    assert upgrade._packed.cache_info().currsize == 0
    upgrade._record({"a": "b"})
    assert upgrade._packed.cache_info().currsize == 1


def test_a_template_that_is_too_long_is_not_recorded() -> None:
    job = raw("plain")
    noise = "".join(f"{n * 2654435761 % 2**32:08x}" for n in range(40_000))
    job["spec"]["sampler"]["template"]["metadata"] = {"annotations": {"noise": noise}}
    annotations = made(job)[0]["metadata"]["annotations"]
    assert set(annotations) == {APPLIED_ANNOTATION, DIGEST_ANNOTATION}


# --- in time --------------------------------------------------------------------------------------------------------------


def uids(s: Scene) -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in s.pods()}


def test_an_operator_of_another_version_takes_over_a_job_and_a_move_without_rolling_a_pod() -> None:
    with version("old"), scene() as s:
        before, old = uids(s), template_of(s.workload("samplers"))
        with version("newer"):
            s.restart()
            s.clock.run_for(60.0)
            assert uids(s) == before
            s.wish = split(4, 3)
            s.until(lambda: s.in_phase("Drain"))
            with version("third"):
                s.restart()
                s.settled(4, 3)
        # Of those that were there, only the four victims have gone, and what came is as the others are.
        assert sum(uid not in uids(s).values() for uid in before.values()) == 4
        assert template_of(s.workload("samplers")) == old
        assert s.events("ChildEdited") == []
        s.judged()


@contextmanager
def version_without_records() -> Iterator[None]:
    def bare(workload: Json, *_: Any) -> Json:
        return workload

    with mock.patch.object(children, "recorded", bare), mock.patch.object(companions, "recorded", bare):
        yield


def test_an_operator_with_records_follows_one_without_and_back() -> None:
    with scene() as s:
        with version_without_records():
            # Whatever it applies, it takes the records off.
            s.edit(sampler={"template": {"metadata": {"annotations": {"edited": "yes"}}}})
            s.until(lambda: DIGEST_ANNOTATION not in s.workload("samplers")["metadata"]["annotations"])
            s.until(lambda: all(p["metadata"]["annotations"].get("edited") for p in s.pods("sampler")))
            s.settled(8, 2)
            before = uids(s)
            s.restart()
            s.clock.run_for(60.0)
        s.restart()
        s.until(lambda: DIGEST_ANNOTATION in s.workload("samplers")["metadata"]["annotations"])
        s.clock.run_for(60.0)
        assert uids(s) == before
        assert s.events("ChildEdited") == []
        s.judged()


def test_a_job_that_is_suspended_and_resumed_runs_on_the_template_of_the_new_version() -> None:
    with version("old"), scene() as s, version("newer"):
        s.restart()
        s.edit(suspend=True)
        s.until(lambda: not s.pods())
        s.edit(suspend=False)
        s.until(lambda: s.ready)
        assert {"name": "rljob-newer", "emptyDir": {}} in template_of(s.workload("samplers"))["spec"]["volumes"]
        s.judged()


def test_an_edit_by_hand_after_an_upgrade_is_restored_to_the_kept_template() -> None:
    with version("old"), scene() as s:
        old = template_of(s.workload("samplers"))
        with version("newer"):
            s.restart()
            s.clock.run_for(30.0)
            live = s.workload("samplers")
            spec = copy.deepcopy(live["spec"])
            spec["template"]["spec"]["containers"][0]["image"] = "example.com/theirs:1"
            s.cluster.store.replace("deployments", {**live, "spec": spec})
            s.until(lambda: s.events("ChildEdited"))
            s.until(lambda: template_of(s.workload("samplers")) == old)
            s.settled(8, 2)


def test_a_record_that_somebody_replaces_is_reported_once_and_rolls_nothing() -> None:
    with scene() as s:
        before, live = uids(s), s.workload("samplers")
        template = copy.deepcopy(template_of(live))
        template["spec"]["containers"][0]["image"] = "example.com/theirs:1"
        s.cluster.store.replace("deployments", forged(live, template, seal=False))
        s.until(lambda: s.events("ChildEdited"))
        s.clock.run_for(60.0)
        assert len(s.events("ChildEdited")) == 1
        assert RECORD_ANNOTATION in s.events("ChildEdited")[0]
        kept = s.workload("samplers")["metadata"]["annotations"]
        assert kept[RECORD_ANNOTATION] == live["metadata"]["annotations"][RECORD_ANNOTATION]
        assert uids(s) == before
        s.judged()


def test_a_record_that_somebody_replaces_after_an_upgrade_rolls_no_pod_in_mid_move() -> None:
    with version("old"), scene() as s, version("newer"):
        s.restart()
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        live = s.workload("samplers")
        s.cluster.store.replace("deployments", forged(live, "theirs", seal=False))
        s.until(lambda: s.events("TemplateHeld"))
        assert template_of(s.workload("samplers")) == template_of(live)
        s.until(lambda: s.events("ChildEdited"))
        s.settled(4, 3)
        assert template_of(s.workload("samplers")) != template_of(live)


def test_a_removal_in_a_template_in_mid_move_waits_as_any_edit_does() -> None:
    with scene(
        sampler={"template": {"spec": {"hostNetwork": True, "containers": [{"name": "e", "image": "x:1"}]}}}
    ) as s:
        s.wish = split(4, 3)
        s.until(lambda: s.in_phase("Drain"))
        s.edit(sampler={"template": {"spec": {"hostNetwork": None}}})
        s.until(lambda: s.events("TemplateHeld"))
        assert template_of(s.workload("samplers"))["spec"]["hostNetwork"] is True
        s.settled(4, 3)
        s.until(lambda: "hostNetwork" not in template_of(s.workload("samplers"))["spec"])
        s.settled(4, 3)
