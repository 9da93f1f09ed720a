#!/usr/bin/env python3
"""Usage: rpm_test.py BUILD MADE
Tests the .rpm packages: what they say about themselves, that they have the files of the .debs, and an installation, an upgrade and a removal
in an empty root.
"""
import os
import re
import shutil
import tempfile
import unittest

import support
from support import OWN, run

SETTINGS = {}


class Rpm(unittest.TestCase):
    def setUp(self):
        self.rpms, self.debs = SETTINGS["rpms"], SETTINGS["debs"]

    def query(self, package, *words):
        return run("rpm", "--nosignature", "-qp", *words, self.rpms[package]).stdout.splitlines()

    def test_has_the_same_packages_and_files_as_the_debs(self):
        self.assertEqual(set(self.rpms), set(self.debs))
        for package in self.rpms:
            with tempfile.TemporaryDirectory() as folder:
                expected = {"/" + name for name in support.files_below(support.unpack(self.debs[package], folder))}
            expected = {name.replace("/zsh/vendor-completions/", "/zsh/site-functions/") for name in expected if "changelog.Debian" not in name}
            listed = {name for line in self.query(package, "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\\n]")
                      for mode, name in [line.split(" ", 1)] if not mode.startswith("d")}
            self.assertEqual(listed, expected, package)

    def test_owners_modes_and_configuration(self):
        for package in self.rpms:
            for line in self.query(package, "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEFLAGS:fflags} %{FILENAMES}\\n]"):
                mode, user, group, flags, name = re.fullmatch(r"(\S+) (\S+) (\S+) (\S*) (\S+)", line).groups()
                self.assertEqual((user, group), ("root", "root"), line)
                self.assertIn(mode, ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"), line)
                if name.startswith("/etc/") and not mode.startswith("d"):
                    self.assertEqual(flags, "cn", line)  # %config(noreplace)

    def test_offers_and_needs_no_private_library(self):
        private = set()
        for package in self.rpms:
            private |= {os.path.basename(name) for name in self.query(package, "-l") if re.match(rf"/{OWN}/lib/[^/]+\.so", name)}
        for package in self.rpms:
            for offered in self.query(package, "--provides"):
                self.assertTrue(offered.startswith(("gpupool-", "config(")), offered)
            needed = self.query(package, "--requires")
            for name in needed:
                library = re.match(r"(lib[^(]+\.so[^(]*)\(", name)
                if library and library[1] in private:
                    self.assertRegex(library[1], r"^lib(ssl|crypto|z|sqlite3|seccomp)\.so", f"{package} needs {name}")
            if package != "gpupool-common":
                self.assertTrue(any(name.startswith("gpupool-common") for name in needed), package)
        self.assertTrue(any(name.startswith("libc.so.6") for name in self.query("gpupool-client", "--requires")))

    def test_a_package_does_not_work_beside_an_older_one(self):
        for package in self.rpms:
            version, *_ = self.query(package, "--queryformat", "%{VERSION}-%{RELEASE}\\n")
            conflicts = self.query(package, "--conflicts")
            for sibling in self.rpms:
                self.assertEqual(f"{sibling} < {version}" in conflicts, sibling != package, f"{package}: {conflicts}")
            self.assertEqual(self.query(package, "--obsoletes"), [], "an upgrade would remove the package")

    def test_has_no_host_name_and_no_time_of_the_build(self):
        for package in self.rpms:
            host, *_ = self.query(package, "--queryformat", "%{BUILDHOST}\\n")
            self.assertEqual(host, "localhost")

    @unittest.skipUnless(os.geteuid() == 0, "SKIPPED: packaging.rpm: rpm --root needs root")
    def test_installs_upgrades_and_removes(self):
        with tempfile.TemporaryDirectory() as root:
            rpm = ("rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nosignature")
            # No dependencies and no scripts: the root has no C library and no shell. packaging.host runs the scripts, from the .debs.
            bare = ("--nodeps", "--noscripts")
            run(*rpm, "--initdb")
            run(*rpm, *bare, "-i", *self.rpms.values())
            self.assertTrue(os.path.exists(f"{root}/{OWN}/lib/client/libcuda.so.1"))
            self.assertEqual(run(*rpm, "-qa").stdout.count("gpupool-"), len(self.rpms))
            run(*rpm, "-V", *bare, *self.rpms)
            with open(f"{root}/etc/gpupool/poold.toml", "a", encoding="utf-8") as file:
                file.write("# mine\n")
            run(*rpm, *bare, "-U", "--replacepkgs", *self.rpms.values())
            with open(f"{root}/etc/gpupool/poold.toml", encoding="utf-8") as file:
                self.assertTrue(file.read().endswith("# mine\n"), "the upgrade has replaced the configuration")
            run(*rpm, *bare, "-e", *self.rpms)
            self.assertFalse(os.path.exists(f"{root}/{OWN}"), os.path.exists(f"{root}/{OWN}") and os.listdir(f"{root}/{OWN}"))
            self.assertEqual(os.listdir(f"{root}/etc/gpupool"), ["poold.toml.rpmsave"])


if __name__ == "__main__":
    if not shutil.which("rpm"):
        support.skip("packaging.rpm", "rpm is not installed (package rpm)")
    support.main()
