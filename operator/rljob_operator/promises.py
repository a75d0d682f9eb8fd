"""What this process has just written of jobs and the view does not show yet.

Two jobs that plan in the same second look at the same free GPUs: the split of the first is in the API server before the watch has
brought it back. So a status counts from the moment when it is sent, for everybody who plans here. Only one process plans at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class Promises:
    """The statuses that were sent last, by the uid of the job, with the version of the view's object that ends the promise."""

    _sent: dict[str, tuple[int, Json]] = field(default_factory=dict)

    def sent(self, obj: Mapping[str, Any]) -> None:
        """Counts a job's status from now on, until the view shows a later object than ``obj``, the job as it is sent."""
        self._keep(obj, _version(obj) + 1)

    def answered(self, obj: Mapping[str, Any]) -> None:
        """Counts a job's status until the view shows ``obj``, the job as the API server answered, or a later one."""
        self._keep(obj, _version(obj))

    def _keep(self, obj: Mapping[str, Any], until: int) -> None:
        self._sent[str(obj["metadata"]["uid"])] = (until, dict(obj.get("status") or {}))

    def withdrawn(self, uid: str) -> None:
        """Forgets what was sent of a job: it was refused, or the job is gone."""
        self._sent.pop(uid, None)

    def shown(self, job: Json) -> Json:
        """A job of the view as it will be once the view has caught up."""
        uid = str(job["metadata"]["uid"])
        if uid not in self._sent:
            return job
        until, status = self._sent[uid]
        if _version(job) >= until:
            del self._sent[uid]
            return job
        return {**job, "status": status}


def _version(obj: Mapping[str, Any]) -> int:
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
