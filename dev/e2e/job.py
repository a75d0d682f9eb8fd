"""The RLJob that is applied: templates as a user would write them, with what this machine needs to run them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dev.e2e import parts
from dev.e2e.parts import Parts

NAME = "tiny"
CALIBRATION = "tiny-calibration"
"""Name of the ConfigMap with what was calibrated."""

EXIT_S = 10
"""Seconds that a drained sampler has for what reached it all the same."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Wishes:
    """What differs from run to run."""

    response_tokens: int = parts.SHORT_TOKENS
    """Mean response that the spec states."""
    lengths: str = parts.GROWING
    """Responses over policy versions, as the trainer's ``--length-trace`` has them."""
    mode: str = "Auto"
    """``spec.rebalance.mode``."""
    by_hand: bool = True
    """Whether one sampler is taken by a move that somebody asks for."""
    drain_s: int = 60
    """Seconds that a sampler has for its samples."""
    grace_s: int | None = None
    """Grace period of a sampler's pod that is too short, and no hook that drains it: for a run that cuts samples."""


def rljob(made: Parts, image: str, wishes: Wishes) -> Json:
    """The job."""
    config = json.loads((made.model / "config.json").read_text())
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": NAME},
        "spec": {
            "gpus": parts.GPUS,
            "accelerator": "H100-SXM",
            "model": {"config": config, "weights": "bf16"},
            "workload": {
                "promptsPerStep": parts.PROMPTS_PER_STEP,
                "samplesPerPrompt": parts.SAMPLES_PER_PROMPT,
                "steps": parts.STEPS,
                "promptTokens": {"mean": parts.PROMPT_TOKENS},
                "responseTokens": {"mean": wishes.response_tokens, "cv": 0.3, "max": parts.MAX_MODEL_TOKENS - 8},
            },
            "staleness": {"max": 4, "bound": "admission"},
            "calibration": {"configMap": CALIBRATION},
            "sampler": {
                "gpusPerReplica": 1,
                "maxRunning": parts.MAX_RUNNING,
                "drainTimeout": f"{wishes.drain_s}s",
                "template": _sampler(made, image, wishes),
            },
            "trainer": {
                "kind": "StatefulSet",
                "gpusPerReplica": 1,
                "resize": "elastic",
                "template": _trainer(made, image, wishes),
            },
            "rebalance": {"mode": wishes.mode, "interval": "5s", "minGain": "5%", "persistence": 2, "cooldown": "20s"},
        },
    }


def _sampler(made: Parts, image: str, wishes: Wishes) -> Json:
    container: Json = {
        "name": "vllm",
        "command": [str(made.python), "-m", "vllm.entrypoints.cli.main", "serve", str(made.model)],
        "args": ["--served-model-name", "tiny", "--host", "$(POD_IP)", "--port", "8000", *made.serve_arguments()],
        # Quicker than the default, since this model loads in no time.
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2, "timeoutSeconds": 10},
        "startupProbe": {
            "httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 600,
        },
    }  # fmt: skip
    drain = [
        *(str(made.python), "-m", "rljob_runtime", "drain", "--url", "http://$(POD_IP):8000", "--pod", "$(POD_NAME)"),
        *("--layout", "/etc/rljob", "--deadline", f"{wishes.drain_s}s", "--tracked"),
    ]
    # The image tells no version, so the operator leaves this to whoever wrote the template. Where the hook waits, nothing is left to finish.
    container["args"] += ["--shutdown-timeout", str(EXIT_S if wishes.grace_s is None else wishes.drain_s)]
    if wishes.grace_s is None:
        container["lifecycle"] = {"preStop": {"exec": {"command": drain}}}
        return {"spec": _pod(made, image, container, made.sampler_environment())}
    # It would finish what it has, and is killed before.
    pod = _pod(made, image, container, made.sampler_environment())
    return {"spec": {**pod, "terminationGracePeriodSeconds": wishes.grace_s}}


def _trainer(made: Parts, image: str, wishes: Wishes) -> Json:
    container = {
        "name": "trainer",
        "command": [str(made.python), "-m", "tiny_grpo.train"],
        "args": made.trainer_arguments(wishes.lengths),
        "ports": [{"name": "metrics", "containerPort": 9100}],
        "readinessProbe": {
            "httpGet": {"path": "/metrics", "port": "metrics"},
            "periodSeconds": 2,
            "timeoutSeconds": 10,
        },
    }
    env = {
        "PYTHONPATH": parts.python_path(),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {"spec": {**_pod(made, image, container, env), "terminationGracePeriodSeconds": 20}}


def _pod(made: Parts, image: str, container: Json, env: Mapping[str, str]) -> Json:
    """What both sides have in common: this machine's folders under their own paths, and the pod's name and address."""
    folders = {f"host-{i}": folder for i, folder in enumerate(made.folders)}
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    # Engine and workers of a server talk through it, and a container has 64 MiB of it by itself.
    shared_memory = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    full = {
        **container,
        "image": image,
        "imagePullPolicy": "Never",
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            *({"name": name, "value": value} for name, value in env.items()),
        ],
        "volumeMounts": [
            {"name": name, "mountPath": str(folder), **({} if folder == made.shared else {"readOnly": True})}
            for name, folder in folders.items()
        ]
        + [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [full],
        "volumes": [
            *({"name": name, "hostPath": {"path": str(folder)}} for name, folder in folders.items()),
            shared_memory,
        ],
    }
