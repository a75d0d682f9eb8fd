"""``rljob diagnose``: where a running job's period goes, from its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_operator.cli.calibrate import with_operator_extra
from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report, say, with_simulator

if TYPE_CHECKING:
    from rljob_operator.cli.cases import Case
    from rljob_operator.evidence import Recording
    from rljob_planner.advise import Expected
    from rljob_planner.observation import Observation
    from rljob_planner.split import Split

EXAMPLES = (
    "rljob diagnose rljob/math -n research --prometheus http://localhost:9090",
    "rljob diagnose --prometheus http://localhost:9090 --selector 'namespace=\"research\"' --window 30m",
    "rljob diagnose before.txt after.txt --interval 60s --job job.yaml",
    "rljob diagnose scrapes/ --interval 15s -o json",
    "rljob diagnose range-query.json --job job.yaml --split 8x2+2x8",
)

CASE_OPTIONS_HELP = "The job, to tell groups from samples and to set the model beside what was measured."


def diagnose(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|FOLDER|rljob/NAME]...",
            help="Scrapes as /metrics shows them, in order; a folder of them, with a subfolder for each pod; "
            "JSON of Prometheus's query_range; or a job on the cluster.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Read from this Prometheus; of a live job by default the one it names.",
            show_default=False,
        ),
    ] = None,
    selector: Annotated[
        str,
        typer.Option(
            help='With --prometheus: labels of the job\'s series, such as rljob_dev_name="math".', show_default=False
        ),
    ] = "",
    window: Annotated[str, typer.Option(help="With --prometheus: how far to look back; several periods.")] = "10m",
    interval: Annotated[
        str | None, typer.Option(help="Time between two recorded scrapes, such as 15s.", show_default=False)
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="FILE", help=CASE_OPTIONS_HELP, show_default=False)] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SAMPLERS+TRAINERS",
            help="With --job: the split that it runs on, such as 8x2+2x8; by default the planned one.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N×GPUS", help="With --job: its nodes, as for rljob plan.", show_default=False)
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --job: what rljob calibrate wrote.", show_default=False),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of a live job.", show_default=False)
    ] = None,
) -> None:
    """Explain where the period of a running job goes, which side bounds it, and what to change first."""
    from rljob_operator.cli.cases import Options, case_of
    from rljob_planner._diagnosis_json import diagnosis_json
    from rljob_planner.diagnose import diagnose as explain
    from rljob_planner.diagnosis_report import diagnosis_report

    with_operator_extra()
    named = [s for s in sources or () if s.startswith(("rljob/", "rljobs/", "rlj/")) and not Path(s).exists()]
    files = [s for s in sources or () if s not in named]
    if not files and not named and prometheus is None:
        fail("say what to look at: recorded scrapes, --prometheus URL, or rljob/NAME for a job on the cluster")
    for source in files:
        if source.startswith(("http://", "https://")):
            fail(
                f"{source}: this is a URL and no recording: read from a Prometheus with --prometheus, or save what a pod shows at "
                "/metrics with curl, at least twice"
            )
    if len(named) > 1 or (named and job is not None):
        fail("there is one job to diagnose: name it once")
    if split is not None and job is None:
        fail("--split: is of --job FILE")
    case, in_force, uid, url = None, None, "", prometheus
    if named:
        case, in_force, uid, wished = _live(named[0].partition("/")[2], namespace, calibration)
        url = prometheus or wished
        if url is None and not files:
            fail(f"{named[0]}: it names no Prometheus (spec.metrics.prometheus): give one with --prometheus URL")
    elif job is not None:
        case = case_of(job, Options(nodes=nodes, calibration=calibration))
    if files:
        recording = _recorded(files, interval)
    else:
        recording = _from_prometheus(
            str(url), ",".join(p for p in (f'rljob_dev_uid="{uid}"' if uid else "", selector) if p), window
        )
    from rljob_operator.evidence import observation

    seen = observation(recording)
    words: list[str] = []
    expected = None
    if case is not None:
        expected, words = _expected(case, split, in_force, seen)
    found = explain(
        seen,
        expected,
        samples_per_prompt=None if case is None else case.spec.workload.samples_per_prompt,
    )
    if case is not None and not found.compared:
        words.append("nothing of what the model says of this job was measured, so it stands beside nothing")
    if output is not Output.TABLE:
        say(words)
        print_data(diagnosis_json(found), output)
        return
    from rljob_planner.durations import seconds

    over = f"{seen.scrapes} scrape{'' if seen.scrapes == 1 else 's'}" + (
        "" if seen.window_s is None else f" over {seconds(seen.window_s)}"
    )
    name = case.name if case is not None else ", ".join(files) or str(url)
    print_report(diagnosis_report(found, f"{name}: {over}"))
    say(words)


def _recorded(files: list[str], interval: str | None) -> Recording:
    from rljob_operator.recordings import RecordingError, read_recording

    try:
        return read_recording(files, None if interval is None else _duration("--interval", interval))
    except RecordingError as error:
        fail(str(error))


def _duration(option: str, text: str) -> float:
    from rljob_operator.recordings import LEAST_INTERVAL_S
    from rljob_planner.api.base import duration_s

    try:
        value = duration_s(text)
    except ValueError as error:
        fail(f"{option}: {error}")
    if value < LEAST_INTERVAL_S:
        fail(f"{option}: {text} is too short between two scrapes, or to look back: metrics are means over many steps")
    return value


def _from_prometheus(url: str, selector: str, window: str) -> Recording:
    """What a live Prometheus has."""
    import asyncio
    import time

    import aiohttp

    from rljob_operator.prometheus import Prometheus, PrometheusError
    from rljob_operator.recordings import RecordingError, record

    window_s = _duration("--window", window)
    if not url.startswith(("http://", "https://")):
        fail(f"--prometheus: {url!r} is no URL, such as http://localhost:9090")

    async def ask() -> Recording:
        async with aiohttp.ClientSession() as session:
            return await record(Prometheus(session, url, timeout_s=30.0), selector, at=time.time(), window_s=window_s)

    try:
        return asyncio.run(ask())
    except PrometheusError as error:
        fail(
            f"{error}; from outside of the cluster: kubectl port-forward to it, and --prometheus http://localhost:9090"
        )
    except RecordingError as error:
        fail(str(error))


def _live(name: str, namespace: str | None, calibration: Path | None) -> tuple[Case, Split | None, str, str | None]:
    """A job on the cluster: its case, the split in force, its uid, and the Prometheus that it names."""
    import asyncio

    from rljob_operator.cli.cases import Options, case_of
    from rljob_operator.cli.live import look
    from rljob_operator.cluster import ClusterError
    from rljob_planner.split import Split

    try:
        seen = asyncio.run(look(name, namespace, survey=False))
    except ClusterError as error:
        fail(f"rljob/{name}: {error.message}")
    case = case_of(None, Options(live=name, namespace=namespace, calibration=calibration))
    obj: dict[str, Any] = seen.job or {}
    status = obj.get("status") or {}
    split = status.get("split")
    return (
        case,
        None if split is None else Split.model_validate(split),
        str(obj.get("metadata", {}).get("uid", "")),
        case.spec.metrics.prometheus if case.spec.metrics else None,
    )


def _expected(
    case: Case, wished: str | None, in_force: Split | None, seen: Observation
) -> tuple[Expected | None, list[str]]:
    """What the model says of the job, and words about which split that is of."""
    from rljob_planner.errors import PlanningError
    from rljob_planner.expectation import expectation

    words: list[str] = [*case.words]
    chosen = in_force
    if chosen is None:
        plan = case.plan(detail=False)
        chosen = plan.split if wished is None else _candidate(wished, [plan.split, *(c.split for c in plan.candidates)])
        if wished is None:
            words.append(
                f"the model is of the planned split, {chosen.label()}: say with --split if the job runs on another"
            )
    try:
        return (
            with_simulator(
                "Simulating",
                lambda: expectation(
                    case.spec, chosen, case.rooms, seen, calibration=case.calibration, lengths=case.lengths
                ),
            ),
            words,
        )
    except PlanningError as error:
        return None, [*words, f"no comparison with the model: {error}"]


def _candidate(wished: str, splits: list[Split]) -> Split:
    """The split that a user names by its replicas and GPUs, such as 8x2+2x8."""
    import re

    match = re.fullmatch(r"(\d+)[x×](\d+)\+(\d+)[x×](\d+)", wished.replace(" ", ""))
    if match is None:
        fail(f"--split: {wished!r} is not SAMPLERS+TRAINERS in replicas × GPUs, such as 8x2+2x8")
    samplers, sampler_gpus, trainers, trainer_gpus = (int(part) for part in match.groups())
    wished_shape = (samplers, sampler_gpus, trainers, trainer_gpus)

    def shape(split: Split) -> tuple[int, int, int, int]:
        s, t = split.samplers, split.trainers
        return s.replicas, s.gpus_per_replica, t.replicas, t.gpus_per_replica

    found = next((split for split in splits if shape(split) == wished_shape), None)
    if found is None:
        near = ", ".join(dict.fromkeys(split.label() for split in splits[:5]))
        fail(f"--split: {wished} is none that this job could have on these nodes; it could be {near}")
    return found
