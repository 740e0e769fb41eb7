"""The manifests of the pages have the fields and types that Kubernetes and Kubeflow publish.

The schemas are those from which Kubeflow's and Kubernetes's own Python clients were generated:
``pip install -r requirements/launchers.txt``. No cluster runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = ("docs/scaling.md", "docs/getting-started/kubernetes.md")
PLAIN = {"str": str, "int": int, "bool": bool, "float": float}
KINDS = {"kubeflow.org/v1 PyTorchJob": "KubeflowOrgV1PyTorchJob", "v1 Secret": "V1Secret"}
OPTIONAL = ("KubeflowOrgV1PyTorchJobSpec", "run_policy")  # in the CRD, but not in its client
QUANTITIES = ("limits", "requests")  # numbers or strings, which the clients call strings
RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")  # of Kubeflow; its clients say "str"


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """The classes by name, each with the names and types of its fields."""
    reason = "pip install -r requirements/launchers.txt"
    kubernetes = pytest.importorskip("kubernetes.client.models", reason=reason)
    kubeflow = pytest.importorskip("kubeflow.training.models", reason=reason)
    return vars(kubernetes) | vars(kubeflow)


def manifests() -> Iterator[dict[str, Any]]:
    for page in PAGES:
        for text in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            yield from yaml.safe_load_all(text)


def faults(value: Any, kind: str, models: dict[str, Any], place: str) -> list[str]:
    """Say what does not fit the type ``kind``, as the clients write types."""
    inner = re.match(r"(list\[|dict\(str, )(.*)[\])]$", kind)
    if kind == "object":
        return []
    if inner is not None:
        pairs = enumerate(value) if isinstance(value, list) else value.items()
        if isinstance(value, list) != kind.startswith("list"):
            return [f"{place} is not a {kind}"]
        return [
            fault for key, one in pairs for fault in faults(one, inner[2], models, f"{place}.{key}")
        ]
    if kind in PLAIN:
        if type(value) is int and any(f".{name}." in place for name in QUANTITIES):
            return []
        return [] if type(value) is PLAIN[kind] else [f"{place} is {value!r}, not a {kind}"]
    return _faults_of_object(value, models[kind.replace("K8sIoApiCore", "")], models, place)


def _faults_of_object(value: Any, model: Any, models: dict[str, Any], place: str) -> list[str]:
    names = {name: attribute for attribute, name in model.attribute_map.items()}
    unknown = [f"{place}.{key} is not a field of {model.__name__}" for key in value.keys() - names]
    try:
        model(**{names[key]: one for key, one in value.items() if key in names})
    except ValueError as error:  # a required field is absent
        if not (model.__name__ == OPTIONAL[0] and OPTIONAL[1] in str(error)):
            unknown.append(f"{place}: {error}")
    return unknown + [
        fault
        for key, one in value.items()
        if key in names
        for fault in faults(one, model.openapi_types[names[key]], models, f"{place}.{key}")
    ]


def check(manifest: dict[str, Any], models: dict[str, Any]) -> list[str]:
    kind = f"{manifest['apiVersion']} {manifest['kind']}"
    found = faults(manifest, KINDS[kind], models, manifest["kind"])
    for name, replica in manifest.get("spec", {}).get("pytorchReplicaSpecs", {}).items():
        if replica.get("restartPolicy", "Never") not in RESTARTS:
            found.append(f"{name}: restartPolicy {replica['restartPolicy']}")
    return found


def test_the_manifests_fit_the_schemas(models):
    found = list(manifests())
    assert [one["kind"] for one in found] == ["PyTorchJob"]
    assert [check(one, models) for one in found] == [[]] * len(found)


MISTAKES = {
    ("nprocPerNode: 4", 'nprocPerNode: "4"'): "nprocPerNode is 4, not a str",
    ("maxRestart: 3", "maxRestarts: 3"): "elasticPolicy.maxRestart is not a field of",
    ("restartPolicy: Sometimes", "restartPolicy: OnFailure"): "Worker: restartPolicy Sometimes",
    ("- title: pytorch", "- name: pytorch"): "Invalid value for `name`, must not be `None`",
    ("{name: checkpoints}", "{name: checkpoints, mountPath: /work/checkpoints}"): "mount_path",
}


@pytest.mark.parametrize("wrong", MISTAKES, ids=lambda wrong: wrong[0])
def test_a_mistake_is_found(wrong, models):
    mistake, text = wrong
    (manifest,) = manifests()
    written = (ROOT / PAGES[0]).read_text().partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(written) == manifest and written.count(text) == 1
    assert MISTAKES[wrong] in str(check(yaml.safe_load(written.replace(text, mistake)), models))
