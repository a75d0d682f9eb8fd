"""The whole promise, once: real vLLM samplers and a real training loop under the installed operator, as ``make e2e`` runs it.

``RLJOB_E2E_NODE=real`` runs the pods in containers under a real kubelet, on a machine that can be a node; by default they are processes, since a
test run must not change networks and kernel settings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LIMIT_S = 1200
"""What is promised for two cores; some 13 minutes are usual there."""


@pytest.mark.cluster
@pytest.mark.vllm
@pytest.mark.timeout(LIMIT_S + 120)
@pytest.mark.skipif(sys.platform != "linux", reason="pods run as processes on Linux alone")
def test_a_real_job_is_planned_grown_drained_and_survives_kills(
    vllm_python: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = os.environ.get("RLJOB_E2E_NODE", "processes")
    command = [sys.executable, "-m", "dev.e2e", "--node", node, "--output", str(tmp_path), "--limit", str(LIMIT_S)]
    with capfd.disabled():
        # It takes minutes: its progress must be seen.
        done = subprocess.run(command, cwd=ROOT, check=False)
    told = json.loads((tmp_path / "e2e.json").read_text())
    assert told["broken"] == []
    assert done.returncode == 0
    assert told["node"] == node
    assert told["gpuPeak"] <= told["gpuBudget"]
    assert told["samplesLost"] == 0
    assert told["samplesCutByRemovals"] == 0
    assert len(told["removals"]) == 10
    assert {fault["killed"] for fault in told["faults"]} == {"operator", "prometheus", "sampler"}
