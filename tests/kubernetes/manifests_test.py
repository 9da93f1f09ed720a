"""Checks the chart of packaging/kubernetes/ and the plain manifests, with the models of the package kubernetes.

    manifests_test.py [unittest's arguments]
"""
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml
from kubernetes import client

from chart import PACKAGING, ROOT, SCRIPT, manifests, roles, rules_of

sys.path.insert(0, str(ROOT / "tests/python"))
import cases  # noqa: E402

MODELS = {
    "ClusterRole": client.V1ClusterRole,
    "ClusterRoleBinding": client.V1ClusterRoleBinding,
    "DaemonSet": client.V1DaemonSet,
    "Deployment": client.V1Deployment,
    "DeviceClass": client.V1DeviceClass,
    "NetworkPolicy": client.V1NetworkPolicy,
    "Pod": client.V1Pod,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
    "ResourceClaimTemplate": client.V1ResourceClaimTemplate,
    "ResourceQuota": client.V1ResourceQuota,
    "Service": client.V1Service,
    "ServiceAccount": client.V1ServiceAccount,
    "StatefulSet": client.V1StatefulSet,
}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "DeviceClass"}


def load_script():
    specification = importlib.util.spec_from_file_location("render_chart", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


SCRIPT_MODULE = load_script()


def examples_of(page):
    """Returns the manifests in the indented blocks of a page."""
    blocks, block = [], []
    for line in (ROOT / page).read_text().splitlines() + [""]:
        if line.startswith("    ") or (block and not line):
            block.append(line[4:])
        else:
            blocks.append("\n".join(block))
            block = []
    return [one for text in blocks if text.lstrip().startswith("apiVersion:") for one in yaml.safe_load_all(text) if one]


class Manifests(unittest.TestCase):
    variants = (
        (),
        ("tls.secretName=gpupool-tls", "poold.listen=tls://0.0.0.0:9700", "poold.address=tls://$(NODE_NAME):9700", "poold.hostNetwork=true"),
        ("scheduler.enabled=false", "poold.enabled=false", "node.options=[--no-dra, --resource, 'gpupool.dev/half:compute=50']",
         "defaultTokenSecret=gpupool-default", "devicePluginTokenSecret=gpupool-device-plugin"),
        ("poold.runtimeClassName=", "poold.device=softgpu", "poold.resources={limits: {nvidia.com/gpu: '8'}}"),
    )

    def test_all_variants_are_valid(self):
        for settings in self.variants:
            for one in manifests(*settings, namespace="other"):
                with self.subTest(settings=settings, kind=one["kind"], name=one["metadata"]["name"]):
                    MODELS[one["kind"]].model_validate(one)
                    self.assertEqual(one["metadata"].get("namespace"), None if one["kind"] in CLUSTER_WIDE else "other")

    def test_the_examples_of_the_page_are_valid(self):
        found = examples_of("docs/kubernetes.md")
        self.assertEqual({one["kind"] for one in found}, {"Pod", "ResourceClaimTemplate"})
        for one in found:
            MODELS[one["kind"]].model_validate(one)

    def test_the_plain_manifests_are_those_of_the_chart(self):
        written = SCRIPT_MODULE.render_chart(PACKAGING / "chart", "gpupool")
        self.assertEqual((PACKAGING / "gpupool.yaml").read_text(), written, "run scripts/render-chart.py > packaging/kubernetes/gpupool.yaml")

    def test_names_are_unique_and_mounts_have_volumes(self):
        for settings in self.variants:
            names = set()
            for one in manifests(*settings):
                name = one["kind"], one["metadata"]["name"]
                self.assertNotIn(name, names)
                names.add(name)
                for pod in self.pods_of(one):
                    volumes = {volume["name"] for volume in pod.get("volumes", [])}
                    volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
                    mounts = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
                    self.assertEqual(mounts, volumes, name)
                    self.assertEqual(one["spec"]["selector"]["matchLabels"], one["spec"]["template"]["metadata"]["labels"])

    def test_the_kubelets_and_the_containers_paths_are_the_hosts(self):
        [node] = [pod for one in manifests() if one["metadata"]["name"] == "gpupool-node" for pod in self.pods_of(one)]
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in node["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in node["containers"][0]["volumeMounts"]}
        self.assertEqual(paths, mounts)

    def test_the_state_is_where_the_program_keeps_it_and_in_no_folder_of_a_service(self):
        """systemd gives the folders of a service to its user: on a host with both they would be gone for the plugin."""
        [node] = [pod for one in manifests() if one["metadata"]["name"] == "gpupool-node" for pod in self.pods_of(one)]
        [state] = [pathlib.PurePath(volume["hostPath"]["path"]) for volume in node["volumes"] if volume["name"] == "state"]
        self.assertIn(f'state_folder = "{state}"', (ROOT / "client/kubernetes/options.h").read_text())
        units = "\n".join(path.read_text() for path in (ROOT / "packaging").rglob("*.service"))
        folders = [pathlib.PurePath("/var/lib", name) for line in re.findall(r"^StateDirectory=(.*)$", units, re.M) for name in line.split()]
        self.assertNotEqual(folders, [])
        for folder in folders:
            self.assertNotIn(folder, (state, *state.parents))

    def test_critical_pods_have_a_quota(self):
        """The admission plugin ResourceQuota can be set up, as in GKE, to refuse them elsewhere than in kube-system without one."""
        objects = manifests(namespace="other")
        used = {pod["priorityClassName"] for one in objects for pod in self.pods_of(one) if "priorityClassName" in pod}
        self.assertEqual(used, {"system-node-critical"})
        [quota] = [one for one in objects if one["kind"] == "ResourceQuota"]
        [selector] = quota["spec"]["scopeSelector"]["matchExpressions"]
        self.assertEqual((selector["scopeName"], selector["operator"], set(selector["values"])), ("PriorityClass", "In", used))
        self.assertEqual((quota["metadata"]["namespace"], list(quota["spec"]["hard"])), ("other", ["pods"]))

    def test_the_device_plugin_has_a_token_of_its_own(self):
        [node] = [pod for one in manifests(*self.variants[2]) if one["metadata"]["name"] == "gpupool-node" for pod in self.pods_of(one)]
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in node["volumes"] if "secret" in volume}
        mounts = {mount["mountPath"]: secrets[mount["name"]] for mount in node["containers"][0]["volumeMounts"] if mount["name"] in secrets}
        words = node["containers"][0]["args"]
        files = {option: pathlib.PurePath(words[words.index(option) + 1]) for option in ("--token-file", "--device-plugin-token-file")}
        self.assertEqual({option: mounts[str(path.parent)] for option, path in files.items()},
                         {"--token-file": "gpupool-default", "--device-plugin-token-file": "gpupool-device-plugin"})

    def test_nothing_of_nvidias_operator_is_taken(self):
        for settings in self.variants[:3]:
            for one in manifests(*settings):
                self.assertNotIn("nvidia.com", one["metadata"]["name"])
                for pod in self.pods_of(one):
                    for container in pod["containers"]:
                        self.assertFalse(any("nvidia.com" in name for name in (container.get("resources") or {}).get("limits", {})))

    def test_accounts_may_do_only_what_the_program_does(self):
        objects = [*manifests(), *roles("ml", "vision")]
        for account in ("gpupool-controller", "gpupool-node"):
            rules = rules_of(account, objects)
            for _, rule in rules:
                self.assertNotIn("*", rule["verbs"] + rule["resources"] + rule["apiGroups"])
            secrets = [(space, rule["resourceNames"], rule["verbs"]) for space, rule in rules if "secrets" in rule["resources"]]
            self.assertEqual(secrets, [(space, ["gpupool-token"], ["get"]) for space in ("ml", "vision")])
        self.assertFalse(any("pods" in rule["resources"] for _, rule in rules_of("gpupool-controller", objects)))

    def test_the_roles_of_a_namespace_are_valid(self):
        for one in roles("ml", "vision", namespace="other"):
            MODELS[one["kind"]].model_validate(one)
        subjects = [subject for one in roles("ml", namespace="other") for subject in one.get("subjects", [])]
        self.assertEqual({subject["namespace"] for subject in subjects}, {"other"})

    def pods_of(self, one):
        return [one["spec"]["template"]["spec"]] if "template" in one.get("spec", {}) else []


class Renderer(unittest.TestCase):
    def rendered(self, template, **values):
        return SCRIPT_MODULE.render(template, {"Values": values})

    def test_conditions_and_values(self):
        template = "{{- if .Values.on }}\na: {{ .Values.text }}\n{{- else }}\nb: 1\n{{- end }}\nc:\n  {{- toYaml .Values.table | nindent 2 }}\n"
        self.assertEqual(self.rendered(template, on=True, text="x", table={"k": [1]}), "a: x\nc:\n  k:\n  - 1\n")
        self.assertEqual(self.rendered(template, on=False, text="x", table=[]), "b: 1\nc:\n  []\n")

    def test_what_it_does_not_know_fails(self):
        for template in ("a: {{ .Values.none }}", "a: {{ include \"x\" . }}", "{{- if .Values.on }}\n", "{{- end }}", "{{- range .Values.on }}"):
            with self.assertRaises(SCRIPT_MODULE.TemplateError):
                self.rendered(template, on=True)

    def test_a_misspelt_value_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, SCRIPT, "--set", "tls.secret=x"], capture_output=True, text=True, cwd=folder)
        self.assertEqual((done.returncode, done.stderr), (1, "render-chart.py: there is no value tls.secret\n"))


if __name__ == "__main__":
    cases.main()
