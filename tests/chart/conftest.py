"""The chart's tests need real helm; a machine that can't have it fails here, with the reason, and not once for each test."""

from __future__ import annotations

import pytest

from dev.kubetools import HELM_MAJORS, OtherMajorError, helm


@pytest.fixture(scope="session", autouse=True)
def helms() -> dict[int, str]:
    """The path of each helm that this machine can have, fetched on first use; those of one that it can't are skipped one by one."""
    found = {}
    for major in HELM_MAJORS:
        try:
            found[major] = str(helm(major))
        except OtherMajorError:
            continue
    return found
