"""The parts of the end-to-end run that need nothing to run: what it reads, what it applies, and what it calls broken."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.demo.history import Move
from dev.e2e import parts
from dev.e2e.account import Account, Compared, ServerLog, cut_by_sampler
from dev.e2e.job import Wishes, rljob
from dev.e2e.outcome import Fault, Findings, broken_promises, result
from dev.e2e.parts import Parts
from dev.e2e.removals import Removal
from dev.e2e.scrape import scrape_config
from rljob_planner.api.spec import RLJobSpec


def split(samplers: int, trainers: int) -> dict[str, Any]:
    return {
        "samplers": {"replicas": samplers, "gpusPerReplica": 1},
        "trainers": {"replicas": trainers, "gpusPerReplica": 1},
    }


def good() -> Findings:
    """Findings of a run in which all went well."""
    move = Move("1", split(2, 4), split(3, 3), "longer responses", 0.2, 10.0, ["Announce"], ended_s=30.0)
    pod = {"metadata": {"name": "s"}}
    return Findings(
        node="processes",
        gpu_budget=6,
        removals_wanted=1,
        plan={"split": split(2, 4)},
        moves=[move],
        gpu_peak=6,
        account=Account(submitted=100, finished=90, in_flight=10, cut=2, retried=2, version=50),
        removals=[Removal(pod, "move", 5, 0.0, 4.0)],
        faults=[Fault(what, True, 1.0, cut=2) for what in ("operator", "prometheus", "sampler")],
    )


def test_a_run_in_which_all_went_well_breaks_nothing() -> None:
    assert broken_promises(good()) == []
    told = result(good())
    wanted = {"plan", "moves", "gpuBudget", "gpuPeak", "samplesLost", "samplesCut", "measured", "faults", "node"}
    assert wanted <= set(told)
    assert (told["samplesLost"], told["samplesCut"], told["node"]) == (0, 2, "processes")
    json.dumps(told)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": None}, "no plan"),
        ({"moves": []}, "no move that gives more samplers"),
        ({"gpu_peak": 7}, "held 7 GPUs at once, the budget is 6"),
        ({"gpu_peak": 0}, "the budget was not watched"),
        ({"account": Account()}, "no sample was finished"),
        ({"account": Account(submitted=2, finished=1, lost=1)}, "1 samples were lost"),
        ({"account": Account(submitted=3, finished=1, in_flight=1)}, "off by 1 samples"),
        ({"removals": []}, "0 of 1 samplers were removed"),
        ({"removals": [Removal({"metadata": {"name": "idle"}}, "eviction", 0, 0.0, 1.0)]}, "nothing to lose.*: idle"),
        ({"cut_in_removals": 3}, "3 samples were cut while samplers were removed"),
        ({"unanswered_in_removals": 4}, "took 4 samples that they never answered"),
        (
            {"removals": [Removal({"metadata": {"name": "s"}}, "eviction", 5, 0.0, 4.0)]},
            "no sampler was taken by a move",
        ),
        ({"trainer_restarts": 1}, "account was begun anew 1 times"),
        ({"faults": [Fault("sampler", True, 1.0)]}, "had nothing to lose"),
        ({"faults": []}, "kill of the operator was not seen to be survived"),
        ({"broken": ["the plane died"]}, "the plane died"),
    ],
)
def test_each_broken_promise_is_said(change: dict[str, Any], words: str) -> None:
    said = broken_promises(replace(good(), **change))
    assert any(re.search(words, sentence) for sentence in said), said


def test_a_move_that_was_rolled_back_or_gives_fewer_samplers_is_none() -> None:
    (move,) = good().moves
    for other in (replace(move, rolled_back=True), replace(move, ended_s=None), replace(move, after=split(1, 5))):
        assert broken_promises(replace(good(), moves=[other]))


def test_the_trainers_account_is_read_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    assert Account.read(file) == Account()
    file.write_text(
        '{"submitted": 12, "finished": 8, "cut": 1, "refused": 2, "retried": 3, "lost": 0, "in_flight": 4, "version": 7}'
    )
    assert Account.read(file) == Account(12, 8, 1, 2, 3, 0, 4, 7)
    assert Account.read(file).unaccounted == 0
    file.write_text("{")
    assert Account.read(file) == Account()


def test_a_servers_log_tells_what_it_took_and_never_answered() -> None:
    text = """
(APIServer pid=7) INFO 11-30 06:18:01 [request_logger.py:66] Received request generate-1: params: SamplingParams(n=1), lora_request: None.
(APIServer pid=7) INFO 11-30 06:18:01 [request_logger.py:66] Received request generate-2: params: SamplingParams(n=1), lora_request: None.
(APIServer pid=7) INFO:     127.0.0.1:5 - "POST /inference/v1/generate HTTP/1.1" 200 OK
(APIServer pid=7) INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK
(APIServer pid=7) INFO 11-30 06:18:02 [request_logger.py:66] Received request generate-3: params: SamplingParams(n=1), lora_request: None.
(APIServer pid=7) INFO:     127.0.0.1:5 - "POST /inference/v1/generate HTTP/1.1" 500 Internal Server Error
"""
    found = ServerLog.of(text)
    assert (found.taken, found.answered, found.unanswered) == (3, 2, 1)


def test_what_the_trainer_counts_is_held_against_each_servers_log() -> None:
    text = """
2026-11-30 14:38:50,284 WARNING tiny_grpo.rollout: tiny-samplers-5857cb6888-mtfjv: ServerDisconnectedError: Server disconnected
2026-11-30 14:38:50,285 WARNING tiny_grpo.rollout: tiny-samplers-5857cb6888-mtfjv: ServerDisconnectedError: Server disconnected
2026-11-30 14:38:50,286 WARNING tiny_grpo.rollout: tiny-samplers-5857cb6888-mtfjv: the update to version 8 broke off: TimeoutError:
2026-11-30 14:38:50,287 WARNING tiny_grpo.rollout: tiny-samplers-5857cb6888-mt was given up
2026-11-30 14:38:50,288 INFO tiny_grpo.rollout: tiny-samplers-5857cb6888-mtfjv: Cannot connect to host 127.89.0.9:8000
"""
    counted = cut_by_sampler(text)
    assert counted == {"tiny-samplers-5857cb6888-mtfjv": 2, "tiny-samplers-5857cb6888-mt": 1}
    logs = {"tiny-samplers-5857cb6888-mtfjv": ServerLog(5, 4), "tiny-samplers-5857cb6888-mt": ServerLog(4, 1)}
    assert Compared.of(counted, logs) == Compared(uncounted=2, noted_by_none=1)


def test_prometheus_scrapes_as_the_documentation_says(tmp_path: Path) -> None:
    (job,) = yaml.safe_load(scrape_config(server="https://x", ca_file=tmp_path / "ca", token_file=tmp_path / "token"))
    (discovery,) = job["kubernetes_sd_configs"]
    assert (discovery["role"], discovery["api_server"]) == ("pod", "https://x")
    assert job["relabel_configs"][0]["source_labels"] == ["__meta_kubernetes_pod_label_rljob_dev_uid"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    found = Parts(tmp_path / "venv" / "bin" / "python", tmp_path / "shared")
    found.model.mkdir(parents=True)
    shape = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 107, "tie_word_embeddings": False, "max_position_embeddings": 256,
    }  # fmt: skip
    (found.model / "config.json").write_text(json.dumps(shape))
    monkeypatch.setattr(Parts, "_told", lambda self, code: str(tmp_path / "python"))
    return found


def test_the_job_is_one_that_the_api_takes(made: Parts) -> None:
    job = rljob(made, "none", Wishes())
    spec = RLJobSpec.model_validate(job["spec"])
    assert spec.gpus == parts.GPUS
    sampler, trainer = (job["spec"][role]["template"]["spec"] for role in ("sampler", "trainer"))
    assert sampler["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][:3] == [
        str(made.python),
        "-m",
        "rljob_runtime",
    ]
    assert "terminationGracePeriodSeconds" not in sampler, "the operator knows how long a drain takes"
    assert parts.GROWING in trainer["containers"][0]["args"]


def test_a_grace_period_that_is_too_short_comes_without_a_drain(made: Parts) -> None:
    job = rljob(made, "none", Wishes(grace_s=1))
    sampler = job["spec"]["sampler"]["template"]["spec"]
    assert sampler["terminationGracePeriodSeconds"] == 1
    assert "lifecycle" not in sampler["containers"][0]
    assert sampler["containers"][0]["args"][-2:] == ["--shutdown-timeout", "60"]
