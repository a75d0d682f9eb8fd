"""What the operator shows to whom, whom it believes, and what nobody can make it do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from dev.controlplane.certs import Authority
from rljob_operator import promql
from rljob_operator.adopt import Side, series_of
from rljob_operator.census import Census
from rljob_operator.config import Config
from rljob_operator.credentials import MOST_BYTES, Credentials, CredentialsError
from rljob_operator.gate import ROLE_LABEL, UID_LABEL
from rljob_operator.prometheus import (
    LARGEST_ANSWER_BYTES,
    LONGEST_URL,
    Prometheus,
    PrometheusError,
    Series,
    _parsed,
    open_session,
)
from rljob_operator.questions import questions
from rljob_operator.telemetry import observe
from rljob_operator.view import View

OWN = "https://prometheus.monitoring:9090"
OTHER = "https://thanos.monitoring:9091/tenant"
EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}


# Which Prometheus a job may name


@pytest.fixture
def config() -> Config:
    return Config(prometheus_url=OWN, allowed_prometheus_urls=(OTHER,))


@pytest.mark.parametrize(
    ("wished", "found"),
    [(None, OWN), (OWN, OWN), (f"{OWN}/", OWN), (OTHER, OTHER), (f"{OTHER}//", OTHER)],
)
def test_a_job_may_name_what_the_operator_s_configuration_names(config: Config, wished: str | None, found: str) -> None:
    assert config.prometheus_for(wished) == found


@pytest.mark.parametrize(
    "wished",
    [
        "file:///var/run/secrets/kubernetes.io/serviceaccount/token",
        "http://prometheus.monitoring:9090",
        "https://prometheus.monitoring",
        "https://prometheus.monitoring:443",
        "https://prometheus.monitoring:9091",
        "https://prometheus.monitoring:09090",
        "https://prometheus.monitoring:9090/other",
        "https://prometheus.monitoring:9090/../admin",
        "https://prometheus.monitoring:9090?x=1",
        "https://prometheus.monitoring:9090#x",
        "https://prometheus.monitoring:9090/#",
        "https://prometheus.monitoring:9090@evil.example",
        "https://user@prometheus.monitoring:9090",
        "https://user:word@prometheus.monitoring:9090",
        "https://prometheus.monitoring.evil.example:9090",
        "https://evil.example/https://prometheus.monitoring:9090",
        "https://prometheus.monitoring.:9090",
        "https://Prometheus.monitoring:9090",
        "HTTPS://prometheus.monitoring:9090",
        "https://prometheus。monitoring:9090",
        "https://рrometheus.monitoring:9090",
        "https://prometheus.monitoring\uff0f:9090",
        "https://prometheus.monitoring:9090 ",
        " https://prometheus.monitoring:9090",
        "https://prometheus.monitoring:9090\n",
        "https://prometheus.monitoring:9090\\@evil.example",
        "https://thanos.monitoring:9091",
        "https://thanos.monitoring:9091/tenant/../other",
        "https://thanos.monitoring:9091/Tenant",
        "https://thanos.monitoring:9091/%74enant",
        "http://169.254.169.254/latest/meta-data",
        "https://kubernetes.default.svc",
        "",
    ],
)
def test_every_other_spelling_is_refused(config: Config, wished: str) -> None:
    with pytest.raises(ValueError, match="is not one that the operator may call"):
        config.prometheus_for(wished)


def test_without_a_configuration_no_job_can_name_any() -> None:
    with pytest.raises(ValueError, match="ALLOWED_PROMETHEUS_URLS"):
        Config().prometheus_for(OWN)
    assert Config().prometheus_for(None) is None


@given(st.text(max_size=80))
def test_whatever_a_job_names_the_operator_calls_what_it_is_configured_for(wished: str) -> None:
    config = Config(prometheus_url=OWN, allowed_prometheus_urls=(OTHER,))
    for text in (wished, OWN + wished, wished + OWN):
        try:
            assert config.prometheus_for(text) in (OWN, OTHER)
        except ValueError:
            continue
        assert text.rstrip("/") in (OWN, OTHER)


@pytest.mark.parametrize("name", ["PROMETHEUS_URL", "ALLOWED_PROMETHEUS_URLS"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "is not the URL of a server"),
        ("prometheus:9090", "is not the URL of a server"),
        ("http://", "is not the URL of a server"),
        ("http://prometheus:port", "is not the URL of a server"),
        ("http://prometheus:99999", "is not the URL of a server"),
        ("http://prometheus。monitoring", "is not the URL of a server"),
        ("http://me:hunter2@prometheus", "holds a user or a password"),
        ("http://prometheus/?a=b", "has a query or a fragment"),
    ],
)
def test_a_configured_url_that_would_mislead_is_refused_at_the_start(name: str, url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        Config.from_env({f"RLJOB_OPERATOR_{name}": url})
    assert f"RLJOB_OPERATOR_{name}" in str(error.value)
    assert "hunter2" not in str(error.value), "a password must not get into the log"


def test_the_token_s_servers_are_configured_and_have_tls() -> None:
    def of(**changes: str) -> Config:
        env = {
            "PROMETHEUS_URL": OWN,
            "ALLOWED_PROMETHEUS_URLS": f"{OTHER},http://plain:1",
            "PROMETHEUS_BEARER_TOKEN_FILE": "/t",
        }
        return Config.from_env({f"RLJOB_OPERATOR_{key}": value for key, value in {**env, **changes}.items()})

    assert of().token_urls == (OWN,)
    assert of(PROMETHEUS_BEARER_TOKEN_URLS=f"{OTHER}/").token_urls == (OWN, f"{OTHER}/")
    assert of(PROMETHEUS_URL="http://127.0.0.1:9090").token_urls == ("http://127.0.0.1:9090",)
    with pytest.raises(ValueError, match="is not one of RLJOB_OPERATOR_ALLOWED_PROMETHEUS_URLS"):
        of(PROMETHEUS_BEARER_TOKEN_URLS="https://elsewhere")
    for changes in ({"PROMETHEUS_BEARER_TOKEN_URLS": "http://plain:1"}, {"PROMETHEUS_URL": "http://prometheus:9090"}):
        with pytest.raises(ValueError, match="has no TLS"):
            of(**changes)


# What is shown to it


@dataclass
class Server:
    """A Prometheus that notes what it was sent."""

    url: str = ""
    answer: Callable[[web.Request], Any] = lambda request: web.json_response(EMPTY)
    heard: list[dict[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append(dict(request.headers))
        found = self.answer(request)
        return await found if asyncio.iscoroutine(found) else found

    @property
    def tokens(self) -> list[str | None]:
        return [headers.get("Authorization") for headers in self.heard]


async def serving(server: Server, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", server.handle)
    test_server = TestServer(app)
    await test_server.start_server(ssl=context)
    server.url = str(test_server.make_url("")).rstrip("/")
    yield server
    await test_server.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async for each in serving(Server()):
        yield each


@pytest.fixture
async def elsewhere() -> AsyncIterator[Server]:
    async for each in serving(Server()):
        yield each


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as found:
        yield found


async def test_the_token_goes_to_the_servers_that_are_named_for_it_and_no_other(
    server: Server, elsewhere: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("first\n")
    credentials = Credentials(token_file=tmp_path / "token", token_urls=(f"{server.url}/",))
    await Prometheus(session, server.url, credentials=credentials).query("up", at=0.0)
    await Prometheus(session, elsewhere.url, credentials=credentials).query("up", at=0.0)
    await Prometheus(session, f"{server.url}/other", credentials=credentials).query("up", at=0.0)
    assert server.tokens == ["Bearer first", None], "another path is another server"
    assert elsewhere.tokens == [None]


async def test_a_redirect_is_followed_nowhere(
    server: Server, elsewhere: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("first")
    credentials = Credentials(token_file=tmp_path / "token", token_urls=(server.url,))
    for code in (301, 302, 303, 307, 308):
        for promql_text in ("up", "up" + " " * LONGEST_URL):
            headers = {"Location": f"{elsewhere.url}/api/v1/query"}
            server.answer = lambda request, code=code, headers=headers: web.Response(status=code, headers=headers)
            with pytest.raises(PrometheusError, match="has no query API"):
                await Prometheus(session, server.url, credentials=credentials).query(promql_text, at=0.0)
    assert elsewhere.heard == []


async def test_a_token_that_is_replaced_is_read_again(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    # As the kubelet does it: a link to a folder that is swapped.
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("first")
    prometheus = Prometheus(
        session, server.url, credentials=Credentials(token_file=link / "token", token_urls=(server.url,))
    )
    await prometheus.query("up", at=0.0)
    (tmp_path / "new").symlink_to("second")
    os.replace(tmp_path / "new", link)
    await prometheus.query("up", at=0.0)
    assert server.tokens == ["Bearer first", "Bearer second"]
    link.unlink()
    with pytest.raises(PrometheusError, match=r"was not asked: the file .* can't be read"):
        await prometheus.query("up", at=0.0)
    assert len(server.heard) == 2


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"a\r\nX-Other: 1", b"\xff\xfe", b"x" * (MOST_BYTES + 1)]
)
def test_what_is_no_token_is_never_sent_nor_shown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(CredentialsError) as error:
        Credentials(token_file=tmp_path / "token", token_urls=(OWN,)).access(OWN)
    assert str(tmp_path / "token") in str(error.value)
    assert "words" not in str(error.value)
    assert len(str(error.value)) < 400


async def test_no_cookie_is_kept(server: Server, session: aiohttp.ClientSession) -> None:
    def with_cookie(request: web.Request) -> web.Response:
        response = web.json_response(EMPTY)
        response.set_cookie("track", "1")
        return response

    server.answer = with_cookie
    for _ in range(2):
        await Prometheus(session, server.url).query("up", at=0.0)
    assert not any("Cookie" in headers for headers in server.heard)


# Whom it believes


def serving_as(authority: Authority, host: str) -> ssl.SSLContext:
    """A server's context with a certificate for ``host``."""
    files = authority.serving(f"server-{host}", [host])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context


async def test_only_the_authority_in_the_file_is_trusted_and_a_new_one_as_soon_as_it_is_there(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    ours, other = Authority.create(tmp_path / "ours"), Authority.create(tmp_path / "other")
    ours_pem, other_pem = ours.files.cert.read_text(), other.files.cert.read_text()
    ca_file, token_file = tmp_path / "ca.pem", tmp_path / "token"
    ca_file.write_text(other_pem)
    token_file.write_text("first")
    async for server in serving(Server(), serving_as(ours, "127.0.0.1")):
        credentials = Credentials(ca_file, token_file, (server.url,))
        prometheus = Prometheus(session, server.url, credentials=credentials)
        assert server.url.startswith("https://")
        with pytest.raises(PrometheusError, match=r"could not show who it is .* RLJOB_OPERATOR_PROMETHEUS_CA_FILE"):
            await Prometheus(session, server.url).query("up", at=0.0)
        with pytest.raises(PrometheusError, match="could not show who it is"):
            await prometheus.query("up", at=0.0)
        assert server.heard == [], "nobody sees the token before it has shown who it is"
        ca_file.write_text(other_pem + ours_pem)
        assert await prometheus.query("up", at=0.0) == []
        assert server.tokens == ["Bearer first"]
        assert credentials.access(server.url).ssl is credentials.access(server.url).ssl, "connections are kept"
        ca_file.write_text("-----BEGIN NOTHING-----")
        with pytest.raises(PrometheusError, match="holds no certificate in PEM format"):
            await prometheus.query("up", at=0.0)


async def test_a_certificate_for_another_name_is_refused(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    ours = Authority.create(tmp_path / "ours")
    async for server in serving(Server(), serving_as(ours, "prometheus.example")):
        with pytest.raises(PrometheusError, match="could not show who it is"):
            await Prometheus(session, server.url, credentials=Credentials(ours.files.cert)).query("up", at=0.0)
        assert server.heard == []


# What an answer can do


async def refused(server: Server, session: aiohttp.ClientSession, *, timeout_s: float = 10.0) -> str:
    with pytest.raises(PrometheusError) as error:
        await Prometheus(session, server.url, timeout_s=timeout_s).query("up", at=0.0)
    assert len(str(error.value)) < 1000, "it ends up in the status of a job"
    return str(error.value)


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"[" * 65536)
    except (ConnectionError, asyncio.CancelledError):
        return response


async def test_an_endless_answer_is_cut_off(server: Server, session: aiohttp.ClientSession) -> None:
    server.answer = _endless
    assert "more than 8 MiB" in await refused(server, session)


async def test_a_packed_answer_counts_by_what_comes_out_of_it(server: Server, session: aiohttp.ClientSession) -> None:
    bomb = gzip.compress(b" " * (2 * LARGEST_ANSWER_BYTES))
    assert len(bomb) < LARGEST_ANSWER_BYTES // 20
    server.answer = lambda request: web.Response(body=bomb, headers={"Content-Encoding": "gzip"})
    assert "more than 8 MiB" in await refused(server, session)
    packed = gzip.compress(json.dumps(EMPTY).encode())
    server.answer = lambda request: web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    assert await Prometheus(session, server.url).query("up", at=0.0) == []
    server.answer = lambda request: web.Response(body=b"no gzip", headers={"Content-Encoding": "gzip"})
    assert "can't be unpacked" in await refused(server, session)
    server.answer = lambda request: web.Response(body=packed[:20], headers={"Content-Encoding": "gzip"})
    assert "did not answer as Prometheus does" in await refused(server, session)
    server.answer = lambda request: web.Response(body=packed, headers={"Content-Encoding": "br"})
    assert "packed as br" in await refused(server, session)


async def test_an_answer_that_drips_ends_with_its_time(server: Server, session: aiohttp.ClientSession) -> None:
    async def dripping(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        with_more = asyncio.Event()
        with contextlib.suppress(asyncio.CancelledError):
            await with_more.wait()
        return response

    server.answer = dripping
    assert "did not answer within 0.2 s" in await refused(server, session, timeout_s=0.2)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "null",
        "[]",
        '"text"',
        "{}",
        '{"status": "success"}',
        '{"status": "success", "data": 7}',
        '{"status": "success", "data": []}',
        '{"status": "success", "data": {"result": 7}}',
        '{"status": "success", "data": {"result": [7]}}',
        '{"status": "success", "data": {"result": ["a"]}}',
        '{"status": "success", "data": {"result": [{"metric": 7, "value": [1, "2"]}]}}',
        '{"status": "success", "data": {"result": [{"metric": "pod", "value": [1, "2"]}]}}',
        '{"status": "success", "data": {"result": [{"metric": {"pod": {}}, "value": [1, "2"]}]}}',
        '{"status": "success", "data": {"result": [{"metric": {}, "value": [1]}]}}',
        '{"status": "success", "data": {"result": [{"metric": {}, "value": [1, {}]}]}}',
        '{"status": "success", "data": {"result": [{"metric": {}, "value": [1%s, "2"]}]}}' % ("0" * 400),
        '{"status": "success", "data": {"result": [{"metric": {}, "value": [1, "2"]}]}, "warnings": 7}',
        '{"status": "success", "data": {"result": []}, "warnings": {"a": "b"}}',
        '{"status": "error", "error": "%s"}' % ("x" * 100_000),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_an_error_and_no_crash(
    server: Server, session: aiohttp.ClientSession, text: str
) -> None:
    server.answer = lambda request: web.Response(text=text)
    await refused(server, session)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROW = st.fixed_dictionaries({}, optional={"metric": JSON, "value": JSON, "values": JSON})
ANSWER = st.fixed_dictionaries(
    {"status": st.sampled_from(["success", "error"]) | JSON},
    optional={
        "data": st.fixed_dictionaries({"result": st.lists(ROW | JSON, max_size=3) | JSON}) | JSON,
        "warnings": JSON,
        "error": JSON,
    },
)


@given(ANSWER | JSON, st.sampled_from([200, 204, 400, 401, 422, 500, 503]))
@settings(max_examples=150, deadline=None)
def test_any_json_is_series_or_an_error(answer: Any, code: int) -> None:
    found: list[Series] = []
    with contextlib.suppress(PrometheusError):
        found = _parsed(OWN, code, json.dumps(answer).encode())
    for series in found:
        assert isinstance(series, Series)
        assert all(isinstance(text, str) for pair in series.labels.items() for text in pair)
        assert all(abs(value) < 1e15 for _, value in series.points)


@given(st.binary(max_size=200), st.sampled_from([200, 400, 500]))
def test_any_bytes_are_an_error(body: bytes, code: int) -> None:
    with pytest.raises(PrometheusError):
        _parsed(OWN, code, b"\x00" + body)


# What is asked


_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'"}


def read_literal(text: str, at: int) -> tuple[str, int]:
    """A PromQL string literal by the rules of Prometheus (those of Go), and where it ends; ValueError for what it would not take."""
    if text[at] != '"':
        raise ValueError("no literal")
    found, at = [], at + 1
    while text[at] != '"':
        if text[at] == "\n":
            raise ValueError("a line break in a literal")
        if text[at] != "\\":
            found.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            number = int(text[at + 2 : at + 6], 16)
            if 0xD800 <= number < 0xE000:
                raise ValueError("half of a pair")
            found.append(chr(number))
            at += 6
        else:
            found.append(_ESCAPES[text[at + 1]])
            at += 2
    return "".join(found), at + 1


def read_matchers(text: str) -> list[tuple[str, str, str]]:
    """The matchers of a selector: label, operator, value; ValueError if it is anything else."""
    found, at = [], 0
    while True:
        head = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(=~|!~|!=|=)").match(text, at)
        if head is None:
            raise ValueError(f"no matcher at {text[at : at + 20]!r}")
        value, at = read_literal(text, head.end())
        found.append((head[1], head[2], value))
        if at == len(text):
            return found
        if text[at] != ",":
            raise ValueError(f"more than a matcher at {text[at : at + 20]!r}")
        at += 1


NASTY = st.one_of(
    st.sampled_from(
        [
            '"',
            "\\",
            '\\"',
            '"}) or up{a="',
            '",namespace=~".*',
            "\n",
            "\r\n",
            "`",
            "'",
            ".*",
            "a|b",
            "\u2028",
            "\x00",
            "é",
            "𝒳",
        ]
    ),
    st.text(max_size=40),
)


@given(NASTY)
@settings(max_examples=150)
def test_any_text_is_one_literal_with_that_value(text: str) -> None:
    written = promql.quoted(text)
    assert read_literal(written, 0) == (text, len(written))
    assert read_matchers(promql.matches("pod", text)) == [("pod", "=", text)]


@given(NASTY, NASTY, NASTY, st.sampled_from(["Deployment", "StatefulSet"]))
@settings(max_examples=60)
def test_names_of_adopted_workloads_select_their_own_namespace_whatever_they_are(
    namespace: str, samplers: str, trainers: str, kind: str
) -> None:
    sides = [Side(role, kind, name, 1, 1, {}, {}) for role, name in (("sampler", samplers), ("trainer", trainers))]
    (own, pods) = read_matchers(series_of(namespace, sides))
    assert own == ("namespace", "=", namespace)
    assert pods[:2] == ("pod", "=~")
    pattern = re.compile(pods[2])
    tail = "-0" if kind == "StatefulSet" else "-5d8f7c-x2x4q"
    for name in (samplers, trainers):
        assert pattern.fullmatch(name + tail)
    assert not pattern.fullmatch(f"x{samplers}{tail}") or f"x{samplers}" == trainers


def test_every_question_about_a_job_holds_its_selector_in_every_part() -> None:
    selector = promql.matches("rljob_dev_uid", "one-job")
    for text in questions(selector, 60.0, 120.0, environment=True).texts:
        plain = re.sub(r'label_replace\(|, "rljob_reading", "[a-z_]+", "", ""\)', "", text)
        for braces in re.findall(r"\{([^{}]*)\}", plain):
            matchers = read_matchers(braces)
            assert ("rljob_dev_uid", "=", "one-job") in matchers, text
        outside = re.sub(r"\{[^{}]*\}", "{}", plain)
        names = re.findall(r"(?<![\w:])(?:vllm|rljob)[\w:]*(?!\w)(\{\})?", outside)
        assert all(names), f"a series without a selector: {outside}"


@pytest.mark.parametrize("uid", ["", 'a"} or up{a="', "a\n", "a,b", ".*", "a b", "ü"])
async def test_a_uid_that_is_none_asks_nothing(server: Server, session: aiohttp.ClientSession, uid: str) -> None:
    with pytest.raises(ValueError, match="is not the uid of a Kubernetes object"):
        await observe(
            Prometheus(session, server.url), uid, sampler_pods=(), trainer_pods=(), since=None, now=0.0, window_s=60.0
        )
    assert server.heard == []


# Labels of others


def _pod(name: str, namespace: str, node: str = "n1") -> dict[str, Any]:
    resources = {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": {UID_LABEL: "job-uid", ROLE_LABEL: "trainer"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running"},
    }


def test_a_pod_of_another_namespace_that_carries_a_job_s_uid_is_none_of_its_pods() -> None:
    mine, spoof = _pod("mine", "rl"), _pod("a-spoof", "other")
    jobs = {"job-uid": [{"metadata": {"uid": "job-uid", "name": "math", "namespace": "rl"}}]}
    view = View(pods={"job-uid": [spoof, mine]}, jobs=jobs)
    assert view.pods_of("job-uid", "rl") == [mine]
    census = view.census()
    assert census.bound_gpus("job-uid", "trainer", "nvidia.com/gpu") == 8
    assert census.on_node("n1")["job-uid"].of("nvidia.com/gpu") == 8
    assert census.on_node("n1")[""].of("nvidia.com/gpu") == 8, "its GPUs are held by others"
    assert census.pods_of("job-uid") == [mine]
    assert Census([mine, spoof]).bound_gpus("job-uid", "trainer", "nvidia.com/gpu") == 16


def test_a_layout_of_another_namespace_is_none_of_the_job_s() -> None:
    mine = {"metadata": {"name": "math-layout", "namespace": "rl"}, "data": {"a": "mine"}}
    spoof = {"metadata": {"name": "math-layout", "namespace": "other"}, "data": {"a": "spoof"}}
    view = View(children={("job-uid", "ConfigMap", "math-layout"): [spoof, mine]})
    assert view.child("job-uid", "ConfigMap", "math-layout", "rl") == mine
    assert view.child("job-uid", "ConfigMap", "math-layout", "third") is None


# What the page about it says


DOC = (Path(__file__).resolve().parents[2] / "docs/security.md").read_text()


def test_every_test_that_the_page_names_is_there() -> None:
    tests = Path(__file__).resolve().parents[1]
    written = "".join(path.read_text() for path in (tests / "cluster").glob("*.py"))
    named = re.findall(r"`(test_\w+)`", DOC)
    assert len(named) >= 4
    assert [name for name in named if f"def {name}(" not in written] == []
    assert [path for path in re.findall(r"`(tests/[\w/]+\.py)`", DOC) if not (tests.parent / path).exists()] == []


def test_every_variable_that_the_page_names_is_read() -> None:
    asked: set[str] = set()

    class Noting(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

    Config.from_env(Noting())
    named = set(re.findall(r"RLJOB_OPERATOR_[A-Z_]+", DOC))
    assert named
    assert named <= asked
