"""Run the cluster's tests on kind: ``python -m dev.kind [pytest's arguments]``.

First the operator is tried as people install it: the image is built and loaded, the chart installed with two replicas, `helm test` run, and a
job planned by the pods. Then the release goes, its CRDs stay, and the specs of tests/cluster run; those start operators of their own, as
processes here with the rights of the chart's service account, since they stop and kill them, and two installations would both lead.

Leaves with 0 and a reason where there can be no cluster: on a machine without containers there is nothing to be wrong.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from dev.chart import ROOT
from dev.controlplane import NodeSpec, ensure_built
from dev.controlplane.given import GivenPlane, start_kwok
from dev.installed import RELEASE, SYSTEM, install, run_helm
from dev.kind.tools import Engine, UnavailableError, find_engine, find_kind
from dev.trial import IMAGE, JOB, LABEL, TAG, VALUES, planned_job, wait_planned

CLUSTER = "rljob-test"
"""Name of the cluster: one that is there already is never touched."""

KUBECONFIG_VARIABLE = "RLJOB_TEST_KUBECONFIG"


def main(arguments: Sequence[str]) -> int:
    """Make the cluster, run everything on it, take it away; returns pytest's exit code, 1 if something before that fails."""
    try:
        engine = find_engine()
        kind = find_kind()
    except UnavailableError as error:
        print(f"SKIPPED: no tests on kind here: {error}")
        return 0
    ensure_built()
    with tempfile.TemporaryDirectory(prefix="rljob-kind-") as scratch, contextlib.ExitStack() as stack:
        kubeconfig = Path(scratch, "kubeconfig")
        clusters = _run([kind, "get", "clusters"], engine, capture=True).split()
        if CLUSTER in clusters:
            print(f"a cluster {CLUSTER} is there already, from another run: kind delete cluster --name {CLUSTER}")
            return 1
        stack.callback(_run, [kind, "delete", "cluster", "--name", CLUSTER], engine)
        _run([kind, "create", "cluster", "--name", CLUSTER, "--kubeconfig", kubeconfig, "--wait", "300s"], engine)
        _load_image(kind, engine, Path(scratch))
        kwok = start_kwok(kubeconfig, Path(scratch, "kwok"))
        stack.callback(kwok.close)
        plane = GivenPlane.open(kubeconfig, Path(scratch, "plane"))
        _try_installed(plane)
        env = {**os.environ, KUBECONFIG_VARIABLE: str(kubeconfig)}
        command = [sys.executable, "-m", "pytest", *(arguments or ["tests/cluster"])]
        return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def _load_image(kind: Path, engine: Engine, scratch: Path) -> None:
    _run([engine.name, "build", "--file", "Containerfile", "--tag", f"{IMAGE}:{TAG}", "."], engine)
    # An archive, since kind can take images from docker alone.
    archive = scratch / "image.tar"
    _run([engine.name, "save", "--output", archive, f"{IMAGE}:{TAG}"], engine)
    _run([kind, "load", "image-archive", "--name", CLUSTER, archive], engine)
    archive.unlink()


def _try_installed(plane: GivenPlane) -> None:
    """The chart's own pods, as they are installed: they get ready, pass `helm test`, and plan a job."""
    install(plane, VALUES)
    plane.kubectl("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=300s")
    print(run_helm(plane, "test", RELEASE, "--namespace", SYSTEM, "--logs", "--timeout", "3m").stdout, flush=True)
    names = plane.add_nodes(NodeSpec(count=2, gpus_per_node=8, name_prefix="trial", labels={LABEL: "true"}))
    plane.create_namespace(JOB)
    plane.apply(yaml.safe_dump(planned_job(JOB)))
    print(f"the operator's pods planned a job: {wait_planned(plane, JOB)}", flush=True)
    run_helm(plane, "uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    plane.api.request("DELETE", f"/api/v1/namespaces/{JOB}")
    plane.remove_nodes(names)


def _run(command: Sequence[str | Path], engine: Engine, *, capture: bool = False) -> str:
    print(f"$ {' '.join(map(str, command))}", flush=True)
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=engine.env, check=True, text=True, stdout=subprocess.PIPE if capture else None
    )  # fmt: skip
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
