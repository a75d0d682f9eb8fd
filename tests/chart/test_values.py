"""The chart's values against what stands behind them: the operator's configuration, the schema, and the page that describes them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import rljob_operator.config
from dev.chart import CHART, Json, __main__, render
from dev.chart.values import leaves, read_values
from rljob_operator.config import Config, LeaseConfig
from tests.chart.cases import CASES, NO_CRDS

PREFIX = rljob_operator.config.PREFIX
EVERYTHING: Json = {
    **NO_CRDS,
    "replicas": 2,
    "watchNamespaces": ["team-a"],
    "prometheus": CASES["prometheus-with-tls"]["prometheus"],
    "statusPage": {"enabled": True},
}
"""Values under which the chart sets all that it can set."""


def variables(values: Json) -> dict[str, Any]:
    """The operator's own variables under some values."""
    found = render(values, templates=["templates/deployment.yaml"])[0]
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return {e["name"]: e.get("value") for e in env if e["name"].startswith(PREFIX)}


def test_the_chart_sets_every_variable_that_the_operator_knows_and_no_other() -> None:
    source = Path(rljob_operator.config.__file__).read_text(encoding="utf-8")
    known = {PREFIX + name for name in re.findall(r"""\b[a-z]+\("([A-Z][A-Z_]+)"[,)]""", source)}
    assert len(known) > 20, "the way in which the configuration is read has changed, so that this test sees nothing"
    assert set(variables(EVERYTHING)) == known


def test_the_defaults_of_the_chart_are_those_of_the_operator() -> None:
    found = Config.from_env({name: value or "a-pod" for name, value in variables(NO_CRDS).items()})
    usual = replace(Config(), metrics_port=9090, liveness_endpoint="http://0.0.0.0:8080/healthz")
    assert found == replace(usual, lease=LeaseConfig(identity="a-pod"))


def test_what_is_set_is_what_the_operator_reads() -> None:
    operator = {
        "moveTick": "1s", "idleTick": "2s", "metricsWindow": "3s", "settleSteps": 4, "poolLostAfter": "5s",
        "acknowledgeDeadline": "6s", "goneDeadline": "7s", "readyDeadline": "1h30m",
    }  # fmt: skip
    election = {"leaseName": "n", "leaseDuration": "9s", "renewDeadline": "8s", "renewPeriod": "500ms"}
    values = {**EVERYTHING, "operator": operator, "leaderElection": election, "metrics": {"port": 9999}}
    values["prometheus"] = {**values["prometheus"], "scrapeInterval": "30s"}
    config = Config.from_env({name: value or "a-pod" for name, value in variables(values).items()})
    assert (config.move_tick_s, config.idle_tick_s, config.metrics_window_s, config.settle_steps) == (1, 2, 3, 4)
    assert (config.pool_lost_s, config.scrape_s, config.metrics_port) == (5, 30, 9999)
    assert (config.deadlines.acknowledge_s, config.deadlines.gone_s, config.deadlines.ready_s) == (6, 7, 5400)
    assert config.lease == LeaseConfig("rljob-system", "n", "a-pod", 9, 8, 0.5)
    assert config.namespaces == ("team-a",)
    assert config.status_page
    assert config.prometheus_url == "https://prometheus.monitoring:9091"
    assert config.allowed_prometheus_urls == ("https://other.monitoring", "http://plain.monitoring:9090/path")
    assert config.prometheus_token_urls == ("https://other.monitoring",)
    assert config.prometheus_ca_file is not None
    assert config.prometheus_token_file is not None


# ---- The page of values


def test_every_value_is_documented_once() -> None:
    documented = [value.path for value in read_values(CHART / "values.yaml")]
    assert len(documented) == len(set(documented))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    bare = [
        leaf for leaf in leaves(values) if not any(leaf == path or leaf.startswith(f"{path}.") for path in documented)
    ]
    assert not bare, "write a comment that begins with `# --` above each of these"


def test_generated_files_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--check"]) == 0, capsys.readouterr().err


def test_the_readme_links_to_files_that_are_there() -> None:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (CHART / link).exists()] == []


def test_examples_in_the_readme_are_values_that_the_chart_takes() -> None:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert len(examples) >= 3
    for example in examples:
        # An ellipsis stands for the digest of whoever reads it.
        if "digest" in example.get("image", {}):
            example["image"]["digest"] = f"sha256:{'0' * 64}"
        assert render({**example, **NO_CRDS})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# -- A.\n# -- B.\nb: 1\n", "stands above no key"),
        ("# -- A.\n\nb: 1\n", "stands above no key"),
    ],
)
def test_a_comment_above_no_key_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_values(tmp_path / "values.yaml")


def test_comments_belong_to_the_key_below_them_at_any_depth(tmp_path: Path) -> None:
    text = "## One\na:\n  b:\n    # -- Deep,\n    # over lines.\n    c: 1\n  # no documentation\n  d: 2\n## Two\n# -- Whole.\ne: {f: 3}\n"
    (tmp_path / "values.yaml").write_text(text, encoding="utf-8")
    found = read_values(tmp_path / "values.yaml")
    assert [(v.path, v.section, v.text, v.default) for v in found] == [
        ("a.b.c", "One", "Deep, over lines.", 1),
        ("e", "Two", "Whole.", {"f": 3}),
    ]
