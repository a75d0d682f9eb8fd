"""``rljob calibrate``: constants of the decode step from benchmarks, or from a live server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_operator.cli.console import OPERATOR_EXTRA, Output, fail, print_data, print_report
from rljob_operator.cli.latency import in_options

if TYPE_CHECKING:
    from rljob_operator.profile import Load, Profile
    from rljob_planner._calibration_json import CalibrationJson
    from rljob_planner.models import ModelShape

EXAMPLES = (
    "rljob calibrate results/*.json --gpu H100-SXM -o calibration.yaml",
    "rljob calibrate sweep-results/20261129_115733 --model Qwen/Qwen3-8B --gpu H200 --tp 2",
    "rljob calibrate forward.json --case decode=32*1@8192 --model Qwen/Qwen3-8B --gpu H100-SXM",
    "rljob calibrate --url http://localhost:8000 --gpu H100-SXM --concurrency 1,8,64 --prompt-tokens 128,2048 -o calibration.yaml",
    "rljob calibrate --url http://localhost:8000 --model ./model --tp 4 -o calibration.yaml",
    "rljob plan job.yaml --calibration calibration.yaml",
)


def calibrate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|FOLDER]...",
            help="Results of vllm bench serve (--save-result) or forward (--output-json), folders of vllm bench sweep.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="GPU type that was measured, such as H100-SXM; leave it out for an accelerator without a data sheet here: what is "
            "measured is then kept as it is.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model, by name or as a path to its config.json; by default what the benchmark or server says.",
            show_default=False,
        ),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, max=64, help="Tensor-parallel width of the engine.")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Number format of the weights: bf16, fp16, fp8, fp8_block, mxfp4, nvfp4; default: what the model's name says "
            "(-FP8), or else the published checkpoint's own."
        ),
    ] = None,
    kv_cache: Annotated[str, typer.Option(help="Number format of the KV cache: bf16, fp16 or fp8.")] = "bf16",
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SHAPE as given to vllm bench forward, where its result does not repeat it.", show_default=False
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Measure this live server (OpenAI API), which nobody else should use meanwhile.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="With --url: requests at a time, one level after the other.")
    ] = "1,4,16",
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="With --url: requests of a level over all rounds; by default three times its concurrency in each.",
            show_default=False,
        ),
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option(help="With --url: lengths of prompts; several tell memory bandwidth from the rest.")
    ] = "128",
    response_tokens: Annotated[int, typer.Option(min=8, max=100_000, help="With --url: length of responses.")] = 128,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="With --url: how often all levels are gone through, there and back; the median counts."
        ),
    ] = 2,
    max_seconds: Annotated[float, typer.Option(min=1.0, max=86_400.0, help="With --url: time for everything.")] = 120.0,
    efficiency: Annotated[
        str | None,
        typer.Option(
            help="Speed of samplers in a running job over their engine's alone, such as 80%, until the job shows it; by default as "
            "published RL systems have it.",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RLJOB_API_KEY", help="With --url: the server's API key.", show_default=False)
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="table, json or yaml; or a file to write the calibration to.")
    ] = "table",
) -> None:
    """Fit the planner's decode constants to measurements of your engine, and say how well they fit."""
    from rljob_planner._calibration_json import MeasuredOnJson, calibration_of, calibration_of_seconds
    from rljob_planner.bench_files import read_benchmarks
    from rljob_planner.errors import PlanningError
    from rljob_planner.fit import fit
    from rljob_planner.fit_seconds import fit_seconds
    from rljob_planner.hardware import gpu as known_gpu
    from rljob_planner.steptime import Engine

    if not files and url is None:
        fail("there is nothing to calibrate with: give results of vllm bench, or a live server with --url")
    share = None if efficiency is None else _share("--efficiency", efficiency)
    try:
        found = read_benchmarks(files or (), _cases(case or []))
        rows, skipped, names, kv_tokens = list(found.rows), list(found.skipped), list(found.models), None
        if url is not None:
            load = _load(concurrency, requests, prompt_tokens, response_tokens, max_seconds, rounds)
            # A path says which model it is; only a name can be one that the server has.
            named = None if model is None or Path(model).exists() else model
            measured = _profile(url, load, named, api_key)
            rows += measured.rows
            skipped += measured.skipped
            names.append(measured.model)
            kv_tokens = measured.kv_tokens
            for note in measured.notes:
                typer.echo(f"rljob: {note}", err=True)
        if not rows:
            fail("nothing of this can be used:\n" + "\n".join(f"{source}: {reason}" for source, reason in skipped))
        shape, weights, kv = _model(model, names, tp, precision, kv_cache)
        if gpu is None:
            typer.echo(
                "rljob: without --gpu what was measured is kept as it is; the name of a GPU that has a data sheet here would carry it over to "
                "other widths, contexts and batches",
                err=True,
            )
            on = MeasuredOnJson(
                model=shape.name, parameters=shape.parameters, tensor_parallel=tp, weights=weights, kv_cache=kv
            )
            document = calibration_of_seconds(fit_seconds(rows, shape), on, kv_tokens, skipped, share)
        else:
            engine = Engine(shape, known_gpu(gpu), tp, weights, kv)
            document = calibration_of(fit(engine, rows), kv_tokens, skipped, share)
    except PlanningError as error:
        fail(in_options(str(error)))
    _write(document, output)


def _write(document: CalibrationJson, output: str) -> None:
    """Prints the calibration, or writes it to a file and prints the report."""
    from rljob_planner.calibration_report import calibration_report

    if output in (Output.JSON, Output.YAML):
        print_data(document.to_json(), Output(output))
        return
    print_report(calibration_report(document))
    if output == Output.TABLE:
        return
    import yaml

    path = Path(output)
    if path.suffix not in (".yaml", ".yml", ".json"):
        fail(f"--output: {output!r} is neither table, json or yaml nor a file that ends with .yaml or .json")
    if path.suffix == ".json":
        text = document.model_dump_json(by_alias=True, indent=2) + "\n"
    else:
        text = yaml.safe_dump(
            document.to_json(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {(error.strerror or str(error)).lower()}")
    if document.pegged:
        typer.echo(
            f"rljob: written to {path}, but a constant stands at its limit: measure again before planning with it",
            err=True,
        )
        return
    typer.echo(f"written to {path}: rljob plan job.yaml --calibration {path}", err=True)


def _model(
    model: str | None, names: list[str], tp: int, precision: str | None, kv_cache: str
) -> tuple[ModelShape, str, str]:
    """The model that was measured, and the number formats of its weights and of the KV cache."""
    from rljob_planner.errors import PlanningError
    from rljob_planner.models import format_in, resolve
    from rljob_planner.precision import kv_format, weight_format
    from rljob_planner.serving import weight_format_of

    if model is None and len(dict.fromkeys(names)) != 1:
        several = f" of several models ({', '.join(dict.fromkeys(names))})" if names else ""
        fail(f"say which model was measured with --model: these are rows{several or ' without a name'}")
    try:
        shape = resolve(model or names[0])
    except PlanningError as error:
        said = in_options(str(error))
        if model is None:
            said = said.replace(
                " is not known;", ", as the benchmark calls it, is not known: say which it is with --model;"
            )
        fail(said)
    precision = precision or format_in(model or names[0])
    for option, value, known in (
        ("--precision", precision or shape.native, weight_format),
        ("--kv-cache", kv_cache, kv_format),
    ):
        try:
            known(value)
        except PlanningError as error:
            fail(f"{option}: {error}")
    if not shape.tensor_parallel_fits(tp):
        fail(f"--tp: {shape.name} has {shape.heads} attention heads, which {tp} GPUs cannot share evenly")
    return shape, weight_format_of(precision, shape).name, kv_format(kv_cache)


def _share(option: str, text: str) -> float:
    """A percent as a fraction."""
    try:
        share = float(text.removesuffix("%")) / 100.0
    except ValueError:
        share = 0.0
    if not text.endswith("%") or not 0.0 < share <= 2.0:
        fail(f"{option}: {text!r} is no percent above 0% and up to 200%, such as 80%")
    return share


def _cases(given: list[str]) -> dict[str, str]:
    cases = {}
    for text in given:
        name, separator, shape = text.partition("=")
        if not separator or not name or not shape:
            fail(f"--case: {text!r} is not NAME=SHAPE, such as decode=32*1@8192")
        cases[name] = shape
    return cases


def _load(concurrency: str, requests: int | None, prompts: str, response: int, max_s: float, rounds: int) -> Load:
    with_operator_extra()
    from rljob_operator.profile import Load

    return Load(
        _numbers("--concurrency", concurrency, 4096),
        requests,
        _numbers("--prompt-tokens", prompts, 1_000_000),
        response,
        max_s,
        rounds,
    )


def _numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    try:
        values = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(1 <= v <= most for v in values):
        fail(f"{option}: {text!r} is no list of whole numbers from 1 to {most}, such as 1,8,64")
    return values


def with_operator_extra() -> None:
    """Ends with a word about it if what speaks HTTP is not installed."""
    try:
        import aiohttp  # noqa: F401
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in OPERATOR_EXTRA:
            raise
        fail(f"this needs {error.name}, which is not installed: pip install 'rljob-operator[operator]'")


def _profile(url: str, load: Load, model: str | None, api_key: str | None) -> Profile:
    """Measures the server, with a line of progress on stderr."""
    import asyncio

    from rljob_operator.completions import ProfileError
    from rljob_operator.profile import profile

    if not url.startswith(("http://", "https://")):
        fail(f"--url: {url!r} is no URL of a server, such as http://localhost:8000")
    try:
        if not sys.stderr.isatty():
            return asyncio.run(
                profile(
                    url,
                    load,
                    model=model,
                    api_key=api_key,
                    progress=lambda text: typer.echo(f"measuring: {text}", err=True),
                )
            )
        from rich.console import Console

        with Console(stderr=True).status("measuring") as status:
            return asyncio.run(
                profile(
                    url, load, model=model, api_key=api_key, progress=lambda text: status.update(f"measuring: {text}")
                )
            )
    except ProfileError as error:
        fail(f"--url: {error}")
