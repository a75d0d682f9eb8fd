"""One run from nothing to nothing, stage by stage; every stage waits for what it claims and says what it saw."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dev.controlplane import ApiError, paths
from dev.demo.history import JobHistory, label
from dev.demo.ledger import PodLedger
from dev.e2e import parts
from dev.e2e.account import Account, Compared, ServerLog, cut_by_sampler
from dev.e2e.calibration import Calibration
from dev.e2e.job import NAME, Wishes, rljob
from dev.e2e.nodes import Node
from dev.e2e.outcome import Fault, Findings, grown
from dev.e2e.parts import Parts
from dev.e2e.removals import Removals, running_of
from dev.e2e.world import TEAM, World, is_ready
from dev.vllm.install import ensure
from rljob_runtime.drain import Patience

Json = dict[str, Any]
Say = Callable[[str], None]

LOOK_EVERY_S = 0.25
SETTLED_STEPS = 8
"""Policy versions before the job counts as running."""
WAYS = (*("eviction", "deletion") * 4, "eviction")
"""How samplers are removed; one more goes by a move."""
DRAIN_SETTLE_S, DRAIN_LAG_S = Patience.settle_s, Patience.lag_s
"""The runtime's own times for a drain, which the samplers' hook leaves as they are."""


class Run:
    """One run."""

    def __init__(
        self,
        node: Node,
        output: Path,
        say: Say,
        *,
        limit_s: float,
        ways: Sequence[str] = WAYS,
        wishes: Wishes | None = None,
    ) -> None:
        """Prepare; TimeoutError ends the run after ``limit_s`` seconds. ``ways`` are those of removals, one for each."""
        self._node, self._output, self._say = node, output, say
        self._limit_s, self._ways, self._wishes = limit_s, tuple(ways), wishes or Wishes()
        self._began = time.monotonic()
        self._waiting_for = "the start"
        self._history, self._ledger = JobHistory(), PodLedger()
        self._removals: Removals | None = None
        self._world: World | None = None
        self._first_trainer: str | None = None
        self.findings = Findings(node.kind, parts.GPUS, len(self._ways) + self._wishes.by_hand)

    # All of it

    def run(self) -> Findings:
        """Run it; what goes wrong on the way is in the findings, and only what ends it early is raised."""
        try:
            self._run()
        finally:
            found = self.findings
            found.plan, found.moves, found.gpu_peak = self._history.plan, self._history.moves, self._ledger.peak
            found.removals = [] if self._removals is None else self._removals.done
            found.account = self._consistent_account() if self._world is None else found.account
            found.seconds = time.monotonic() - self._began
        return self.findings

    def _run(self) -> None:
        self._made = Parts(ensure(), self._output / "shared", self._node.programs)
        self._made.write_model(paths.cache_dir() / "tiny-grpo" / parts.TASK)
        with contextlib.ExitStack() as stack:
            # The server that is calibrated starts while the plane does.
            calibrated = stack.enter_context(Calibration(self._made, self._output))
            world = self._world = stack.enter_context(World.start(self._node, parts.GPUS, self._output, self._say))
            try:
                world.begin()
                self._say("Prometheus and the operator, as the chart starts it, run")
                world.follow_pods(self._ledger)
                world.follow_job(self._history)
                self._begin(world, calibrated)
                self._stages(world)
            finally:
                # What goes wrong here must not hide what went wrong before.
                with contextlib.suppress(Exception):
                    self.findings.account = self._consistent_account()
                    self.findings.trainer_restarts = self._trainer_restarts(world)
                    (self._output / "describe.txt").write_text(world.described(), encoding="utf-8")
                self._say("stopping everything")

    def _stages(self, world: World) -> None:
        self._grow()
        self._kill_operator(world)
        self._kill_prometheus(world)
        self._remove(world)
        self._kill_sampler(world)
        self._measure(world)

    # Stages

    def _begin(self, world: World, calibrated: Calibration) -> None:
        """Calibrate, apply, and wait until it trains."""
        self._until("a sampler to calibrate", lambda: calibrated.serves)
        self._say("a sampler serves; rljob calibrate measures it")
        calibration = calibrated.measure()
        calibrated.close()
        measured = calibration["samplers"]["measured"]
        self._say(
            f"calibrated: an iteration takes {measured['stepSeconds'] * 1e3:.1f} ms and {measured.get('sampleSeconds', 0.0) * 1e3:.2f} ms "
            f"a sample (the device that is played: {parts.STEP_S * 1e3:g} and {parts.STEP_PER_SAMPLE_S * 1e3:g} ms), "
            f"KV room {calibration['samplers']['kvTokens']} tokens"
        )
        self.findings.measured = {"calibration": {**measured, "kvTokens": calibration["samplers"]["kvTokens"]}}
        job = rljob(self._made, self._node.image, self._wishes)
        world.apply(job, calibration)
        self._until("a plan", lambda: self._history.plan is not None)
        assert self._history.plan is not None
        self._say(f"planned {label(self._history.plan['split'])} of {parts.GPUS} GPUs")
        applied = time.monotonic()
        self._until("the samplers to be ready", self._all_ready)
        self._say(f"all pods are ready after {time.monotonic() - applied:.0f} s")
        self._until(f"version {SETTLED_STEPS}", lambda: self._account.version >= SETTLED_STEPS)
        self._trainer_restarts(world)
        self._say(f"it trains: {self._told()}")

    def _grow(self) -> None:
        """Responses get longer: wait until the operator has given the samplers more."""
        self._until("responses to grow", lambda: self._account.version > parts.GROWS_FROM)
        short = self._mean_length(last=10)
        self._say(f"responses get longer now; {self._told()}")
        self._until("a move that gives more samplers", lambda: bool(grown(self._history.moves)))
        for move in grown(self._history.moves):
            self._say(f"moved: {move.reason}")
        # A second move may follow at once, and what comes now is to happen between moves.
        self._until("responses to have grown", lambda: self._account.version > parts.GROWS_TO)
        self._until("no move to be under way", self._settled)
        self.findings.lengths = (short, self._mean_length(last=3))
        self._say(f"mean response {short:.1f} → {self.findings.lengths[1]:.1f} tokens; {self._told()}")

    def _kill_operator(self, world: World) -> None:
        fault = self._fault("operator")
        with self._timed(fault):
            world.kill_operator()
            before = self._account.version
            self._until("the job to go on without an operator", lambda: self._account.version >= before + 2)
            fault.versions_meanwhile = self._account.version - before
            world.start_operator()
            reached = self._account.version
            self._until(
                "the operator to see the job's progress again",
                lambda: (world.operator_metric("rljob_operator_policy_version") or 0.0) >= reached,
            )
        self._say(f"the operator was killed and started again: {fault.versions_meanwhile} versions without it")

    def _kill_prometheus(self, world: World) -> None:
        fault = self._fault("prometheus")
        with self._timed(fault):
            before = self._account.version
            world.kill_prometheus()
            self._until("the operator to miss its metrics", lambda: self._condition("MetricsAvailable") != "True")
            self._until("the job to go on without metrics", lambda: self._account.version >= before + 1)
            fault.versions_meanwhile = self._account.version - before
            world.prometheus.start_again()
            self._until("metrics to be back", lambda: self._condition("MetricsAvailable") == "True")
        self._say(
            f"Prometheus was killed and started again: the operator missed it, and held for {fault.seconds:.0f} s"
        )

    def _remove(self, world: World) -> None:
        before = self._account
        removals = self._removals = Removals(world, self._check, self._say)
        self._waiting_for = "a busy sampler to remove, or its end"
        removals.remove(self._ways, serving=1)
        if self._wishes.by_hand:
            self._move_by_hand(world, removals)
        self._another_step()
        found, after = self.findings, self._account
        found.cut_in_removals = after.cut - before.cut
        logs = {r.name: self._server_log(r.name) for r in removals.done}
        found.unanswered_in_removals = sum(log.unanswered for log in logs.values())
        counted = cut_by_sampler(self._node.log(TEAM, f"{NAME}-trainers-0", "trainer"))
        found.cut_by_log_in_removals = sum(counted[pod] for pod in logs)
        found.compared_in_removals = Compared.of(counted, logs)
        took = sorted(r.took_s for r in removals.done if r.took_s is not None)
        self._say(
            f"{len(removals.done)} samplers were removed with {sum(r.running for r in removals.done)} samples running: "
            f"{found.cut_in_removals} cut, {after.lost} lost, {after.refused - before.refused} refused and asked for elsewhere; "
            f"a drain took {took[0]:.1f} to {took[-1]:.1f} s"
        )

    def _move_by_hand(self, world: World, removals: Removals) -> None:
        """Have the operator take a sampler away by its own transaction; it may be about to move by itself, and refuse."""
        while not any(removal.how == "move" for removal in removals.done):
            # Any of them may be the victim: each is to have something to lose.
            self._until("all samplers to be ready and busy", lambda: self._settled() and self._all_busy(world))
            fewer, more = len(world.pods("sampler")) - 1, len(world.pods("trainer")) + 1
            self._say(f"a move by hand, to {fewer} samplers and {more} trainers")

            def move(samplers: int = fewer, trainers: int = more) -> None:
                try:
                    told = world.move(samplers, trainers)
                except RuntimeError as error:
                    told = str(error)
                    self._say(told)
                with (self._output / "move.txt").open("a", encoding="utf-8") as file:
                    file.write(told)

            removals.remove_by_move(move)
            # Where it took none, the operator was about to move by itself: once that is done, it is asked again.
            self._check()
            time.sleep(1.0)

    def _settled(self) -> bool:
        return not self._history.moving and self._all_ready()

    def _all_busy(self, world: World) -> bool:
        return all(running_of(pod) for pod in world.pods("sampler"))

    def _kill_sampler(self, world: World) -> None:
        busy: list[Json] = []

        def found() -> bool:
            if not self._settled():
                return False
            busy[:] = [pod for pod in world.pods("sampler") if running_of(pod)]
            return bool(busy)

        self._until("a busy sampler, and all of them ready", found)
        pod = busy[0]
        name, before = pod["metadata"]["name"], self._account
        fault = self._fault("sampler")
        with self._timed(fault):
            world.node.kill(pod)

            def serves_again() -> bool:
                now = next((p for p in world.pods("sampler") if p["metadata"]["name"] == name), None)
                return now is not None and is_ready(now) and now["status"]["containerStatuses"][0]["restartCount"] > 0

            self._until(f"{name} to serve again", serves_again)
            self._until("its samples to be asked for again", lambda: self._account.retried > before.retried)
            self._another_step()
        after = self._account
        fault.cut, fault.versions_meanwhile = after.cut - before.cut, after.version - before.version
        if after.retried - before.retried < fault.cut:
            self.findings.broken.append("samples that the kill of a sampler cut were not all asked for again")
        self._say(f"{name} was killed: {fault.cut} samples were cut and asked for again, {after.lost} lost")

    def _measure(self, world: World) -> None:
        """Figures of the whole run, from the trainer's history and from Prometheus."""
        steps = self._steps()
        measured = dict(self.findings.measured)
        moves = [m for m in self._history.moves if m.committed]
        measured |= {
            "versions": len(steps),
            "meanResponseTokens": None
            if self.findings.lengths is None
            else [round(x, 1) for x in self.findings.lengths],
            "reward": [_rounded(_mean(s["reward"] for s in some)) for some in (steps[:10], steps[-10:])],
            "stalenessMean": _rounded(_mean(s["staleness_mean"] for s in steps)),
            "stalenessMax": max(s["staleness_max"] for s in steps),
            "ratioVariance": _rounded(_mean(s["ratio_variance"] for s in steps)),
            "updatedInFlight": _rounded(_mean(s["updated_in_flight"] for s in steps)),
            "periodSeconds": {
                "short": _rounded(_period(steps[5 : parts.GROWS_FROM])),
                "long": _rounded(_period(steps[-10:])),
            },
            "weightSyncSeconds": _rounded(_mean(s["sync_s"] for s in steps)),
            "movesCommitted": len(moves),
            "layoutLagSeconds": self._node.layout_lag_s,
            "drainLagSeconds": {"told": DRAIN_SETTLE_S, "notTold": DRAIN_LAG_S},
            "drainSeconds": [_rounded(r.took_s) for r in (self._removals.done if self._removals else ())],
        }
        window = "2m"
        for name, query in {
            "iterationSeconds": f"sum(rate(vllm:inter_token_latency_seconds_sum[{window}])) "
            f"/ sum(rate(vllm:inter_token_latency_seconds_count[{window}]))",
            "tokensPerSecond": f"sum(rate(vllm:generation_tokens_total[{window}]))",
            "kvCacheUsage": f"avg(avg_over_time(vllm:kv_cache_usage_perc[{window}]))",
        }.items():
            answer = world.prometheus.query(query)
            value = float(answer[0]["value"][1]) if answer else math.nan
            measured[name] = _rounded(value) if math.isfinite(value) else None
        self.findings.measured = measured

    # Looks

    @property
    def _account(self) -> Account:
        return Account.read(self._output / "shared" / "account.json")

    def _consistent_account(self) -> Account:
        """The account at a moment at which it adds up, if there is one soon: between two samples it may not."""
        account = self._account
        for _ in range(120):
            if not account.unaccounted:
                break
            time.sleep(LOOK_EVERY_S)
            account = self._account
        return account

    def _steps(self) -> list[Json]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self._output / "shared" / "history.jsonl").read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines]
        return []

    def _mean_length(self, *, last: int) -> float:
        steps = self._steps()[-last:]
        return float(sum(s["tokens"] for s in steps) / max(1, sum(s["samples"] for s in steps)))

    def _told(self) -> str:
        account = self._account
        return f"version {account.version}, {account.finished} samples finished, {self._ledger.held} of {parts.GPUS} GPUs held"

    def _all_ready(self) -> bool:
        world = self._world
        if world is None:
            return False
        samplers, trainers = world.pods("sampler"), world.pods("trainer")
        split = (self._history.status.get("plan") or {}).get("split")
        deployed = self._history.status.get("rebalance") is None and split is not None
        return bool(deployed and samplers and trainers and all(map(is_ready, [*samplers, *trainers])))

    def _condition(self, kind: str) -> str | None:
        conditions = self._history.status.get("conditions") or ()
        return next((c["status"] for c in conditions if c["type"] == kind), None)

    def _trainer_restarts(self, world: World) -> int:
        """How often the first trainer, which keeps the account, was started again; a new pod of its name counts as one."""
        first = next(pod for pod in world.pods("trainer") if pod["metadata"]["name"].endswith("-0"))
        uid = first["metadata"]["uid"]
        self._first_trainer = self._first_trainer or uid
        return int(first["status"]["containerStatuses"][0]["restartCount"]) + int(uid != self._first_trainer)

    def _server_log(self, pod: str) -> ServerLog:
        return ServerLog.of(self._node.log(TEAM, pod, "vllm"))

    # Waiting

    def _another_step(self) -> None:
        """The account is written with each step: what has happened is in the one after the next."""
        version = self._account.version
        self._until("another step", lambda: self._account.version >= version + 2)

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        self._waiting_for = what
        while True:
            with contextlib.suppress(ApiError, OSError):
                if condition():
                    return
            self._check()
            time.sleep(LOOK_EVERY_S)

    def _check(self) -> None:
        if self._world is not None:
            self._world.plane.supervisor.check()
        if time.monotonic() - self._began > self._limit_s:
            raise TimeoutError(f"{self._limit_s:.0f} s are over, while waiting for {self._waiting_for}; {self._told()}")

    def _fault(self, what: str) -> Fault:
        fault = Fault(what)
        self.findings.faults = [*self.findings.faults, fault]
        return fault

    @contextlib.contextmanager
    def _timed(self, fault: Fault) -> Iterator[None]:
        began = time.monotonic()
        yield
        fault.seconds, fault.survived = time.monotonic() - began, True


def _mean(values: Any) -> float | None:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else None


def _period(steps: Sequence[Json]) -> float | None:
    """Mean seconds between two versions, in a row of steps."""
    return None if len(steps) < 2 else (steps[-1]["at_s"] - steps[0]["at_s"]) / (len(steps) - 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def clean(output: Path) -> None:
    """Remove what an earlier run has left of this kind in the folder."""
    for name in ("shared", "pods"):
        shutil.rmtree(output / name, ignore_errors=True)
    for name in (
        "e2e.json",
        "describe.txt",
        "job.yaml",
        "calibration.yaml",
        "calibrate.txt",
        "move.txt",
        "operator.log",
    ):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(output / name)
