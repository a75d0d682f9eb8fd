"""A measured run made definite: which shapes, how the GPUs are divided, and which of the planner's rules its knobs mean.

Systems bound staleness in their own units. What they have in common is how far samplers may run ahead of the trainer, so each knob
becomes that: batches that may be started beyond the one in training (admission), or an age at which groups are thrown away
(drop). What a row leaves open that a prediction needs is assumed here, once, and said in the notes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from rljob_planner.errors import PlanningError
from rljob_planner.hardware import Gpu
from rljob_planner.memory import kv_room_tokens
from rljob_planner.models import ModelShape
from rljob_planner.split import TrainerSplit
from rljob_planner.steptime import Engine
from rljob_planner.training import TrainerSetup, parallelism
from rljob_planner.validation.cases import Case, StalenessRule
from rljob_planner.validation.names import gpu_of, shape_of

PROMPT_TOKENS = 200
"""Prompt length where none is stated: mathematics problems, which most rows train on, have 100 to 300 tokens."""
_USUAL_GROUP = 8
"""Samples of a prompt where only their number in a batch is stated."""
_LEAST_RUNNING_PER_REPLICA = 8
_MOST_TENSOR_PARALLEL = 64

SYNC, ONE_STEP_OFF, ASYNC = "sync", "one-step-off", "async"


class Missing(Exception):  # noqa: N818 - an answer, not a fault
    """A field that a prediction needs is null in the file."""

    def __init__(self, *fields: str) -> None:
        are = "is" if len(fields) == 1 else "are"
        super().__init__(f"{', '.join(fields)} {are} null in the file")


@dataclass(frozen=True)
class Setting:
    """A run as the planner sees it; lengths and factors come on top."""

    case: Case
    model: ModelShape
    engine: Engine
    replicas: int
    setup: TrainerSetup
    trainer: TrainerSplit
    mode: str
    colocated: bool
    """Whether the same GPUs sample and train in turn."""
    overlapped: bool
    """Colocated, but samples that are not done go on in the next turn, so that no turn waits for its tail."""
    bound: str
    run_ahead: float
    """Batches that may be started beyond the one in training (``admission``), or the age in versions that is dropped."""
    prompts: int
    group: int
    prompt_tokens: int
    cap_tokens: int
    """Longest response."""
    mini_batch: int | None = None
    """Samples of one optimizer step, where the row or its family states them."""
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.prompts * self.group

    @property
    def streamed(self) -> bool:
        """Whether the trainer takes its batch in parts while the rest of it is generated."""
        return self.mode == ASYNC and self.rule.streamed

    @property
    def rule(self) -> StalenessRule:
        """The row's own staleness rule."""
        return self.case.staleness


def setting_of(case: Case, *, defaults: Case | None = None) -> Setting:
    """The run that a row describes; raises ``Missing`` for the fields that are null.

    ``defaults`` fills fields that a kind of row does not need stated (a bound side does not hang on the batch).
    """
    case = _completed(case)

    def get(name: str) -> object:
        value = getattr(case, name)
        return value if value is not None or defaults is None else getattr(defaults, name)

    needed = ("model", "gpu", "rollout_gpus", "train_gpus", "placement", "prompts_per_step", "group_size")
    missing = [n for n in needed if get(n) is None]
    cap = case.lengths.cap if case.lengths.cap is not None else defaults.lengths.cap if defaults else None
    if cap is None and not case.lengths.known:
        missing.append("lengths")
    if missing:
        raise Missing(*missing)
    shape, accelerator = shape_of(str(get("model"))), gpu_of(str(get("gpu")))
    notes = [n.assumption for n in (shape, accelerator) if n.assumption]
    rollout_gpus, train_gpus = _count(get("rollout_gpus")), _count(get("train_gpus"))
    prompt = _prompt_tokens(case)
    if cap is None:
        mean = case.lengths.mean_response or (case.lengths.mean_total_seq or 0.0)
        cap = max(16, int(8 * mean))
        notes.append("no cap is stated: eight times the mean assumed")
    elif case.lengths.max_response is None:
        cap = max(16, cap - prompt)
    precision = accelerator.precision or shape.precision or "bf16"
    gen, train = parallel_of(case.parallelism)
    if 0 in (*gen.values(), *train.values()):
        raise PlanningError("InvalidCases", f"parallelism {case.parallelism!r} has a width of 0: widths are at least 1")
    engine = engine_of(shape.value, accelerator.value, precision, rollout_gpus, gen, cap + prompt)
    text = str(get("placement")).lower()
    mode, overlapped = _mode(text, case.staleness)
    bound, run_ahead = _bound(case.staleness)
    setup = TrainerSetup(
        model=shape.value,
        gpu=accelerator.value,
        recompute="full",
        extra_forwards=_extra_forwards(case, mode),
        mfu=None,
        batch="padded",
    )
    return Setting(
        case=case,
        model=shape.value,
        engine=engine,
        replicas=max(1, rollout_gpus // engine.tensor_parallel),
        setup=setup,
        trainer=_trainer(setup, train_gpus, train, cap + prompt, _count(get("prompts_per_step"))),
        mode=mode,
        colocated="colocated" in text,
        overlapped=overlapped,
        bound=bound,
        run_ahead=run_ahead,
        prompts=_count(get("prompts_per_step")),
        group=_count(get("group_size")),
        prompt_tokens=prompt,
        cap_tokens=cap,
        mini_batch=_mini_batch(case, _count(get("group_size"))),
        notes=tuple(notes),
    )


def _completed(case: Case) -> Case:
    """The row with what follows from its other fields: colocated runs sample and train on all GPUs, samples are prompts times group."""
    if case.placement is not None and "colocated" in case.placement.lower() and case.n_gpus is not None:
        case = replace(case, rollout_gpus=case.rollout_gpus or case.n_gpus, train_gpus=case.train_gpus or case.n_gpus)
    if case.samples_per_step is not None and case.prompts_per_step is None and case.group_size is None:
        group = math.gcd(case.samples_per_step, _USUAL_GROUP)
        case = replace(case, prompts_per_step=case.samples_per_step // group, group_size=group)
    return case


def _mini_batch(case: Case, group: int) -> int | None:
    if case.staleness.mini_batch is not None:
        return case.staleness.mini_batch * group
    return case.optimizer_samples


def _count(value: object) -> int:
    assert isinstance(value, int)
    return value


def _prompt_tokens(case: Case) -> int:
    if case.lengths.mean_prompt is not None:
        return int(case.lengths.mean_prompt)
    bounds = [PROMPT_TOKENS]
    if case.lengths.max_prompt is not None:
        bounds.append(case.lengths.max_prompt // 2)
    if case.lengths.mean_total_seq is not None:
        bounds.append(int(case.lengths.mean_total_seq) // 4)
    return max(1, min(bounds))


def _mode(placement: str, rule: StalenessRule) -> tuple[str, bool]:
    """Mode, and whether unfinished samples of a colocated run go on in the next turn."""
    if "colocated" in placement and "async" in placement:
        return SYNC, True
    if "colocated" in placement or "sync" in placement.replace("async", ""):
        return SYNC, False
    if "one step" in rule.knob or "one-step" in rule.knob:
        return ONE_STEP_OFF, False
    if rule.knob in ("sync", "synchronous"):
        return SYNC, False
    return ASYNC, False


def _bound(rule: StalenessRule) -> tuple[str, float]:
    if rule.value is None or math.isinf(rule.value):
        return "none", math.inf
    if "drop" in rule.knob or "recycle" in rule.knob:
        return "drop", rule.value
    return "admission", rule.value


def _extra_forwards(case: Case, mode: str) -> int:
    """Forward passes of the trainer beside its step: log-probabilities of the batch under the weights it starts from.

    verl's fully asynchronous trainer takes those that the engine returned (its tables show no old_log_prob for it); everything else
    here computes them once.
    """
    return 0 if case.staleness.streamed and mode == ASYNC else 1


def parallel_of(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """What a row's ``parallelism`` says of samplers and trainers: ``gen [TP,PP]=2,1; train 1,1,8,2`` or ``train TP2 PP2, rollout TP4``.

    Four numbers of a trainer are TP, CP, EP and PP.
    """
    parts: dict[str, dict[str, int]] = {"gen": {}, "train": {}}
    side = "gen"
    for piece in re.split(r"[;,]\s*(?=[a-z])", text.strip()):
        found = re.match(r"\s*(gen\w*|rollout|train\w*)", piece, re.IGNORECASE)
        if found:
            side = "train" if found.group(1).lower().startswith("train") else "gen"
        named = re.findall(r"\b(TP|PP|EP|CP|DP)\s*=?\s*(\d+)", piece)
        if named:
            parts[side].update({k.lower(): int(v) for k, v in named})
            continue
        numbers = re.search(r"(\d+(?:,\d+)+)\s*$", piece)
        if numbers:
            order = ("tp", "pp") if side == "gen" else ("tp", "cp", "ep", "pp")
            parts[side].update(zip(order, map(int, numbers.group(1).split(",")), strict=False))
    return parts["gen"], parts["train"]


def engine_of(
    shape: ModelShape, gpu: Gpu, precision: str, gpus: int, stated: dict[str, int], longest_tokens: int
) -> Engine:
    """The engine as stated, else the narrowest that holds the weights and some samples of full length."""
    if "tp" in stated:
        return Engine(shape, gpu, min(gpus, stated["tp"] * stated.get("pp", 1)), precision, "bf16")
    width = 1
    while width < min(gpus, _MOST_TENSOR_PARALLEL):
        engine = Engine(shape, gpu, width, precision, "bf16")
        if shape.tensor_parallel_fits(width) and (
            kv_room_tokens(engine, longest_tokens / 2) >= _LEAST_RUNNING_PER_REPLICA * longest_tokens
        ):
            break
        width *= 2
    return Engine(shape, gpu, min(width, gpus), precision, "bf16")


def _trainer(setup: TrainerSetup, gpus: int, stated: dict[str, int], longest_tokens: int, samples: int) -> TrainerSplit:
    width = stated.get("tp", 1) * stated.get("pp", 1) * stated.get("cp", 1)
    pod = min(gpus, setup.gpu.gpus_per_node)
    while gpus % pod:
        pod -= 1
    if stated and gpus % width == 0:
        return TrainerSplit(
            replicas=gpus // pod,
            gpus_per_replica=pod,
            dp=gpus // width,
            tp=stated.get("tp", 1) * stated.get("cp", 1),
            pp=stated.get("pp", 1),
            ep=stated.get("ep", 1),
        )
    found = parallelism(
        setup, replicas=gpus // pod, gpus_per_replica=pod, longest_tokens=longest_tokens, samples_per_step=samples
    )
    if found is None:
        return TrainerSplit(replicas=gpus // pod, gpus_per_replica=pod, dp=gpus, tp=1, pp=1, ep=1)
    return found
