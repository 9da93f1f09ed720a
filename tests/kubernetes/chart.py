"""The manifests of the chart and of make-roles.sh, and what they allow gpupool's accounts.

Helm itself is not used: scripts/render-chart.py renders the part of its language that the chart uses.
"""
import pathlib
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "packaging/kubernetes"
SCRIPT = ROOT / "scripts/render-chart.py"


def output_of(*words):
    text = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


def manifests(*settings, namespace="gpupool"):
    words = [word for setting in settings for word in ("--set", setting)]
    return output_of(sys.executable, SCRIPT, "--namespace", namespace, *words)


def roles(*spaces, namespace="gpupool"):
    return output_of(PACKAGING / "make-roles.sh", namespace, ",".join(spaces))


def rules_of(account, objects, namespace="gpupool"):
    """Returns (namespace, rule) for all that an account may do; namespace None: in the whole cluster."""
    rules = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one["rules"] for one in objects if "rules" in one}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    granted = []
    for binding in objects:
        if subject in binding.get("subjects", []):
            space = binding["metadata"].get("namespace")
            role = binding["roleRef"]
            granted += [(space, rule) for rule in rules[role["kind"], None if role["kind"] == "ClusterRole" else space, role["name"]]]
    return granted
