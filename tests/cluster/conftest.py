"""One control plane for the whole session; a namespace and nodes of its own for each test.

The plane's admin is for setting up and asserting. What is under test connects with a service account. ``RLJOB_TEST_KUBECONFIG`` names the
kubeconfig of another cluster to run the same tests on; see ``make test-kind``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pytest

from dev.controlplane import ApiError, ControlPlane, NodeSpec, ensure_built
from dev.controlplane.given import GivenPlane
from tests.cluster.rig import Rig, install, rig_of

TEST_LABEL = "dev.rljob.dev/test"
"""Label of a test's nodes; its value is the test's namespace."""

KUBECONFIG_VARIABLE = "RLJOB_TEST_KUBECONFIG"
"""Names the kubeconfig of a cluster to use in place of a plane of our own."""

ABOUT_THE_PLANE = "test_controlplane"
"""How the files begin whose tests are about the plane of this machine, and say nothing about the operator."""


class OthersPlane(GivenPlane):
    """A cluster that is not ours to break: the tests that stop parts of it are skipped, when they come to that."""

    @property
    def supervisor(self) -> NoReturn:
        """Skips the test."""
        pytest.skip(f"stops parts of the control plane, and the one that {KUBECONFIG_VARIABLE} names is not ours")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given = os.environ.get(KUBECONFIG_VARIABLE)
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        if given and item.path.parent == Path(__file__).parent and item.path.name.startswith(ABOUT_THE_PLANE):
            item.add_marker(pytest.mark.skip(reason=f"about the local plane; {KUBECONFIG_VARIABLE} names another"))


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The session's control plane, without nodes of ours."""
    if given := os.environ.get(KUBECONFIG_VARIABLE):
        # Binaries such as Prometheus are this machine's all the same.
        ensure_built()
        yield OthersPlane.open(Path(given), tmp_path_factory.mktemp("plane"))
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    # A first run builds for ten minutes: its progress must be seen.
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        ensure_built()
    with ControlPlane.start() as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace in which pods can be created."""
    name = f"t-{secrets.token_hex(4)}"
    plane.create_namespace(name)
    yield name
    _delete_namespace(plane, name)


class GpuNodes(Protocol):
    """Adds nodes for one test."""

    def __call__(self, count: int = 1, gpus_per_node: int = 8, **fields: Any) -> list[str]:
        """Add nodes labelled ``dev.rljob.dev/test=<namespace>``; ``fields`` are those of NodeSpec. Returns names."""


@pytest.fixture
def gpu_nodes(plane: ControlPlane, namespace: str) -> Iterator[GpuNodes]:
    """A factory of nodes, which go after the test together with every pod of its namespace."""
    added: list[str] = []

    def add(count: int = 1, gpus_per_node: int = 8, **fields: Any) -> list[str]:
        fields.setdefault("name_prefix", f"{namespace}-{len(added)}")
        fields["labels"] = {**fields.get("labels", {}), TEST_LABEL: namespace}
        names = plane.add_nodes(NodeSpec(count=count, gpus_per_node=gpus_per_node, **fields))
        added.extend(names)
        return names

    yield add
    # The namespace first: no controller can replace a pod in a terminating one, so that none of this test's pods
    # can land on the next test's nodes.
    _delete_namespace(plane, namespace)
    plane.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
    plane.remove_nodes(added)


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Path:
    """The kubeconfig of the operator that the chart installs, once for each file."""
    return install(plane)


@pytest.fixture
def rig(plane: ControlPlane, namespace: str, account: Path, tmp_path: Path, gpu_nodes: GpuNodes) -> Iterator[Rig]:
    """A job's world on two nodes of eight GPUs; a file whose jobs need others has a ``rig`` of its own."""
    gpu_nodes(2, product="NVIDIA-H100-80GB-HBM3")
    yield from rig_of(plane, namespace, account, tmp_path)


def _delete_namespace(plane: ControlPlane, name: str) -> None:
    try:
        plane.api.request("DELETE", f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status not in (404, 409):
            raise
