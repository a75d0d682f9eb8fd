"""The rules of the chart: promtool takes them, each alert fires when it should and else is quiet, and all that they name is exported."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from dev.chart import CHART, ROOT, ChartError, render
from dev.controlplane.build import FAMILIES, binary, ensure_built
from dev.docs import metrics as metrics_page
from dev.docs.metrics import Metric, operator_metrics, runtime_metrics
from dev.kubetools import HELM_MAJORS
from dev.rules import default_values, rule_groups, write_rules
from rljob_operator.metrics import OUTCOMES, OperatorMetrics
from rljob_planner.api.status import ConditionType

CASES = Path(__file__).parent / "alerts"
RECORDED = Path(__file__).parent / "recording.yaml"
DOCS = ROOT / "docs"
SCRAPE = ROOT / "tests" / "operator" / "data" / "scrapes" / "vllm-0.32-metrics-under-load.txt"

OF_THE_TARGET = {"namespace", "pod", "rljob_dev_name", "rljob_dev_role", "rljob_dev_uid", "le"}
"""Labels that the scrape adds, and that of buckets."""

Rule = dict[str, Any]


def installed(values: Rule | None = None, *, major: int = 4, namespace: str = "rljob-system") -> list[Rule]:
    """The PrometheusRules of a release."""
    every = {"crds": {"install": False}} | (values or {})
    return [obj for obj in render(every, namespace=namespace, major=major) if obj["kind"] == "PrometheusRule"]


def groups_of(objects: list[Rule]) -> list[Rule]:
    return [group for obj in objects for group in obj["spec"]["groups"]]


def by_name(groups: list[Rule]) -> list[Rule]:
    return sorted(groups, key=lambda group: str(group["name"]))


@cache
def promtool() -> str:
    ensure_built([family for family in FAMILIES if family.name == "prometheus"])
    return str(binary("promtool"))


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(rule for group in rule_groups() for rule in group["rules"])


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
ENABLED: Rule = {"recording": {"enabled": True}, "alerts": {"enabled": True}}


@pytest.mark.parametrize("major", HELM_MAJORS)
def test_what_helm_installs_is_what_is_tested_here(major: int) -> None:
    found = installed({"rules": ENABLED}, major=major, namespace="ml-infra")
    assert by_name(groups_of(found)) == by_name(rule_groups(namespace="ml-infra"))


def test_no_rule_is_installed_unless_asked() -> None:
    assert installed() == []


def test_values_reach_the_rules() -> None:
    values = {
        "recording": {"enabled": True},
        "alerts": {"enabled": True, "disabled": ["RLJobPlanSlow"], "labels": {"team": "ml", "severity": "page"}},
        "thresholds": {
            "apiErrorsRatio": 0.25,
            "metricsMissingFor": "2h",
            "loopStalledSeconds": 200,
            "thrashMovesPerHour": 7,
        },
        "additionalLabels": {"release": "kps"},
        "operatorSelector": 'job="rl"',
        "runbookBaseUrl": "https://docs.example.com/alerts",
    }
    objects = installed({"rules": values})
    assert [obj["metadata"]["labels"]["release"] for obj in objects] == ["kps", "kps"]
    found = groups_of(objects)
    assert by_name(found) == by_name(rule_groups(values))
    alerts = {rule["alert"]: rule for group in found for rule in group["rules"] if "alert" in rule}
    assert set(ALERTS) - set(alerts) == {"RLJobPlanSlow"}
    missing = alerts["RLJobMetricsMissing"]
    assert missing["for"] == "2h"
    assert 'job="rl"' in missing["expr"]
    assert "2h" in missing["annotations"]["description"]
    assert missing["labels"] == {"severity": "page", "team": "ml"}
    assert missing["annotations"]["runbook_url"] == "https://docs.example.com/alerts#rljobmetricsmissing"
    assert alerts["RLJobOperatorApiErrors"]["expr"].endswith("> 0.25")
    assert alerts["RLJobThrash"]["expr"].endswith("> 7 - 0.5")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"thresholds": {"metricsMissingFor": "1.5h"}}, "metricsMissingFor"),
        ({"thresholds": {"apiErrorsRatio": 5}}, "apiErrorsRatio"),
        ({"thresholds": {"loopStaledSeconds": 5}}, "loopStaledSeconds"),
        ({"thresholds": {"degradedFor": None}}, "degradedFor"),
        ({"operatorSelector": "{job='rl'}"}, "operatorSelector"),
        ({"alerts": {"enabled": True, "disabled": ["PlanSlow"]}}, "disabled"),
    ],
)
def test_a_value_that_can_t_be_is_refused_by_its_name(values: Rule, word: str) -> None:
    with pytest.raises(ChartError, match=word):
        installed({"rules": ENABLED | values})


def test_every_threshold_is_used() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in [*CHART.glob("alerts/*.yaml"), *CHART.glob("rules/*.yaml")]
    )
    assert set(re.findall(r"\$\{([A-Za-z]+)\}", text)) == {*default_values()["thresholds"], "operator"}


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    path = write_rules(tmp_path / "rules.yaml")
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", "--lint-fatal", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_every_rule_does_what_its_cases_say(tmp_path: Path) -> None:
    """Each alert and the recording rules, by promtool; a case's ``rules.yaml`` is the rules that it is about."""
    for name, rule in ALERTS.items():
        # Cases say what an alert is called for people; long descriptions would hide that.
        short = rule | {"annotations": {"summary": rule["annotations"]["summary"]}}
        case = (CASES / f"{name}.yaml").read_text(encoding="utf-8")
        place(tmp_path, name, case, [{"name": name, "rules": [short]}])
    place(tmp_path, "recording", RECORDED.read_text(encoding="utf-8"), rule_groups(alerts=False))
    files = sorted(path.name for path in tmp_path.glob("*.case.yaml"))
    done = subprocess.run(
        [promtool(), "test", "rules", *files], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def place(folder: Path, name: str, case: str, groups: list[Rule]) -> None:
    assert case.count("rule_files: [rules.yaml]") == 1
    (folder / f"{name}.rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    (folder / f"{name}.case.yaml").write_text(case.replace("[rules.yaml]", f"[{name}.rules.yaml]"), encoding="utf-8")


def test_every_recording_rule_has_a_case() -> None:
    cases = yaml.safe_load(RECORDED.read_text(encoding="utf-8"))["tests"]
    asked = {
        word
        for case in cases
        for each in case["promql_expr_test"]
        for word in re.findall(r"rljob[a-z0-9_:]+", each["expr"])
    }
    assert asked == {rule["record"] for rule in rules() if "record" in rule}


def test_every_alert_has_cases_in_which_it_fires_and_in_which_it_is_quiet() -> None:
    assert {path.stem for path in CASES.glob("*.yaml")} == set(ALERTS)
    for name, rule in ALERTS.items():
        kinds = set()
        for case in yaml.safe_load((CASES / f"{name}.yaml").read_text(encoding="utf-8"))["tests"]:
            kind = case["name"].split(":")[0]
            checks = case["alert_rule_test"]
            assert {check["alertname"] for check in checks} == {name}, case["name"]
            assert any(check["exp_alerts"] for check in checks) is (kind == "fires"), case["name"]
            # A case without the alert's own series would be quiet whatever the rule says.
            series = {re.split(r"[{ ]", each["series"])[0] for each in case["input_series"]}
            assert series & set(named(rule["expr"])), case["name"]
            kinds.add(kind)
        assert kinds == {"fires", "quiet"}, name


def test_every_alert_says_how_bad_it_is_what_it_means_and_where_its_runbook_is() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"
        aggregated = {label for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
        shown = set(re.findall(r"\$labels\.([a-z_]+)", str(rule["annotations"])))
        assert shown <= aggregated, f"{name} shows a label that its expression drops"


# -- what rules name is exported


def named(expr: str) -> dict[str, str]:
    """Metrics of an expression, each with its matchers."""
    return dict(re.findall(r"((?:rljob_operator|rljob|vllm)[_:][a-z_]+)\{([^}]*)\}", expr))


@cache
def exported() -> dict[str, set[str]]:
    """Series names of the operator, the runtime and vLLM, with the labels that they may have."""

    def series(metric: Metric) -> list[str]:
        return (
            [f"{metric.name}_{end}" for end in ("bucket", "sum", "count")]
            if metric.kind == "histogram"
            else [metric.name]
        )

    found = {name: {*m.labels} for m in (*operator_metrics(), *runtime_metrics()) for name in series(m)}
    for line in SCRAPE.read_text(encoding="utf-8").splitlines():
        parts = re.match(r"(vllm:[a-z_]+)\{([^}]*)\}", line)
        if parts:
            found.setdefault(parts[1], set()).update(re.findall(r'([a-z_]+)="', parts[2]))
    return found


def test_every_metric_and_label_that_a_rule_names_is_exported() -> None:
    seen = set()
    for rule in rules():
        expr = rule["expr"]
        words = set(re.findall(r"\b(?:rljob_operator_|vllm:)[a-z_]+", expr))
        assert words <= set(named(expr)), "a metric without matchers would take in those of other installations"
        labels = set()
        for name, matchers in named(expr).items():
            assert name in exported(), f"{rule.get('alert') or rule['record']}: {name}"
            if name.startswith("rljob_operator_"):
                assert 'namespace="rljob-system"' in matchers, f"{name} would take in that of another installation"
            seen.add(name)
            own = exported()[name] | OF_THE_TARGET
            assert set(re.findall(r"([a-z_]+)[=!]", matchers)) <= own, name
            labels |= own
        grouped = {label for by in re.findall(r"(?:by|on) \(([^)]+)\)", expr) for label in by.split(", ")}
        assert grouped <= labels | {"rljob_namespace", "rljob_name"}, expr
    assert len(seen) > 20


def test_every_value_of_a_label_that_an_alert_names_can_be() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "operator" / "rljob_operator").glob("*.py"))
    kinds = {kind.value for kind in ConditionType}
    for name, rule in ALERTS.items():
        for label, text in re.findall(r'(condition|reason|outcome)[=!]~?"([^"]+)"', rule["expr"]):
            for value in text.split("|"):
                known = value in (kinds if label == "condition" else OUTCOMES if label == "outcome" else ())
                assert known or (label == "reason" and f'"{value}"' in source), f"{name}: {label} {value}"


def test_promtool_takes_what_the_operator_exports() -> None:
    registry = OperatorMetrics().registry
    for collector in registry._collector_to_names:
        if (
            isinstance(collector, MetricWrapperBase)
            and collector._labelnames
            and "version" not in collector._labelnames
        ):
            collector.labels(*("x" for _ in collector._labelnames))
    text = generate_latest(registry)
    assert text.count(b"# TYPE rljob_operator_") == len(
        [m for m in operator_metrics() if m.name.startswith("rljob_operator_")]
    )
    done = subprocess.run([promtool(), "check", "metrics", "--lint=all"], input=text, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert done.stdout.strip() == b""


# -- runbooks


def sections() -> dict[str, str]:
    """The sections of the page of runbooks, by heading."""
    parts = re.split(r"^## (.+)$", (DOCS / "alerts.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert set(sections()) == set(ALERTS)
    for name, text in sections().items():
        for heading in ("**What it means.**", "**How to look.**", "**What to do.**"):
            assert text.count(heading) == 1, f"{name}: {heading}"
        assert "```sh" in text, f"{name} gives no command"


def test_the_runbooks_list_every_alert_under_its_severity() -> None:
    text = (DOCS / "alerts.md").read_text(encoding="utf-8")
    for severity in ("critical", "warning", "info"):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{severity}`"))
        meant = {name for name, rule in ALERTS.items() if rule["labels"]["severity"] == severity}
        assert {f"RLJob{short}" for short in re.findall(r"\[(\w+)\]", row)} == meant
        assert set(re.findall(r"\(#(\w+)\)", row)) == {name.lower() for name in meant}


def test_commands_of_runbooks_name_what_there_is() -> None:
    text = (DOCS / "alerts.md").read_text(encoding="utf-8")
    crd = yaml.safe_load((ROOT / "crds" / "rljob.dev_rljobs.yaml").read_text(encoding="utf-8"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    paths = set(re.findall(r"\{\.((?:status|spec)(?:\.[A-Za-z]+)+)", text)) | set(
        re.findall(r"`((?:status|spec)(?:\.[A-Za-z]+)+)", text)
    )
    paths.discard("spec.replicas"), paths.discard("spec.template.spec.containers")
    assert len(paths) > 8
    for path in paths:
        node = schema
        for part in path.split("."):
            assert part in node.get("properties", {}), f"{path}: there is no {part}"
            node = node["properties"][part]
    commands = (DOCS / "cli.md").read_text(encoding="utf-8")
    for command, rest in re.findall(r"^rljob (\w+)(.*)$", text, flags=re.MULTILINE):
        section = commands.split(f"## rljob {command}\n")[1].split("\n## ")[0]
        for option in re.findall(r" (--?[a-z]+)", rest):
            assert f"`{option}`" in section, f"rljob {command} has no {option}"
    known = {m.name for m in (*operator_metrics(), *runtime_metrics())} | set(exported())
    assert set(re.findall(r"rljob_operator_[a-z_]+", text)) <= known
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for path in re.findall(
        r"`((?:rules|monitoring|operator|prometheus|leaderElection|resources)\.[A-Za-z.]+?)(?:=\w+|\.\*)?`", text
    ):
        node = values
        for part in path.split("."):
            assert part in node or path.endswith((".release",)), f"{path} is no value of the chart"
            node = node.get(part, {})


def test_links_of_the_runbooks_lead_somewhere() -> None:
    text = (DOCS / "alerts.md").read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        page = DOCS / target if target else DOCS / "alerts.md"
        assert page.is_file(), target
        headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        slugs = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{target}#{anchor}"


def test_the_page_of_metrics_says_what_recording_rules_hold() -> None:
    assert set(metrics_page.recording_texts()) == {rule["record"] for rule in rules() if "record" in rule}
    assert all(metrics_page.recording_texts().values())
