"""What `helm test` asks, from a pod: does the API serve RLJobs, may the operator read them, is it well, does it export metrics."""

import os
import ssl
import sys
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def read(url, what, headers=None, context=None):
    """The text at a URL; ends the test with what is wrong and what to look at."""
    try:
        request = urllib.request.Request(url, headers=headers or {})
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.read().decode()
    except OSError as error:
        sys.exit(f"FAILED: {what}: {url}: {error}")


host = os.environ["KUBERNETES_SERVICE_HOST"]
host = f"[{host}]" if ":" in host else host
api = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
with open(f"{ACCOUNT}/token") as file:
    token = {"Authorization": f"Bearer {file.read().strip()}"}
trusted = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
jobs = [f"namespaces/{name}/rljobs" for name in os.environ["NAMESPACES"].split()] or ["rljobs"]
for path in jobs:
    read(
        f"{api}/apis/rljob.dev/v1alpha1/{path}?limit=1",
        "the API server does not let the operator read RLJobs: are the CRDs installed (crds.install), and the roles (rbac.create)?",
        token,
        trusted,
    )
print("ok: the API server serves RLJobs, and the operator may read them")
operator = os.environ["OPERATOR"]
read(
    f"http://{operator}:{os.environ['HEALTH_PORT']}/healthz",
    "the operator is not well: see its log",
)
print("ok: the operator is well")
metrics = read(
    f"http://{operator}:{os.environ['METRICS_PORT']}/metrics",
    "the operator's metrics can't be read: does a NetworkPolicy stand between?",
)
if "rljob_operator_leader" not in metrics:
    sys.exit("FAILED: rljob_operator_leader is not among the operator's metrics: is this its Service?")
print("ok: the operator exports its metrics")
