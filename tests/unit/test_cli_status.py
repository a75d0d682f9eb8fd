"""``rljob status``: what it shows of a job, how it follows one, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console
from rich.live import Live
from typer.testing import CliRunner, Result

from dev import schemas
from rljob_operator.cli import app, status_live
from rljob_operator.cli.status_view import rows
from rljob_operator.observation import epoch_s
from rljob_operator.overview import overview_of, parsed
from tests.unit.rljob_api import RLJobApi, serving
from tests.unit.rljob_objects import AT, condition, decision, move, running, split

Json = dict[str, Any]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLJobApi]:
    monkeypatch.setattr(status_live, "AGAIN_S", 0.01)
    with serving(tmp_path, monkeypatch) as found:
        yield found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["status", *arguments])


def told(job: Json, now_s: float | None = None) -> dict[str, str]:
    return dict(rows(overview_of(job["metadata"], *parsed(job)), now_s))


def test_one_job_is_told_in_rows(api: RLJobApi) -> None:
    api.put(running())
    result = run("math")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert text.startswith("rl/math: Running, mode Auto summary Runs 12×1 samplers + 1×4 trainers")
    for words in (
        "split 12/12 samplers of 1 GPU and 1/1 trainers of 4 GPUs ready; 16 of 16 GPUs held",
        "period 30.0 s",
        "staleness mean 2.10, max 5 (at most 4, by admission)",
        "queue 3 groups wait; 512 of 640 samples in flight",
        "steps 120 of 500 (24%), about 3.17 h to go at this pace",
        "responses 3,210 tokens in the mean",
        "AtOptimum",
    ):
        assert words in text
    # As kubectl names it, and with a namespace that is said.
    assert run("rljob/math", "-n", "rl").stdout == result.stdout


def test_a_move_is_told_with_its_phase_and_what_it_waits_for() -> None:
    waits = "samplers to finish their samples: math-samplers-x (3 running)"
    job = running(phase="Rebalancing", rebalance=move(waitingFor=waits, cause="ByHand"))
    found = told(job)
    assert found["move"] == "12×1 samplers + 1×4 trainers → 8×1 samplers + 2×4 trainers, by hand"
    assert (
        found["phase"] == f"Announce → [Drain] → Shrink → Grow → Verify, since {AT}, due by 2026-01-02T10:15:00.000000Z"
    )
    assert found["waits for"] == waits
    assert told(job, epoch_s(AT) + 30)["phase"].endswith("Verify, for 30.0 s, 14.5 min left")
    assert "overdue by 60.0 s" in told(job, epoch_s(AT) + 960)["phase"]
    back = told(running(phase="Rebalancing", rebalance=move(rollingBack=True, restart=True)))
    assert "back to 8×1" in back["move"]
    assert "Drain] → Checkpoint → Shrink" in back["phase"]


def test_what_needs_a_person_and_what_people_asked_for_are_told() -> None:
    asked = {
        "id": "a",
        "samplers": 99,
        "trainers": 1,
        "by": "anna",
        "at": AT,
        "outcome": "Refused",
        "message": "too many",
    }
    job = running(
        conditions=[condition("Degraded", "True", "PodsBroken", "math-samplers-x: look at its log")],
        moves={"requests": [asked]},
        decisions=[decision("RecommendOnly", to=split(8, 2))],
    )
    found = told(job)
    assert found["! Degraded"] == "PodsBroken: math-samplers-x: look at its log"
    assert found["asked"] == "99 + 1 by anna, 2026-01-02T10:00:00Z: was refused: too many"
    assert found["recommended"] == "8×1 samplers + 2×4 trainers"
    rests = running(phase="Suspended", conditions=[condition("Ready", "False", "Suspended", "set it to false")])
    assert not [key for key in told(rests) if key.startswith("!")]


def test_work_at_risk_is_told_although_the_job_is_planned() -> None:
    words = "8 + 2: period 10 s; work is at risk: --shutdown-timeout is 0: write 900"
    found = told(running(conditions=[condition("Planned", "True", "WorkAtRisk", words)]))
    assert found["! Planned"] == "WorkAtRisk: --shutdown-timeout is 0: write 900"


def test_a_job_of_which_nothing_is_known_yet_is_told_as_that() -> None:
    job = running()
    del job["status"]
    found = told(job)
    assert found["job"] == "rl/math: Pending, mode Auto"
    assert "split" not in found
    assert "period" not in found


def test_json_is_of_the_schema(api: RLJobApi) -> None:
    api.put(running(phase="Rebalancing", rebalance=move()))
    found = json.loads(run("math", "-o", "json").stdout)
    jsonschema.validate(found, schemas.schema("status"))
    assert (found["move"]["phase"], found["move"]["waitsFor"], found["gpusHeld"]) == ("Drain", None, 16)
    several = json.loads(run("-o", "json").stdout)
    assert several == {"items": [found]}


def test_several_jobs_are_a_line_each(api: RLJobApi) -> None:
    assert "there are no RLJobs in namespace rl" in run().stderr
    api.put(running())
    api.put(
        running("code", phase="Rebalancing", rebalance=move(), conditions=[condition("Degraded", "True", "X", "y")])
    )
    head, first, second = run().stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "SPLIT", "PERIOD", "STALENESS", "STEPS", "MOVE"]
    assert first.split()[:2] == ["math", "Running"]
    assert second.split()[:2] == ["code", "Rebalancing!"]
    assert second.endswith("Drain to 8×1 samplers + 2×4 trainers")
    wide = run("-A", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[0] == "NAMESPACE"
    assert "decides again every 60s" in wide[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("other",), "there is no such RLJob in namespace rl"),
        (("other", "-w"), "there is no such RLJob in namespace rl"),
        (("-A", "-n", "rl"), "leave out --namespace"),
        (("math", "-A"), "write -n NAMESPACE in place of -A"),
        (("math", "-w", "-o", "yaml"), "-o json prints a line a change"),
        (("pods/x",), "this is no name of an RLJob"),
    ],
)
def test_mistakes_are_told(api: RLJobApi, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_what_a_user_may_not_read_is_said(api: RLJobApi) -> None:
    api.forbidden = True
    for arguments in (("math",), ("-w",)):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "ask for the view role" in result.stderr


def test_a_status_of_another_version_is_said(api: RLJobApi) -> None:
    api.put(running(phase="Dreaming"))
    result = run("math")
    assert result.exit_code == 2
    assert "written by another version of the operator (phase)" in result.stderr
    # It hides no other.
    api.put(running("code"))
    several = run()
    assert [line.split()[0] for line in several.stdout.splitlines()] == ["NAME", "code"]
    assert "written by another version" in several.stderr


def following(api: RLJobApi, *arguments: str, meanwhile: Callable[[], None]) -> Result:
    """Follows in this thread what another one does."""

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        return run(*arguments, "-w")
    finally:
        thread.join()


def test_a_pipe_gets_what_changes_and_ends_with_the_job(api: RLJobApi) -> None:
    api.put(running())
    api.breaks_watches = 2

    def meanwhile() -> None:
        api.status("math", phase="Rebalancing", rebalance=move("Announce"))
        api.status("math", rebalance={"phase": "Drain", "waitingFor": "samplers"})
        api.status("math", phase="Complete", rebalance=None)

    result = following(api, "math", meanwhile=meanwhile)
    assert result.exit_code == 0, result.stderr
    lines = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()]
    jobs = [line for line in lines if line.startswith("job")]
    assert jobs[-1] == "job           rl/math: Complete, mode Auto"
    # What does not change is said once.
    assert sum(line.startswith("split") for line in lines) == 1


def test_json_lines_and_a_job_that_goes(api: RLJobApi) -> None:
    api.put(running())
    result = following(api, "math", "-o", "json", meanwhile=lambda: api.remove("math"))
    if result.exit_code == 2:
        # It went before the first look.
        assert "there is no such RLJob" in result.stderr
        return
    assert result.exit_code == 0
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] in (["math"], [])
    assert "rljob/math is gone" in result.stderr


def test_ending_it_by_hand_is_no_failure(api: RLJobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(running())

    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rljob_operator.cli.status._into_pipe", interrupted)
    assert run("math", "-w").exit_code == 0


def test_wide_shows_all_decisions_that_are_kept(api: RLJobApi) -> None:
    api.put(running(decisions=[decision("Uncertain", f"number {i}") for i in range(10)]))
    assert run("math").stdout.count("number") == 4
    assert run("math", "-o", "wide").stdout.count("number") == 10


def test_a_plan_of_another_split_says_nothing_of_the_period_in_force() -> None:
    spread = {"mean": 28.0, "p10": 27.0, "p50": 28.0, "p90": 29.0}
    plan = {
        "period": spread, "staleness": {"mean": 2.0, "p95": 3.0, "max": 4.0}, "runTime": {"p10": 1.0, "p50": 2.0, "p90": 3.0},
        "bottleneck": "samplers", "placeableGpus": 16, "plannedAt": AT,
    }  # fmt: skip
    assert told(running(plan={**plan, "split": split()}))["period"] == "30.0 s (28.0 s planned)"
    assert told(running(plan={**plan, "split": split(8, 2)}))["period"] == "30.0 s"


@pytest.mark.parametrize("name", ["math", None])
def test_what_a_terminal_shows(name: str | None) -> None:
    from rljob_operator.cli import status as command

    job = running(phase="Rebalancing", rebalance=move(waitingFor="samplers"))
    out = io.StringIO()
    with Live(console=Console(file=out, force_terminal=True, width=160, color_system=None), auto_refresh=False) as live:
        command._draw(live, [], name, command.StatusOutput.TABLE, "rl")
        command._draw(live, [overview_of(job["metadata"], *parsed(job))], name, command.StatusOutput.TABLE, "rl")
    assert "Rebalancing" in out.getvalue()
    assert ("[Drain]" if name else "Drain to 8×1 samplers") in out.getvalue()


def test_a_terminal_is_drawn_anew(api: RLJobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from rljob_operator.cli import status as command

    drawn = []
    api.put(running(phase="Complete"))
    monkeypatch.setattr(command, "_draw", lambda live, jobs, *rest: drawn.append([job.phase.value for job in jobs]))

    async def draws() -> None:
        from rljob_operator.cluster import Cluster

        cluster = await Cluster.connect()
        try:
            states = command._states(cluster, "rl", "math")
            await command._on_terminal(states, "math", command.StatusOutput.TABLE, "rl")
        finally:
            await cluster.close()

    asyncio.run(draws())
    assert drawn == [["Complete"]]
