"""``rljob latency``: the time per output token that a served model shows its clients."""

from __future__ import annotations

from typing import Annotated

import typer

from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report, say

EXAMPLES = (
    "rljob latency --model Qwen/Qwen3-32B --gpu H100 --tp 4 --isl 1024 --osl 1024 --batch 8,16,32",
    "rljob latency --model ./config.json --gpu h200_sxm --tp 8 --isl 8192 --osl 1024 --batch 64 --precision fp8 -o json",
)


def latency(
    model: Annotated[str, typer.Option(help="Name of a model, or path to its config.json.")],
    gpu: Annotated[str, typer.Option(help="GPU type: H100, h200_sxm, or what nvidia.com/gpu.product says.")],
    isl: Annotated[int, typer.Option(help="Tokens of a prompt.")],
    osl: Annotated[int, typer.Option(help="Tokens of a response.")],
    batch: Annotated[str, typer.Option(help="Requests in flight, several with commas: 8,16.")],
    tp: Annotated[int, typer.Option(help="GPUs of a replica (tensor parallelism).")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Format of the weights: bf16, fp16, fp8, fp8_block, mxfp4, nvfp4; default: what the name says (-FP8), or else the published checkpoint's own."
        ),
    ] = None,
    kv_precision: Annotated[
        str | None,
        typer.Option(help="Format of the KV cache: bf16, fp16 or fp8; default: what engines take with such weights."),
    ] = None,
    ep: Annotated[int, typer.Option(help="GPUs that whole experts are dealt out to (expert parallelism).")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Predict the mean time per output token of a served model, the prefill of other requests included."""
    from rljob_planner.errors import PlanningError
    from rljob_planner.hardware import gpu as gpu_named
    from rljob_planner.models import format_in, resolve
    from rljob_planner.precision import kv_format
    from rljob_planner.serving import kv_format_of, served, weight_format_of
    from rljob_planner.steptime import Engine

    try:
        batches = [int(part) for part in batch.split(",") if part.strip()]
    except ValueError:
        fail(f"--batch {batch!r}: write numbers of requests with commas, such as 8,16")
    try:
        shape = resolve(model)
        weights = weight_format_of(precision or format_in(model), shape)
        engine = Engine(
            shape,
            gpu_named(gpu),
            tp,
            weights.name,
            kv_format(kv_precision) if kv_precision else kv_format_of(weights),
            ep,
        )
        points = served(engine, isl, osl, batches)
    except PlanningError as error:
        fail(in_options(str(error)))
    bound = [p.batch for p in points if p.kv_bound]
    if bound:
        say(
            [
                f"KV room holds fewer requests than {', '.join(map(str, bound))}: the others wait, and do not slow the running ones"
            ]
        )
    if tp > engine.gpu.island_gpus:
        say(
            [
                f"{tp} GPUs are more than the {engine.gpu.island_gpus} that reach each other without the network, which each layer then waits for"
            ]
        )
    if output is Output.TABLE:
        from rich.table import Table

        table = Table(title=f"{shape.name} in {engine.format.name} on {tp} × {engine.gpu.name}, {isl} + {osl} tokens")
        for column in ("requests in flight", "decoding", "ms per token", "ms to first token", "tokens/s"):
            table.add_column(column, justify="right")
        for p in points:
            table.add_row(
                str(p.batch),
                f"{p.decoding:.1f}",
                f"{p.tpot_s * 1e3:.2f}",
                f"{p.ttft_s * 1e3:.0f}",
                f"{p.decoding / p.tpot_s:.0f}",
            )
        print_report(table)
        return
    from rljob_planner._latency_json import LatencyJson

    print_data(LatencyJson.of(points).model_dump(mode="json"), output)


def in_options(message: str) -> str:
    """A message of the planner in the words of this command."""
    return (
        message.replace(
            "put the fields of its config.json", "give the path to its config.json as --model; it needs the fields"
        )
        .replace(" under spec.model.config instead of spec.model.name", "")
        .replace(" in spec.accelerator", " as --gpu")
    )
