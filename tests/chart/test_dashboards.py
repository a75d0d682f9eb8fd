"""The dashboards' JSON: what the chart ships is what the builder says, and Grafana can show it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.controlplane.build import FAMILIES, binary, ensure_built
from dev.dashboards import words
from dev.dashboards.__main__ import BOARDS, outdated, path_of
from dev.dashboards.queries import Filling, asked
from dev.dashboards.record import FILE, load
from dev.dashboards.render import RenderError, digest_of, digests, payload, picture_of
from dev.kubetools import HELM_MAJORS, helm
from rljob_operator.metrics import OperatorMetrics
from rljob_planner.api.status import DecisionCode, MovePhase, Phase
from rljob_runtime import Reporter

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rljob-operator"
PAGE = ROOT / "docs" / "dashboards.md"
NAMES = sorted(BOARDS)

Json = dict[str, Any]


def dashboard(name: str) -> Json:
    found: Json = json.loads(path_of(name).read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[Json]:
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def test_the_json_is_what_the_builder_says() -> None:
    assert outdated() == [], "write it with: make dashboards"
    assert sorted(path.stem for path in path_of("job").parent.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    found = dashboard(name)["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    titles = [panel["title"] for panel in found]
    assert len(set(titles)) == len(titles)

    def cells(panel: Json) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    for panel in found:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    for one, other in combinations(found, 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    for panel in panels(name):
        assert re.fullmatch(r"[A-Z].{24,}\.", panel["description"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) >= 1, panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_the_data_source_is_a_variable_everywhere(name: str) -> None:
    text = path_of(name).read_text(encoding="utf-8")
    assert {*re.findall(r'"uid": "([^"]*)"', text)} == {"${datasource}", dashboard(name)["uid"]}
    assert dashboard(name)["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.parametrize("name", NAMES)
def test_queries_use_no_variable_that_there_is_not_and_legends_no_label(name: str) -> None:
    known = {variable["name"]: "1m" for variable in dashboard(name)["templating"]["list"]}
    filling = Filling(known, 60.0, 3600.0)
    for one in asked(dashboard(name)):
        assert "$" not in filling.fill(one.expr), one.where
    for panel in panels(name):
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]
        if panel["type"] != "table" and len(panel["targets"]) > 1:
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_coloured_by_name_has_that_name_in_the_panel(name: str) -> None:
    states = {each.value for kind in (DecisionCode, MovePhase, Phase) for each in kind}
    for panel in panels(name):
        called = {target["legendFormat"] for target in panel["targets"]}
        for transformation in panel.get("transformations", ()):
            called |= set(transformation["options"].get("renameByName", {}).values())
        # Labels of which the values are known: sides of a split, outcomes and kinds of a move, states, HTTP statuses.
        values = {
            "samplers",
            "trainers",
            "predicted",
            "measured",
            "Committed",
            "RolledBack",
            "200",
            "404",
            "409",
            "429",
        }
        shown = {re.sub(r"{{\w+}}", value, each) for each in called for value in values | states}
        for override in panel["fieldConfig"]["overrides"]:
            pattern = override["matcher"]["options"]
            if override["matcher"]["id"] == "byRegexp":
                assert any(re.search(pattern.strip("/"), each) for each in shown | called), (panel["title"], pattern)
            else:
                assert pattern in shown, (panel["title"], pattern)


def test_dashboards_lead_to_each_other() -> None:
    for name in NAMES:
        (link,) = dashboard(name)["links"]
        assert link["type"] == "dashboards"
        assert link["includeVars"]
        assert link["keepTime"]
        assert set(link["tags"]) <= set(dashboard(name)["tags"])
    leads = re.findall(r"/d/([a-z-]+)/", path_of("fleet").read_text(encoding="utf-8"))
    assert leads == [dashboard("job")["uid"]]


def exported() -> set[str]:
    """Every name of a sample that the operator, a trainer or a sampler exports."""
    reporter = Reporter()
    for set_once in (reporter.resumed, reporter.queue, reporter.in_flight, reporter.acknowledged):
        set_once(1)
    reporter.step_started([1.0])
    found = set()
    for registry in (OperatorMetrics().registry, reporter.registry):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            found |= {family.name + suffix for suffix in suffixes}
    return found | {f"vllm:{name}" for name in VLLM}


VLLM = (
    "generation_tokens_total", "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
    "inter_token_latency_seconds_bucket", "num_requests_running", "num_requests_waiting", "num_preemptions_total",
)  # fmt: skip
"""Names of vLLM that the dashboards use; the emulator exports them, and the test against a live Prometheus asks for them."""


@pytest.mark.parametrize("name", NAMES)
def test_queries_name_only_what_is_exported(name: str) -> None:
    known = exported()
    for one in asked(dashboard(name)):
        named = set(re.findall(r"\b(?:rljob_operator_|process_|vllm:)\w+(?=[{\[ )]|$)", one.expr))
        named |= set(re.findall(r"\brljob_(?!operator_|namespace|name|dev_)\w+(?={)", one.expr))
        assert named - known == set(), one.where
        assert named or "__name__" in one.expr, one.where


POD_SERIES = r"\b(?:vllm:|rljob_(?!operator_|namespace|name|dev_))\w+(?={)"
"""A series that a job's pods export, in a query."""


def test_a_pod_that_is_scraped_at_two_ports_counts_once(tmp_path: Path) -> None:
    """The chart's own PodMonitor may find a job's pod at more than one port. By promtool, each query on two jobs that differ in that alone."""
    series: dict[str, str] = {}
    checks = []
    for one in {one.expr: one for name in NAMES for one in asked(dashboard(name))}.values():
        if 'rljob_dev_name="$job"' not in one.expr:
            continue
        apart = []
        for namespace, ports in (("once", ("metrics",)), ("twice", ("metrics", "http"))):
            filling = Filling({"namespace": namespace, "job": "math", "window": "5m"}, rate_s=300.0, range_s=600.0)
            apart.append(filling.fill(one.expr))
            for metric in re.findall(POD_SERIES, one.expr) or ["vllm:kv_cache_usage_perc"]:
                for pod, grows in (("math-0", 6), ("math-1", 18)):
                    for port in ports:
                        for le, share in (("1", 0.5), ("+Inf", 1)) if metric.endswith("_bucket") else (("", 1),):
                            labels = f'namespace="{namespace}",rljob_dev_name="math",pod="{pod}",endpoint="{port}"'
                            labels += ',engine="0"' if metric.startswith("vllm:") else ""
                            labels += f',le="{le}"' if le else ""
                            series[f"{metric}{{{labels}}}"] = f"0+{grows * share:g}x20"
        checks.append(
            {
                "expr": f"({apart[0]}) - ({apart[1]})",
                "eval_time": "15m",
                "exp_samples": [{"labels": "{}", "value": 0}],
            }
        )
    assert len(checks) > 15
    case = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": checks,
            }
        ],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case), encoding="utf-8")
    ensure_built([family for family in FAMILIES if family.name == "prometheus"])
    command = [str(binary("promtool")), "test", "rules", "case.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_state_has_a_colour() -> None:
    assert set(words.DECISIONS) == set(DecisionCode)
    assert set(words.PHASES) == set(Phase)
    assert set(words.MOVE_PHASES) == set(MovePhase)
    assert len(set(words.DECISIONS.values())) == len(DecisionCode)


def rendered(*values: str, major: int) -> list[Json]:
    command = [str(helm(major)), "template", "r", str(CHART), "-n", "rljob-system"]
    for value in values:
        command += ["--set", value]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [each for each in yaml.safe_load_all(text) if each and "dashboard" in each["metadata"]["name"]]


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_a_config_map_for_the_sidecar_holds_each(major: int) -> None:
    assert rendered(major=major) == []
    found = rendered("dashboards.enabled=true", major=major)
    assert [each["kind"] for each in found] == ["ConfigMap"] * len(NAMES)
    assert {each["metadata"]["namespace"] for each in found} == {"rljob-system"}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found} == {"1"}
    assert all("annotations" not in each["metadata"] for each in found)
    held = {file: json.loads(text) for each in found for file, text in each["data"].items()}
    assert held == {f"rljob-{name}.json": dashboard(name) for name in NAMES}
    # The API server refuses an object above a mebibyte.
    assert max(len(text) for each in found for text in each["data"].values()) < 400_000


def test_the_config_maps_go_where_the_sidecar_looks() -> None:
    found = rendered(
        "dashboards.enabled=true",
        "dashboards.namespace=monitoring",
        "dashboards.folder=RL jobs",
        "dashboards.annotations.team=ml",
        "dashboards.labels.grafana_dashboard=yes",
        "dashboards.labels.extra=x",
        major=4,
    )
    assert {each["metadata"]["namespace"] for each in found} == {"monitoring"}
    for each in found:
        assert each["metadata"]["annotations"] == {"grafana_folder": "RL jobs", "team": "ml"}
        assert each["metadata"]["labels"]["grafana_dashboard"] == "yes"
        assert each["metadata"]["labels"]["extra"] == "x"


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_is_of_this_dashboard(name: str) -> None:
    assert digests().get(name) == digest_of(name), "draw it with: make screenshots"
    picture = picture_of(name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 400_000


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_of_a_picture_has_data(name: str) -> None:
    recorded = load()
    empty = []
    for panel in payload(name, recorded)["dashboard"]["panels"]:
        for answer in panel["answers"]:
            if not answer["range"]:
                empty.append(f"{panel['title']} {answer['refId']}")
    assert empty == []
    assert FILE.stat().st_size < 1_000_000
    with gzip.open(FILE) as file:
        assert file.read(1) == b"{"


def test_a_query_that_was_not_recorded_can_not_be_drawn() -> None:
    recorded = load()
    expr = next(iter(asked(dashboard("job")))).expr
    del recorded["answers"][expr]
    with pytest.raises(RenderError, match="record a run with"):
        payload("job", recorded)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_and_explains_every_panel(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"img/{picture_of(name).name}" in text
    missing = [panel["title"] for panel in panels(name) if f"**{panel['title']}**" not in text]
    assert missing == []
