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
    "controller": {
        "keys": {"secretName": "keys"},
        "controller": {"enabled": True, "replicas": 2},
        "networkPolicy": {"from": [{"namespaceSelector": {}}]},
    },
    "controller of one namespace": {
        "keys": {"secretName": "keys"},
        "controller": {"enabled": True, "watchNamespace": "agents", "name": "other", "key": "shared", "tolerations": [{"operator": "Exists"}]},
    },
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
    "a controller without a key": {**IMAGE, "controller": {"enabled": True}},
    "a controller that would speak TLS": {
        **IMAGE,
        "keys": {"secretName": "keys"},
        "tls": {"secretName": "tls"},
        "controller": {"enabled": True},
    },
    "a name that is no label": {**IMAGE, "keys": {"secretName": "keys"}, "controller": {"enabled": True, "name": "Not_One"}},
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


#: What the controller asks for; `crates/kubernetes` asks for nothing else, which its tests before a stand-in show.
ASKED = {
    "agents.x-k8s.io": {
        "sandboxes": "get list watch create patch delete",
        "sandboxes/status": "patch",
        "sandboxes/finalizers": "update",
    },
    "extensions.agents.x-k8s.io": {
        "sandboxclaims": "get list watch patch delete",
        "sandboxclaims/status": "patch",
        "sandboxclaims/finalizers": "update",
        "sandboxtemplates": "get list watch",
        "sandboxwarmpools": "get list watch",
        "sandboxwarmpools/status": "patch",
        "sandboxwarmpools/finalizers": "update",
    },
    "": {"pods": "get list watch create delete", "services": "get create patch delete", "nodes": "get"},
    "discovery.k8s.io": {"endpointslices": "get create patch delete"},
    "node.k8s.io": {"runtimeclasses": "get"},
}


def check_controller(documents, values, daemons):
    """That it is there where it is asked for, may do what it does and no more, and is taken for no daemon."""
    settings = values.get("controller", {})
    kinds = ("Deployment", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
    if not settings.get("enabled"):
        assert not [kind for kind, _ in documents if kind in kinds]
        return
    namespace = settings.get("watchNamespace")
    granted = {}
    for (kind, name), document in documents.items():
        # What it may do in its own namespace is little, and fixed.
        if kind == "ClusterRole" or (kind == "Role" and document["metadata"].get("namespace")):
            assert kind == "ClusterRole" or document["metadata"]["namespace"] == namespace
            for rule in document["rules"]:
                for resource in rule["resources"]:
                    granted.setdefault(rule["apiGroups"][0], {})[resource] = " ".join(rule["verbs"])
    assert granted == ASKED, granted
    own = documents["Role", "boxes-controller"]["rules"]
    assert [rule["resources"] for rule in own] == [["leases"], ["leases"], ["pods"]] and own[2]["verbs"] == ["list", "watch"]
    cluster = next(document for (kind, _), document in documents.items() if kind == "ClusterRole")["rules"]
    assert namespace is None or [rule["resources"] for rule in cluster] == [["nodes"], ["runtimeclasses"]]
    pod = documents["Deployment", "boxes-controller"]["spec"]["template"]
    selector = daemons["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]} and context["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    words = container["command"]
    said = {word.split("=", 1)[0]: word.split("=", 1)[1] for word in words[2:]}
    assert dict(pair.split("=") for pair in said["--daemons"].split(",")) == selector
    [lease] = own[1]["resourceNames"]
    assert lease == f"offleash-controller-{said['--name']}"
    with tempfile.NamedTemporaryFile("w") as key:
        key.write("e2b_" + "0" * 40)
        key.flush()
        # The program takes the flags, and finds that nobody is at that address.
        flags = [f"--key-file={key.name}" if word.startswith("--key-file") else word for word in words[1:]]
        command = [os.environ.get("OFFLEASH_BINARY", "offleash"), *flags, "--namespace=boxes", "--api-server=http://127.0.0.1:1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "cannot list Sandboxes" in done.stderr, done.stderr


def main():
    report = helm_python.lint(CHART, IMAGE, strict=True)
    assert not report["errors"] and all(message["severity"] < 2 for message in report["messages"]), report
    chart = helm_python.Chart.load(CHART)
    for name, values in CASES.items():
        documents = rendered(chart, values)
        check_controller(documents, values, daemons=documents["DaemonSet", "boxes"])
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
