"""The Helm chart, rendered by Helm's own engine and checked against the published schemas of Kubernetes, strictly; no cluster is asked.

It looks as well whether the daemon's pod has no privilege, and whether `offleash serve` takes the configuration.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parents[2] / "packaging" / "helm" / "offleash"
VERSIONS = ("1.33", "1.34", kubernetes_validate.latest_version())
IMAGE = {"image": {"repository": "registry.example/offleash"}}

CASES = {
    "defaults": {},
    "everything": {
        "keys": {"secretName": "keys"},
        "tls": {"secretName": "tls"},
        "domain": "box.example",
        "state": {"hostPath": "/var/lib/offleash"},
        "podDisruptionBudget": {"minAvailable": 2},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"agents": "yes"}}}]},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "runtimeClassName": "writable",
        "priorityClassName": "high",
        "front": {
            "enabled": True,
            "keySecretName": "front",
            "tls": {"secretName": "front-tls"},
            "nodesCaSecretName": "tls",
            "service": {"type": "LoadBalancer", "port": 443},
        },
    },
    "a front": {"front": {"enabled": True, "keySecretName": "front"}},
    "weaker": {
        "podSecurity": {"hostUsers": True, "procMount": "Default"},
        "networkPolicy": {"enabled": False},
        "config": '[sandboxes]\nlevel = "simulated"\n',
    },
}

WRONG = {
    "no image": {"image": {"repository": ""}},
    "a key that is none": {**IMAGE, "imagee": {}},
    "a port beyond all": {**IMAGE, "service": {"port": 70000}},
    "a share of a DaemonSet": {**IMAGE, "podDisruptionBudget": {"minAvailable": "50%"}},
    "a front without a key": {**IMAGE, "front": {"enabled": True}},
    "a Service of no type": {**IMAGE, "front": {"enabled": True, "keySecretName": "a", "service": {"type": "Ingress"}}},
    "another procMount": {**IMAGE, "podSecurity": {"procMount": "unmasked"}},
}


def rendered(chart, values):
    found = {}
    for path, text in chart.render({**IMAGE, **values}, name="boxes", namespace="agents").items():
        if not path.endswith(".txt"):
            for document in yaml.safe_load_all(text):
                if document:
                    found[document["kind"], document["metadata"]["name"]] = document
    return found


def unprivileged(pod, values):
    """What the pod has, whatever the values say."""
    security = {**{"hostUsers": False, "procMount": "Unmasked"}, **values.get("podSecurity", {})}
    assert pod["hostUsers"] is security["hostUsers"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container["securityContext"]
        assert context["privileged"] is False and context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"] is True
        assert context["procMount"] == security["procMount"]
        # Kubernetes takes an unmasked /proc only in a user namespace of the pod's own.
        assert context["procMount"] == "Default" or pod["hostUsers"] is False


def mounted(pod):
    """Whether all that is mounted is a volume, and the other way round."""
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"] for container in pod["containers"] + pod.get("initContainers", []) for mount in container["volumeMounts"]}
    assert mounts == volumes, (mounts, volumes)


def fronted(documents, values):
    """Whether the front leads to nodes, nobody's Service to both, and `offleash front` takes what it is told."""
    deployment = documents["Deployment", "boxes-front"]["spec"]
    pod = deployment["template"]["spec"]
    mounted(pod)
    labels = deployment["template"]["metadata"]["labels"]
    nodes = documents["DaemonSet", "boxes"]["spec"]["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    for (kind, name), document in documents.items():
        if kind == "Service":
            selector = document["spec"]["selector"]
            leads = selector.items() <= labels.items(), selector.items() <= nodes.items()
            assert leads == ((True, False) if name == "boxes-front" else (False, True)), name
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["automountServiceAccountToken"] is False
    container = pod["containers"][0]
    context = container["securityContext"]
    assert context["privileged"] is False and context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"] is True
    words = container["args"]
    url = words[words.index("--nodes-dns") + 1]
    assert url == f"http{'s' if values.get('tls') else ''}://boxes-nodes.agents.svc:3000", url
    assert ("Service", "boxes-nodes") in documents
    if values.get("tls"):
        # Its files are not here.
        return
    with tempfile.NamedTemporaryFile("w") as key:
        key.write("e2b_" + "0" * 40)
        key.flush()
        words = [{"/etc/offleash/front/key": key.name, "0.0.0.0:3000": "127.0.0.1:0"}.get(word, word) for word in words]
        program = os.environ.get("OFFLEASH_BINARY", "offleash")
        front = subprocess.Popen([program, "front", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            # The name leads nowhere here, as before the first node is there.
            assert front.stdout.readline().startswith("export E2B_API_URL=")
        finally:
            front.terminate()
            front.wait(timeout=30)


def taken(text, values):
    """Whether `offleash serve` takes the configuration; files of TLS are not here."""
    lines = [line for line in text.splitlines() if not line.startswith("tls_")]
    if values.get("tls"):
        assert len(lines) == len(text.splitlines()) - 2
        lines.insert(0, "insecure_public = true")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("\n".join(lines))
        file.flush()
        words = [os.environ.get("OFFLEASH_BINARY", "offleash"), "serve", "--config", file.name, "--config-check"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def main():
    report = helm_python.lint(CHART, IMAGE, strict=True)
    assert not report["errors"] and all(message["severity"] < 2 for message in report["messages"]), report
    chart = helm_python.Chart.load(CHART)
    for name, values in CASES.items():
        documents = rendered(chart, values)
        for document in documents.values():
            for version in VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)
        daemons = documents["DaemonSet", "boxes"]["spec"]
        unprivileged(daemons["template"]["spec"], values)
        labels = daemons["template"]["metadata"]["labels"]
        selectors = [daemons["selector"]["matchLabels"]]
        selectors += [documents["Service", name]["spec"]["selector"] for name in ("boxes", "boxes-nodes")]
        assert all(selector.items() <= labels.items() for selector in selectors)
        mounted(daemons["template"]["spec"])
        assert (("Deployment", "boxes-front") in documents) == ("front" in values)
        if "front" in values:
            fronted(documents, values)
        assert (("PodDisruptionBudget", "boxes") in documents) == ("podDisruptionBudget" in values)
        taken(documents["ConfigMap", "boxes"]["data"]["serve.toml"], values)
        print(f"{name}: {len(documents)} objects, schemas of {', '.join(VERSIONS)}")
    for name, values in WRONG.items():
        try:
            chart.validate_schema(chart.merge_values(values))
            chart.render(values, name="boxes", namespace="agents")
        except helm_python.HelmError:
            continue
        raise AssertionError(f"{name} was taken")
    print("ok")


main()
