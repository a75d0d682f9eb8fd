"""What a job reads before its run and leaves after it, against an API server that a test states."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from pydantic import ValidationError

from rljob_operator.cluster import CONFIG_MAPS, PROFILES, Api, ClusterError, Resource
from rljob_operator.inventory import take_inventory
from rljob_operator.learned import with_constants
from rljob_operator.learning import Known, Learning
from rljob_operator.passes import Pass
from rljob_operator.status import Fleet, Verdict
from rljob_planner.api.evidence import PhaseSeconds
from rljob_planner.api.spec import CalibrationSource, RLJob
from rljob_planner.api.status import CalibrationStatus, LearnedStatus, LengthPoint, MoveHistory, RLJobStatus
from rljob_planner.calibrate import Calibration
from tests.operator.objects import SPLIT, UID, job_dict, node
from tests.operator.situations import NOW_S

Json = dict[str, Any]

CALIBRATION = """\
rljobCalibration: 1
measuredOn: {model: Qwen/Qwen3-8B, gpu: h100-sxm-80gb, tensorParallel: 2, weights: bf16, kvCache: bf16}
samplers:
  factor: 0.9
  decode: {mbu: 0.6, mfu: 0.5, layerSeconds: 0.00001, stepSeconds: 0.002, requestSeconds: 0.00001}
"""


class Server:
    """Objects by kind, and what is refused."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.refused: ClusterError | None = None
        self.written: list[Json] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        if self.refused is not None and self.refused.status == 403:
            raise self.refused
        if resource is PROFILES:
            return copy.deepcopy(next((o for (kind, _), o in self.objects.items() if kind == "RLJobProfile"), None))
        assert resource is CONFIG_MAPS
        return copy.deepcopy(self.objects.get(("ConfigMap", name)))

    async def apply(self, obj: Json, *, dry_run: bool = False) -> Json:
        if self.refused is not None:
            raise self.refused
        self.written.append(obj)
        stored = {**obj, "metadata": {**obj["metadata"], "uid": "u", "resourceVersion": str(len(self.written))}}
        self.objects[obj["kind"], obj["metadata"]["name"]] = stored
        return stored


def a_pass(status: RLJobStatus | None = None, uid: str = UID, **spec: Any) -> Pass:
    raw = job_dict(uid=uid, accelerator="H100-SXM", **spec)
    job = RLJob.model_validate({key: raw[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    before = status or RLJobStatus()
    return Pass(
        job=job,
        raw=raw,
        before=before,
        now=before,
        now_s=NOW_S,
        pods=[],
        take_inventory=lambda: take_inventory(job.spec, uid, [node(f"n{i}") for i in range(4)], [], [], [raw]),
        samplers=Fleet(0, 0, 0, 0),
        trainers=Fleet(0, 0, 0, 0),
        targets=None,
    )


def finished() -> RLJobStatus:
    return RLJobStatus(
        split=SPLIT,
        calibration=CalibrationStatus(sampler_factor=0.8, trainer_factor=1.25, observations=20),
        moves=MoveHistory(moves=1, cost_seconds=90.0, phases=PhaseSeconds(grow=40.0)),
        lengths=(LengthPoint(step=1, mean=1500.0), LengthPoint(step=99, mean=3000.0)),
    )


def learning(server: Server) -> Learning:
    return Learning(cast(Api, server))


async def known(server: Server, this: Pass) -> Known:
    found = await learning(server).before_run(this)
    assert isinstance(found, Known)
    return found


async def left_by(*uids: str) -> Server:
    server = Server()
    for uid in uids:
        await learning(server).after_run(a_pass(finished(), uid))
    return server


async def test_a_run_leaves_a_profile_and_says_so() -> None:
    server = Server()
    this = a_pass(finished())
    await learning(server).after_run(this)
    (written,) = server.written
    assert written["kind"] == "RLJobProfile"
    assert written["metadata"]["labels"]["rljob.dev/model"] == "Qwen-Qwen3-8B"
    assert "ownerReferences" not in written["metadata"]
    assert written["spec"]["subject"]["model"] == "Qwen/Qwen3-8B"
    assert [(kind, reason) for kind, reason, _ in this.said] == [("Normal", "ProfileKept")]


async def test_a_run_that_is_looked_at_twice_is_kept_once() -> None:
    server = await left_by("a", "a")
    assert len(server.written) == 1


async def test_further_runs_are_kept_beside_it_in_the_version_that_was_read() -> None:
    server = await left_by("a", "b")
    assert server.written[1]["metadata"]["resourceVersion"] == "1"
    assert [run["uid"] for run in server.written[1]["spec"]["runs"]] == ["a", "b"]


@pytest.mark.parametrize("status", [403, 404])
async def test_a_cluster_that_takes_no_profiles_ends_nothing(status: int) -> None:
    server = Server()
    server.refused = ClusterError(status, "", "no such thing here")
    this = a_pass(finished())
    await learning(server).after_run(this)
    ((kind, reason, message),) = this.said
    assert (kind, reason) == ("Warning", "ProfileNotKept")
    assert "crds/rljob.dev_rljobprofiles.yaml" in message


@pytest.mark.parametrize("status", [409, 500])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    server = Server()
    server.refused = ClusterError(status, "", "later")
    with pytest.raises(ClusterError):
        await learning(server).after_run(a_pass(finished()))


async def test_a_run_that_measured_nothing_leaves_nothing() -> None:
    server, this = Server(), a_pass(RLJobStatus(split=SPLIT))
    await learning(server).after_run(this)
    assert server.written == []
    assert this.said[0][1] == "ProfileNotKept"


async def test_without_a_profile_nothing_is_known() -> None:
    found = await known(Server(), a_pass())
    assert found == Known()
    spec = a_pass().spec
    assert found.spec_of(spec) is spec


async def test_the_next_run_starts_from_what_the_last_one_measured() -> None:
    this = a_pass(uid="next")
    found = await known(await left_by("a"), this)
    assert found.sources[0].startswith("RLJobProfile qwen3-8b-")
    assert found.calibration.sampler_factor == pytest.approx(0.8)
    assert found.spec_of(this.spec).workload.response_tokens.growth == pytest.approx(2.0)
    found.started(this)
    assert this.now.learned is not None
    assert this.now.learned.runs == 1
    assert this.now.calibration is not None
    assert this.now.calibration.observations == 0
    assert this.now.calibration.sampler_evidence is not None
    assert this.now.moves.phases.grow == 40.0
    assert this.now.moves.moves == 0


async def test_another_workload_learns_nothing_from_it() -> None:
    class Named(Server):
        async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
            return copy.deepcopy(self.objects.get(("RLJobProfile", name)))

    server = Named()
    server.objects = (await left_by("a")).objects
    other = a_pass(uid="next", trainer={"recompute": "none"})
    assert await known(server, other) == Known()
    assert (await known(server, a_pass(uid="next"))).lesson is not None


async def test_an_unreadable_profile_is_left_out_with_a_word() -> None:
    server = await left_by("a")
    for obj in server.objects.values():
        obj["spec"] = {"runs": 7}
    found = await known(server, a_pass())
    assert found.lesson is None
    assert "can't be read" in found.words[0]
    this = a_pass()
    found.started(this)
    assert this.said[0][:2] == ("Normal", "ProfileIgnored")


async def test_a_profile_that_may_not_be_read_is_left_out_with_a_word() -> None:
    server = Server()
    server.refused = ClusterError(403, "Forbidden", "you may not")
    found = await known(server, a_pass())
    assert "let the operator's role read rljobprofiles" in found.words[0]


@pytest.mark.parametrize("name", ["../../other/configmaps/speeds", "..", "Speeds", "speeds?watch=true", ""])
def test_a_config_map_is_named_and_no_path_to_another(name: str) -> None:
    with pytest.raises(ValidationError):
        CalibrationSource.model_validate({"configMap": name})


def with_config_map(data: Json) -> Server:
    server = Server()
    server.objects["ConfigMap", "speeds"] = {"metadata": {"name": "speeds"}, "data": data}
    return server


@pytest.mark.parametrize(
    ("server", "reason", "words"),
    [
        (Server(), "CalibrationMissing", "kubectl -n rl create configmap speeds --from-file=calibration.yaml=FILE"),
        (with_config_map({"other": "x"}), "CalibrationInvalid", "has no key calibration.yaml"),
        (with_config_map({"calibration.yaml": "a: 1"}), "CalibrationInvalid", "this is no calibration"),
    ],
)
async def test_a_calibration_that_is_asked_for_and_is_not_there_stops_the_plan(
    server: Server, reason: str, words: str
) -> None:
    found = await learning(server).before_run(a_pass(calibration={"configMap": "speeds"}))
    assert isinstance(found, Verdict)
    assert (found.status, found.reason) == (False, reason)
    assert words in found.message


async def test_a_calibration_is_a_source_and_its_constants_are_kept() -> None:
    this = a_pass(calibration={"configMap": "speeds"})
    found = await known(with_config_map({"calibration.yaml": CALIBRATION}), this)
    assert found.sources == ("ConfigMap speeds: speeds measured before the run",)
    assert found.calibration.decode is not None
    assert found.calibration.sampler_factor == 0.9
    assert found.words == ()
    found.started(this)
    assert this.now.learned is not None
    assert this.now.learned.decode is not None
    assert this.now.learned.decode.mbu == 0.6
    assert this.now.calibration is None, "a benchmark is no measurement of this run"


async def test_a_calibration_in_the_job_itself_is_read_and_its_seconds_last() -> None:
    inline = {
        "rljobCalibration": 1,
        "measuredOn": {"model": "Qwen/Qwen3-8B", "tensorParallel": 2, "weights": "bf16", "kvCache": "bf16"},
        "samplers": {
            "measured": {"stepSeconds": 0.02, "sampleSeconds": 0.001, "expertsSeconds": 0.03},
            "kvTokens": 9000,
            "efficiency": 0.8,
        },
        "trainers": {"measured": {"stepSeconds": 1.0, "tokenSeconds": 0.001, "error": 0.1}},
    }
    this = a_pass(calibration={"inline": inline})
    found = await known(Server(), this)
    assert found.sources == ("spec.calibration.inline: speeds measured before the run",)
    assert found.doubts == ()
    found.started(this)
    learned = this.now.learned
    assert learned is not None
    assert learned.config_map is None
    # What the status keeps brings the same seconds back for every later plan, at the width that was measured.
    kept = LearnedStatus.model_validate(learned.model_dump(by_alias=True))
    live = with_constants(Calibration(sampler_factor=0.9), kept, 2)
    assert live.decode_seconds == found.calibration.decode_seconds
    assert live.decode_seconds is not None
    assert live.decode_seconds.experts_s == 0.03
    assert live.train_seconds == found.calibration.train_seconds
    assert (live.kv_tokens, live.sampler_efficiency, live.sampler_factor) == (9000, 0.8, 0.9)
    other = with_constants(Calibration(), kept, 4)
    assert other.decode_seconds is None
    assert other.train_seconds == live.train_seconds


async def test_a_calibration_in_the_job_itself_that_is_none_stops_the_plan() -> None:
    found = await learning(Server()).before_run(a_pass(calibration={"inline": {"a": 1}}))
    assert isinstance(found, Verdict)
    assert (found.status, found.reason) == (False, "CalibrationInvalid")
    assert "spec.calibration.inline: this is no calibration" in found.message


async def test_a_calibration_of_another_model_is_said() -> None:
    other = CALIBRATION.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")
    found = await known(with_config_map({"calibration.yaml": other}), a_pass(calibration={"configMap": "speeds"}))
    assert "was measured with model Qwen/Qwen3-32B" in found.doubts[0]
    this = a_pass()
    found.started(this)
    assert this.said[0][:2] == ("Warning", "CalibrationDiffers")
