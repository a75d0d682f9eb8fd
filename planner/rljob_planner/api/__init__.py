"""The API ``rljob.dev/v1alpha1``: what users write and what the operator reports, as typed models.

These models are the single source of the CRD, its CEL rules and its documentation (``crd``), of the operator's reading
of an object (``spec``) and of what it writes back (``status``). They live on the planner's side, since the planner reads the
same spec that users apply.

The models are loaded when they are first asked for: ``split`` builds on ``base`` here and ``status`` builds on ``split``, so
importing any one of them must not import all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_planner.api.spec import RLJob, RLJobSpec
    from rljob_planner.api.status import RLJobStatus

GROUP = "rljob.dev"
VERSION = "v1alpha1"
KIND = "RLJob"
PLURAL = "rljobs"

__all__ = ["GROUP", "KIND", "PLURAL", "VERSION", "RLJob", "RLJobSpec", "RLJobStatus"]


def __getattr__(name: str) -> object:
    """Load a model on its first use."""
    if name in ("RLJob", "RLJobSpec"):
        from rljob_planner.api import spec

        return getattr(spec, name)
    if name == "RLJobStatus":
        from rljob_planner.api.status import RLJobStatus

        return RLJobStatus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
