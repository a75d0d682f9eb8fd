"""People who ask for moves by hand, and who look that each request is answered once and carried out once.

A request stays on the job after it was answered, so that every pass and every new process of the operator sees it again. Requests are good
ones, impossible ones, old ones, scribbles; some are taken back, some are put there again after they were answered.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict

from dev.virtual.cluster import VirtualCluster
from dev.virtual.ledger import Ledger, Violation
from dev.virtual.store import Json
from rljob_operator.byhand import ANNOTATION, read
from rljob_operator.rebalance import timestamp

_ENDED = frozenset({"Done", "RolledBack", "Refused"})


class People:
    """Those who move the jobs of a cluster by hand."""

    def __init__(self, cluster: VirtualCluster, ledger: Ledger, rng: random.Random) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._rng = rng
        self._count = 0
        self._moves: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.answers: dict[tuple[str, str], str] = {}
        """What was answered last to each request, by the job's uid and its own id."""
        self._asked: list[str] = []
        cluster.store.watch(self._seen)

    def ask(self, job: Json, a: float, b: float) -> None:
        """Somebody asks for a move of a job, takes a request back, or puts an old one there again."""
        if b < 0.1:
            self._annotate(job, None)
        elif b < 0.2:
            self._annotate(job, self._rng.choice(("{", "{}", "[]", "later", '{"id":"x","samplers":0}')))
        elif b < 0.3 and self._asked:
            self._annotate(job, self._rng.choice(self._asked))
        else:
            self._annotate(job, self._request(job, a, b))

    def _request(self, job: Json, a: float, b: float) -> str:
        spec = job["spec"]
        width, trainer_width = (int(spec[role]["gpusPerReplica"]) for role in ("sampler", "trainer"))
        trainers = 1 + int(3 * a)
        room = max(1, (int(spec["gpus"]) - trainers * trainer_width) // width)
        samplers = room if b < 0.8 else 1 + int(2 * room * self._rng.random())
        self._count += 1
        age_s = 1000.0 if b > 0.95 else self._rng.uniform(0.0, 5.0)
        request = {
            "id": f"request-{self._count}",
            "samplers": samplers,
            "trainers": trainers,
            "at": timestamp(self._cluster.clock.now_s - age_s),
            "by": "anna",
            "uid": job["metadata"]["uid"] if self._rng.random() < 0.7 else "",
        }
        text = json.dumps(request)
        self._asked.append(text)
        return text

    def _annotate(self, job: Json, text: str | None) -> None:
        meta = job["metadata"]
        patch = {"metadata": {"annotations": {ANNOTATION: text}}}
        self._cluster.store.merge("rljobs", meta["namespace"], meta["name"], patch)

    def _seen(self, event: str, plural: str, obj: Json) -> None:
        if plural != "rljobs" or event == "DELETED":
            return
        uid, status = obj["metadata"]["uid"], obj.get("status") or {}
        move = status.get("rebalance") or {}
        if move.get("request"):
            ids = self._moves[uid, move["request"]]
            ids.add(move["id"])
            if len(ids) > 1:
                self._say("repeated", f"{move['request']} was carried out {len(ids)} times")
        for answer in (status.get("moves") or {}).get("requests") or ():
            key, outcome = (uid, answer["id"]), answer["outcome"]
            before = self.answers.get(key)
            if before in _ENDED and outcome != before:
                self._say("answered", f"{answer['id']} was {before} and is now {outcome}")
            self.answers[key] = outcome

    def _say(self, rule: str, message: str) -> None:
        self._ledger.violations.append(Violation(self._cluster.clock.now_s, rule, message))


def unanswered(job: Json) -> str | None:
    """The request on a job that nobody has answered or whose move is over unsaid, None if there is none."""
    status = job.get("status") or {}
    answers = {a["id"]: a["outcome"] for a in (status.get("moves") or {}).get("requests") or ()}
    if status.get("rebalance") is None and "Accepted" in answers.values():
        return f"a request counts as under way without a move: {answers}"
    request = read(job["metadata"])
    if request is None or request.id in answers:
        return None
    return f"nobody has answered {job['metadata']['annotations'][ANNOTATION]}"
