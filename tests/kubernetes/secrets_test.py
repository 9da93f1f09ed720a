"""Checks the Secrets of packaging/kubernetes/make-secrets.sh, with the real pool-scheduler.

    secrets_test.py BUILD [unittest's arguments]
"""
import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import unittest

import yaml
from kubernetes import client

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "python"))
import cases  # noqa: E402


class Secrets(unittest.TestCase):
    def made(self):
        script = ROOT / "packaging/kubernetes/make-secrets.sh"
        done = subprocess.run([script, "gpupool", "ml,vision", "gpu-1,gpu-2"], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{BUILD}/bin:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        all_of = list(yaml.safe_load_all(done.stdout))
        for one in filter(None, all_of):
            client.V1Secret.model_validate(one)
        return {(one["metadata"]["namespace"], one["metadata"]["name"]): {key: base64.b64decode(value).decode() for key, value in
                                                                          one["data"].items()} for one in all_of if one}

    def test_a_scheduler_knows_all_tokens(self):
        secrets = self.made()
        scheduler = secrets["gpupool", "gpupool-scheduler"]
        tokens = [secrets["ml", "gpupool-token"]["token"], secrets["vision", "gpupool-token"]["token"],
                  secrets["gpupool", "gpupool-operator"]["token"], *secrets["gpupool", "gpupool-nodes"].values()]
        self.assertEqual(sorted(secrets["gpupool", "gpupool-nodes"]), ["gpu-1", "gpu-2"])
        for token in tokens:
            self.assertIn(hashlib.sha256(token.strip().encode()).hexdigest(), scheduler["pool-scheduler.toml"])
        self.assertIn("PRIVATE KEY", scheduler["key.pem"])
        self.assertIn("PUBLIC KEY", secrets["gpupool", "gpupool-public"]["public.pem"])
        self.assertNotEqual(self.made()["ml", "gpupool-token"], secrets["ml", "gpupool-token"])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    cases.main()
