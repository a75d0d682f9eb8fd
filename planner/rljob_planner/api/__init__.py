"""The API ``rljob.dev/v1alpha1``: what users write and what the operator reports, as typed models.

These models are the single source of the CRD, its CEL rules and its documentation (``crd``), of the operator's reading
of an object (``spec``) and of what it writes back (``status``). They live on the planner's side, since the planner reads the
same spec that users apply.
"""

from rljob_planner.api.spec import RLJob, RLJobSpec
from rljob_planner.api.status import RLJobStatus

GROUP = "rljob.dev"
VERSION = "v1alpha1"
KIND = "RLJob"
PLURAL = "rljobs"

__all__ = ["GROUP", "KIND", "PLURAL", "VERSION", "RLJob", "RLJobSpec", "RLJobStatus"]
