"""From the version before to this one, on to the next and back, on a live plane: with a running job and a move under way each time.

helm is real, and so are the charts: that of the baseline (``baseline/``) holds what a cluster held before this chart had templates. The
operators run as processes under the account of the release: the baseline's own code, out of the repository's history, then this version's
under what its Deployment says, then one of a version to come that adds something else to pods. What must hold at every instant
is asserted over the watch history.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane import ApiError, ControlPlane, ensure_built
from dev.controlplane.rest import MERGE_PATCH
from dev.installed import CHART, RELEASE, SYSTEM, HelmError, Installed, install, installed, run_helm, wait_served
from dev.kubetools import HELM_MAJORS
from tests.chart.baseline import make
from tests.cluster.conftest import GpuNodes, gpu_nodes, namespace  # noqa: F401
from tests.cluster.moving import budget_job, edit, settled, staying, wait_move
from tests.cluster.rig import ROOT, Operator, Rig, eventually, rig_of

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMES = ("rljobs.rljob.dev", "rljobprofiles.rljob.dev")

QUICK: Json = {
    "operator": {
        "moveTick": "500ms",
        "idleTick": "2s",
        "metricsWindow": "12s",
        "acknowledgeDeadline": "60s",
        "goneDeadline": "60s",
        "readyDeadline": "60s",
    },
    "prometheus": {"scrapeInterval": "1s"},
    # Operators are killed, and their successors wait for the end of the Lease.
    "leaderElection": {"leaseDuration": "5s", "renewDeadline": "4s", "renewPeriod": "500ms"},
}
"""Values of this chart in a test's time."""

QUICK_BEFORE = {
    "RLJOB_OPERATOR_MOVE_TICK": "500ms",
    "RLJOB_OPERATOR_IDLE_TICK": "2s",
    "RLJOB_OPERATOR_SCRAPE_INTERVAL": "1s",
    "RLJOB_OPERATOR_METRICS_WINDOW": "12s",
}
"""The same for the baseline's operator."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A plane of their own: these tests take the CRDs away."""
    ensure_built()
    with ControlPlane.start() as running:
        running.create_namespace(SYSTEM)
        yield running


@pytest.fixture
def bare(plane: ControlPlane) -> Iterator[None]:
    """Takes release and CRDs away after a test, however it ends."""
    yield
    run_helm(plane, "uninstall", RELEASE, "-n", SYSTEM, "--wait", "--ignore-not-found")
    plane.kubectl("delete", "crd", *NAMES, "--ignore-not-found")
    plane.kubectl("delete", "clusterrole", "rljob-operator", "--ignore-not-found")


@pytest.fixture(scope="module")
def before() -> Iterator[Path | str]:
    """The baseline's tree, or why there is none: then this version's code stands in for it."""
    try:
        with make.checkout() as tree:
            yield tree
    except make.NoHistoryError as error:
        yield str(error)


@pytest.fixture
def to_come(tmp_path: Path) -> Path:
    """The tree of a version to come, whose pods prefer company a little less."""
    tree = tmp_path / "to-come"
    shutil.copytree(ROOT / "operator", tree / "operator", ignore=shutil.ignore_patterns("__pycache__"))
    template = tree / "operator/rljob_operator/template.py"
    text = template.read_text()
    assert '"weight": 100' in text
    template.write_text(text.replace('"weight": 100', '"weight": 99'))
    return tree


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:  # noqa: F811
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    # An operator is started with an account of its own each time.
    yield from rig_of(plane, namespace, plane.kubeconfig, tmp_path)


def helm_baseline(plane: ControlPlane) -> Path:
    """Installs the baseline; returns the kubeconfig of its account."""
    run_helm(plane, "upgrade", "--install", RELEASE, str(make.CHART), "-n", SYSTEM)
    wait_served(plane)
    return plane.service_account_kubeconfig(SYSTEM, "rljob-operator")


class Operators:
    """Starts operators, one after the other, and ends the last."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig, self._folder = rig, folder
        self._last: Operator | None = None

    def before(self, kubeconfig: Path, tree: Path | str) -> Operator:
        """The baseline's operator, as a Deployment would have started it."""
        process = Installed(
            release=RELEASE,
            namespace=SYSTEM,
            account="rljob-operator",
            kubeconfig=kubeconfig,
            env={"RLJOB_OPERATOR_LIVENESS_ENDPOINT": "http://0.0.0.0:8080/healthz", **QUICK_BEFORE},
            command=("python", "-m", "rljob_operator"),
            ports={"health": 8080},
            rights=frozenset(),
            files=self._folder,
            mounts=(),
        )
        if isinstance(tree, str):
            return self._start("before", process)
        # Compiled code is found by what it was compiled from, wherever that lies: a tree of its own need not compile it again.
        compiled = str(ROOT / "planner/rljob_planner/__pycache__")
        return self._start("before", process, PYTHONPATH=make.python_path(tree), NUMBA_CACHE_DIR=compiled)

    def installed(self, name: str, tree: Path | None = None) -> Operator:
        """That of the release that is there, by what its Deployment says; with the code of ``tree`` as by another image."""
        path = {} if tree is None else {"PYTHONPATH": str(tree / "operator")}
        return self._start(name, installed(self._rig.plane), **path)

    def _start(self, name: str, process: Installed, **env: str) -> Operator:
        self.end()
        self._last = self._rig.operator = Operator(process, process.kubeconfig, self._folder / f"{name}.log", env)
        self._last.start()
        return self._last

    def end(self) -> None:
        """Stops the last one, if it still runs."""
        if self._last is not None:
            self._last.stop()


@pytest.fixture
def operators(rig: Rig, tmp_path: Path) -> Iterator[Operators]:
    made = Operators(rig, tmp_path)
    yield made
    made.end()


def uids(rig: Rig) -> dict[str, str]:
    """The pods that nobody deletes: their names by their uids."""
    return {
        p["metadata"]["uid"]: p["metadata"]["name"]
        for p in rig.objects("pods", "rljob.dev/name=job")
        if not p["metadata"].get("deletionTimestamp")
    }


def templates(rig: Rig) -> list[Json]:
    return [d["spec"]["template"] for d in rig.objects("deployments", "rljob.dev/name=job")]


def recorded(rig: Rig) -> bool:
    """Whether all workloads carry the annotations of upgrade.py."""
    deployments = rig.objects("deployments", "rljob.dev/name=job")
    return all("rljob.dev/template-digest" in d["metadata"]["annotations"] for d in deployments)


def test_no_version_rolls_a_pod_or_loses_a_move(
    rig: Rig, operators: Operators, before: Path | str, to_come: Path, bare: None
) -> None:
    operator = operators.before(helm_baseline(rig.plane), before)
    rig.apply(budget_job(rig.namespace, sampler={"drainTimeout": "5s"}))
    settled(rig, 12, 1)
    first, made = uids(rig), templates(rig)
    new = added_fields()
    assert new
    assert all(not takes(rig, path) for path in new)
    edit(rig, gpus=8)
    wait_move(rig, "Drain")
    operator.kill()

    # To this version, in mid-move.
    install(rig.plane, QUICK)
    eventually(lambda: all(takes(rig, path) for path in new), "a field that was added can be used")
    operator = operators.installed("this")
    settled(rig, 4, 1)
    eventually(lambda: recorded(rig), "the workloads carry the records of their templates")
    second = uids(rig)
    assert second.keys() <= first.keys(), "only victims have gone, and nobody has come"
    assert rig.recorder.history[-1][1] <= 8
    operator.kill()

    # To a version that makes other templates: what it adds to the job is as what is there.
    operator = operators.installed("to-come", to_come)
    edit(rig, gpus=10)
    settled(rig, 6, 1)
    third = uids(rig)
    assert second.keys() <= third.keys()
    assert templates(rig) == made

    # And in mid-move back to the baseline, which knows of no records.
    edit(rig, gpus=6)
    wait_move(rig, "Drain")
    operator.kill()
    run_helm(rig.plane, "rollback", RELEASE, "1", "-n", SYSTEM)
    eventually(lambda: not any(takes(rig, path) for path in new), "the API server goes by the older CRDs")
    operator = operators.before(rig.plane.service_account_kubeconfig(SYSTEM, "rljob-operator"), before)
    settled(rig, 2, 1)
    assert uids(rig).keys() <= third.keys()
    assert templates(rig) == made
    assert rig.recorder.history[-1][1] <= 6
    assert rig.recorder.peak <= 16
    reasons = {e["reason"] for e in rig.events("job")}
    assert "ChildEdited" not in reasons
    assert {"MoveStarted", "MoveShrink", "MoveGrow", "MoveVerify"} <= reasons
    assert {"SpecChanged", "BudgetRaised", "MoveCommitted"} <= {d["code"] for d in rig.status("job")["decisions"]}
    operator.terminate()

    # The end leaves jobs alone, unless it is asked for more.
    install(rig.plane, QUICK)
    last = uids(rig)
    run_helm(rig.plane, "uninstall", RELEASE, "-n", SYSTEM, "--wait")
    assert rig.get("rljob", "job") is not None
    assert uids(rig) == last
    assert staying(rig, "sampler")
    # Jobs go first, as the page says: a collector that no longer knows their kind may leave their children for minutes.
    rig.plane.kubectl("delete", "rljobs", "--all", "-n", rig.namespace)
    eventually(lambda: not rig.objects("pods"), "the job is gone with its pods", timeout_s=120)
    install(rig.plane, {"crds": {"keep": False}})
    run_helm(rig.plane, "uninstall", RELEASE, "-n", SYSTEM, "--wait")
    eventually(lambda: not any(crd(rig.plane, name) for name in NAMES), "the CRDs are gone")
    if isinstance(before, str):
        pytest.skip(f"all of it held, with this version's code in place of the baseline's: {before}")


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_what_kubectl_has_applied_is_taken_over_when_helm_is_told_to(
    plane: ControlPlane, bare: None, major: int
) -> None:
    for path in sorted((make.CHART / "files").glob("rljob.dev_*.yaml")):
        plane.apply(path.read_text())
    # As it once came without helm, under the name that the chart uses as well.
    plane.apply((make.CHART / "files/clusterrole.yaml").read_text())
    wait_served(plane)
    uid = {name: crd(plane, name)["metadata"]["uid"] for name in NAMES}
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        install(plane, major=major)
    more = ("--force-conflicts",) if major >= 4 else ()
    run_helm(plane, "upgrade", "--install", RELEASE, str(CHART), "-n", SYSTEM, "--take-ownership", *more, major=major)
    for name in NAMES:
        found = crd(plane, name)
        assert found["metadata"]["uid"] == uid[name], "not deleted and made anew, which would delete all jobs"
        assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    run_helm(plane, "uninstall", RELEASE, "-n", SYSTEM, "--wait", major=major)
    for name in NAMES:
        assert crd(plane, name)["metadata"]["uid"] == uid[name]


# --- fields ---------------------------------------------------------------------------------------------------------------


def crd(plane: ControlPlane, name: str) -> Json:
    """A CRD as the API server has it; empty if there is none."""
    try:
        return plane.api.request("GET", f"{CRDS}/{name}")
    except ApiError as error:
        if error.status == 404:
            return {}
        raise


def added_fields() -> list[tuple[str, ...]]:
    """The paths of the status's fields that this version's CRD has and the baseline's has not, outermost ones."""

    def schema(path: Path) -> Json:
        found = yaml.safe_load(path.read_text())
        return dict(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"])

    def walk(old: Json, new: Json, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        known = old.get("properties", {})
        for name, each in new.get("properties", {}).items():
            if name not in known:
                yield (*path, name)
            else:
                yield from walk(known[name], each, (*path, name))

    name = "rljob.dev_rljobs.yaml"
    return list(walk(schema(make.CHART / "files" / name), schema(ROOT / "crds" / name), ("status",)))


def takes(rig: Rig, path: tuple[str, ...]) -> bool:
    """Whether the API server knows a field of the status, by a strict dry run: it may like another value better."""
    value: Json = {path[-1]: {}}
    for name in reversed(path[:-1]):
        value = {name: value}
    where = f"/apis/rljob.dev/v1alpha1/namespaces/{rig.namespace}/rljobs/job/status?dryRun=All&fieldValidation=Strict"
    try:
        rig.plane.api.request("PATCH", where, value, content_type=MERGE_PATCH)
    except ApiError as error:
        return "unknown field" not in str(error)
    return True
