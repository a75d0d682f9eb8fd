"""Who has the GPUs that a job can't have: by name, since "no room" alone tells nobody whom to talk to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_operator.census import Census
from rljob_operator.quantity import QuantityError
from rljob_operator.survey import Site

_NAMED = 3


@dataclass(frozen=True)
class Holder:
    """Somebody who has GPUs on the nodes of a job."""

    job: str | None
    """``namespace/name`` of an RLJob, None for pods of no RLJob."""
    gpus: int
    """GPUs that its pods hold there."""
    reserved_gpus: int = 0
    """GPUs that are set aside for it there."""


def holders_of(
    sites: Sequence[Site], census: Census, uid: str, names: Mapping[str, str], reserved: Mapping[str, int]
) -> tuple[Holder, ...]:
    """Who has GPUs on the sites besides the job with ``uid``, the largest first.

    ``names``: of jobs by uid; pods of a job that is gone count as pods of none. ``reserved``: GPUs set aside by name of the job.
    """
    held: Counter[str | None] = Counter()
    for site in sites:
        for other, share in census.on_node(site.name).items():
            if other != uid:
                try:
                    held[names.get(other)] += share.of(site.resource)
                except QuantityError:
                    continue
    everybody = {*held, *(name for name, gpus in reserved.items() if gpus)}
    found = (Holder(job, held[job], 0 if job is None else reserved.get(job, 0)) for job in everybody)
    return tuple(
        sorted(
            (holder for holder in found if holder.gpus or holder.reserved_gpus),
            key=lambda holder: (-(holder.gpus + holder.reserved_gpus), holder.job or ""),
        )
    )


def in_words(holders: Iterable[Holder]) -> str:
    """A clause such as `` (RLJob rl/a holds 48 GPUs, 8 more are kept for it; pods of others hold 4)``; empty without holders."""
    holders = tuple(holders)
    if not holders:
        return ""
    parts = [_one(holder) for holder in holders[:_NAMED]]
    rest = holders[_NAMED:]
    if rest:
        parts.append(f"{len(rest)} more have {sum(holder.gpus + holder.reserved_gpus for holder in rest)}")
    return f" ({'; '.join(parts)})"


def _one(holder: Holder) -> str:
    gpus, kept = _gpus(holder.gpus), _gpus(holder.reserved_gpus)
    if holder.job is None:
        return f"pods of no RLJob hold {gpus}"
    if not holder.reserved_gpus:
        return f"RLJob {holder.job} holds {gpus}"
    if not holder.gpus:
        return f"{kept} {'is' if holder.reserved_gpus == 1 else 'are'} kept for RLJob {holder.job}"
    return f"RLJob {holder.job} holds {gpus} and {holder.reserved_gpus} more {'is' if holder.reserved_gpus == 1 else 'are'} kept for it"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
