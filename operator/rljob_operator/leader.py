"""Which of several replicas of the operator leads: a Lease, taken, renewed, lost, and given back.

The election that comes with the Kubernetes client is not used: a request that hangs would carry it past its own renew deadline, it
counts no changes of the holder, keeps times without a zone, and never gives a lease back, so that every orderly restart would
cost the cluster a whole lease without an operator.

The times follow the rule that makes a Lease mean something: the leader stops by its own clock ``renew_deadline_s`` after the *start*
of the last renewal that succeeded; a candidate takes over ``duration_s`` after it *saw* the last renewal, which is later. As long as
``renew_deadline_s < duration_s`` and clocks run at about the same speed, nobody leads twice. Clocks are never compared between
machines. What still gets through, ``fence`` stops.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from rljob_operator.cluster import LEASES, Api, ClusterError, Json, preconditions
from rljob_operator.config import LeaseConfig
from rljob_operator.fence import Fence, Holding, now_s

logger = logging.getLogger("rljob_operator")


class Elector:
    """Takes part in the election and tells when leading begins and ends.

    ``acquired`` and ``lost`` are called in turn, in the loop's thread, and must not wait: ``lost`` cancels what runs.
    """

    def __init__(
        self,
        cluster: Api,
        config: LeaseConfig,
        fence: Fence,
        *,
        acquired: Callable[[Holding], None],
        lost: Callable[[], None],
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._fence = fence
        self._acquired = acquired
        self._lost = lost
        self._clock = clock
        self.identity = f"{config.identity}_{uuid.uuid4().hex[:8]}"
        """Unlike that of any other process, an earlier one in the same pod included."""
        self._lease: Json | None = None
        """The Lease as this process wrote it last, while it leads."""
        self._seen: tuple[object, float] | None = None
        """Another's record of the Lease and when it was first seen."""
        self._renewed_s = 0.0
        """When the last renewal that succeeded was begun."""
        self._transitions = -1
        """The largest count of changes of the holder that was seen; it goes on where somebody deletes the Lease."""
        self._renewing = asyncio.Lock()

    async def run(self) -> None:
        """Takes part until it is cancelled."""
        while True:
            holding = await self._take()
            logger.info("leading as %s (Lease %s/%s)", holding.token, self._config.namespace, self._config.name)
            self._acquired(holding)
            try:
                await self._keep()
                logger.warning("the Lease was lost; all passes end here, and this replica stands by")
            finally:
                self._fence.close()
                self._lost()

    async def confirm(self) -> bool:
        """Renews the Lease and tells whether it is still held; one renewal serves all who ask at a time."""
        asked_s = self._clock()
        async with self._renewing:
            if self._renewed_s >= asked_s:
                return self._lease is not None
            return await self._renew()

    async def release(self) -> None:
        """Gives the Lease back if it is held, so that a candidate need not wait for its end. Never raises."""
        async with self._renewing:
            lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            try:
                await self._give_back(lease)
            except ClusterError as error:
                found = await self._cluster.get(LEASES, self._config.namespace, self._config.name)
                if not error.conflict or found is None or found["spec"].get("holderIdentity") != self.identity:
                    raise
                # A renewal that was cut off has reached the API server nevertheless.
                await self._give_back(found)
            logger.info("the Lease was given back")
        except ClusterError as error:
            logger.warning("the Lease could not be given back and ends by itself: %s", error)

    async def _give_back(self, lease: Json) -> None:
        await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time()})

    async def _take(self) -> Holding:
        """Waits until the Lease is held by this process."""
        self._seen = None
        while True:
            try:
                holding = await self._try_to_take()
            except ClusterError as error:
                holding = None
                if not error.conflict:
                    logger.warning("the Lease can't be read or taken: %s", error)
            if holding is not None:
                return holding
            await asyncio.sleep(self._config.poll_s)

    async def _try_to_take(self) -> Holding | None:
        asked_s = self._clock()
        found = await self._cluster.get(LEASES, self._config.namespace, self._config.name)
        if found is None:
            lease = await self._cluster.create(LEASES, self._config.namespace, self._new())
            return self._held(lease, asked_s)
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        record = (found["metadata"]["uid"], holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if self._seen is None or self._seen[0] != record:
            self._seen = (record, self._clock())
        self._transitions = max(self._transitions, int(spec.get("leaseTransitions") or 0))
        stands_s = float(spec.get("leaseDurationSeconds") or self._config.duration_s)
        # What stands under this process's own name is a request whose answer was lost: nobody else goes by it.
        if holder not in ("", self.identity) and self._clock() < self._seen[1] + stands_s:
            return None
        asked_s = self._clock()
        now = _micro_time()
        lease = await self._write(
            found,
            {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": int(self._config.duration_s),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": self._transitions + 1,
            },
        )
        return self._held(lease, asked_s)

    def _held(self, lease: Json, asked_s: float) -> Holding:
        self._lease, self._renewed_s = lease, asked_s
        self._transitions = int(lease["spec"].get("leaseTransitions") or 0)
        holding = Holding(self.identity, self._transitions)
        self._fence.open(holding, asked_s + self._config.renew_deadline_s)
        return holding

    async def _keep(self) -> None:
        """Renews until the Lease is lost."""
        while self._lease is not None:
            left_s = self._renewed_s + self._config.renew_deadline_s - self._clock()
            try:
                async with asyncio.timeout(left_s):
                    await asyncio.sleep(self._config.period_s)
                    async with self._renewing:
                        await self._renew()
            except TimeoutError:
                self._lease = None

    async def _renew(self) -> bool:
        """One renewal; False and no Lease any more if another holds it, False and the Lease kept if nobody knows."""
        lease, holding = self._lease, self._fence.holding
        if lease is None or holding is None:
            return False
        asked_s = self._clock()
        try:
            written = await self._write(lease, {"renewTime": _micro_time()})
        except ClusterError as error:
            if error.conflict or error.status == 404:
                return await self._look_again(error)
            logger.warning("the Lease could not be renewed: %s", error)
            return False
        if self._lease is None:
            return False
        self._lease, self._renewed_s = written, asked_s
        self._fence.open(holding, asked_s + self._config.renew_deadline_s)
        return True

    async def _look_again(self, error: ClusterError) -> bool:
        """After a conflict: somebody touched the Lease, which may be a person with kubectl or our own write that timed out."""
        try:
            found = await self._cluster.get(LEASES, self._config.namespace, self._config.name)
        except ClusterError:
            return False
        if found is None or (found.get("spec") or {}).get("holderIdentity") != self.identity:
            logger.warning("another holds the Lease: %s", error)
            self._lease = None
        elif self._lease is not None:
            self._lease = found
        return False

    async def _write(self, lease: Json, spec: Json) -> Json:
        patch = {"metadata": preconditions(lease), "spec": spec}
        return await self._cluster.merge(LEASES, self._config.namespace, self._config.name, patch)

    def _new(self) -> Json:
        now = _micro_time()
        return {
            "apiVersion": LEASES.api,
            "kind": "Lease",
            "metadata": {"name": self._config.name, "namespace": self._config.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": int(self._config.duration_s),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": self._transitions + 1,
            },
        }


def _micro_time() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
