"""What the API server notes of requests: who did which verb to what, and what came of it.

The notes are the API server's own audit log at the level Metadata, for the service accounts of some namespaces alone: of everybody
else nothing is written, so that a plane with it is as quick as one without. They are what rights can be compared with: the log has
every request that was allowed or denied, by whatever client and on whatever path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

FOLDER_VARIABLE = "RLJOB_PLANE_AUDIT_DIR"
"""Names the folder of the logs for every plane that is started without being told of one, those of child processes too."""

NAMESPACES = ("rljob-system",)
"""Namespaces whose service accounts are noted if nothing else is said: the operator's."""


@dataclass(frozen=True)
class Audit:
    """Whose requests are noted, and where."""

    folder: Path
    """Folder of the logs; each plane writes a file of its own."""
    namespaces: tuple[str, ...] = NAMESPACES
    """Namespaces of the service accounts whose requests are noted."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self | None:
        """What the environment asks for; None if it asks for nothing."""
        folder = env.get(FOLDER_VARIABLE)
        return cls(Path(folder)) if folder else None

    def policy(self) -> str:
        """The API server's policy file, YAML."""
        rules: list[dict[str, Any]] = [
            {
                "level": "Metadata",
                "userGroups": [f"system:serviceaccounts:{namespace}" for namespace in self.namespaces],
                # A watch is noted when it starts, since it may still be open when the log is read.
                "omitStages": ["RequestReceived"],
            },
            {"level": "None"},
        ]
        return yaml.safe_dump({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}, sort_keys=False)

    def log_file(self, plane: str, port: int) -> Path:
        """The log of one plane: planes of one folder may have the same name one after the other, but hardly the same port too."""
        return self.folder / f"{plane}-{port}.audit.jsonl"
