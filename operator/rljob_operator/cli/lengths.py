"""``rljob lengths``: what a log of response lengths says, and what it does not."""

from __future__ import annotations

from typing import Annotated

import typer

from rljob_operator.cli.console import Output, OutputOption, fail, print_data, print_report

EXAMPLES = (
    "rljob lengths samples.jsonl",
    "rljob lengths samples.jsonl.gz --max 32768 -o json",
    "zcat rollouts.jsonl.gz | rljob lengths -",
)


def lengths(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL with a response a line, gzipped or not, or - for stdin.")
    ],
    output: OutputOption = Output.TABLE,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, help="Cap on a response in tokens, where it is not that of the log.", show_default=False
        ),
    ] = None,
) -> None:
    """Fit a law to the response lengths of a run's log, and say where the log does not support it.

    A line of the log is a number of tokens, or an object such as {"response_length": 812, "prompt_id": 17, "step": 3,
    "finish_reason": "stop"}, of which only the length is needed. Logs in the Mooncake format are read, too.
    """
    from rljob_planner.lengths import MAX_TOKENS
    from rljob_planner.traces import InvalidTraceError, fitted, parse_lengths, read_lengths

    if max_tokens is not None and max_tokens > MAX_TOKENS:
        fail(f"--max: at most {MAX_TOKENS} tokens, not {max_tokens}")
    try:
        if file == "-":
            trace = parse_lengths(typer.get_text_stream("stdin", encoding="utf-8").read(), "stdin")
        else:
            trace = read_lengths(file)
    except InvalidTraceError as error:
        fail(str(error))
    found = fitted(trace, max_tokens)
    if output is not Output.TABLE:
        print_data(found.to_json(), output)
        return
    from rljob_planner.length_report import lengths_report

    print_report(lengths_report(found, trace))
