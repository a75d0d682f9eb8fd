"""The chart's tests need real helm; a machine that can't have it fails here, with the reason, and not once for each test."""

from __future__ import annotations

import pytest

from dev.kubetools import HELM_MAJORS, helm


@pytest.fixture(scope="session", autouse=True)
def helms() -> dict[int, str]:
    """The path of each helm, fetched on first use."""
    return {major: str(helm(major)) for major in HELM_MAJORS}
