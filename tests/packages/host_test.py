#!/usr/bin/env python3
"""Usage: host_test.py BUILD MADE
Installs, upgrades, removes and purges the .deb packages in a root of their own with dpkg, which runs their scripts with DPKG_ROOT.
bare_root_test.sh does it in whole systems.
"""
import os
import pathlib
import re
import shutil
import tempfile
import unittest

import support
from support import OWN, run

SETTINGS = {}
STATE = ("var/lib/gpupool", "var/lib/poold", "var/log/gpupool", "var/log/pool-scheduler")  # as the units make them
WANTED = "etc/systemd/system/multi-user.target.wants/poold.service"


class Root:
    """An empty system with dpkg's database."""
    def __init__(self, folder):
        self.path = pathlib.Path(folder)
        for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc", "run"):
            (self.path / name).mkdir(parents=True)
        for name in ("status", "available"):
            (self.path / "var/lib/dpkg" / name).touch()

    def dpkg(self, *words, check=True, configuration="--force-confold"):
        # The dependencies on the C library and on systemd are not in this root. apt gives --auto-deconfigure, too.
        return run("dpkg", f"--root={self.path}", f"--log={self.path}/log", "--force-script-chrootless", "--force-depends", configuration,
                   "--auto-deconfigure", *words, check=check, env=support.without({"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, "DPKG_ROOT"))

    def states(self):
        listed = run("dpkg-query", f"--admindir={self.path}/var/lib/dpkg", "-W", "-f", "${Package} ${db:Status-Status}\n", check=False).stdout
        return dict(re.findall(r"^(gpupool-\w+) (\S+)$", listed, re.MULTILINE))


def revised(deb, folder, revision, more=()):
    """A package like the given one, of another revision, with other configuration and with `more` files."""
    tree = pathlib.Path(folder, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    run("dpkg-deb", "-R", deb, tree)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(\d)-1\b", rf"\1-{revision}", control.read_text()))
    for name in tree.glob("etc/gpupool/*"):
        name.write_text(name.read_text() + f"# of revision {revision}\n")
    for name in more:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"of revision {revision}")
    made = pathlib.Path(folder, deb.name.replace("-1_", f"-{revision}_"))
    run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, made)
    return made


class Host(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.root = Root(f"{self.scratch.name}/root")
        self.path = self.root.path
        self.debs = SETTINGS["debs"]

    def assert_states(self, state):
        self.assertEqual(self.root.states(), {package: state for package in self.debs})

    def test_installs_upgrades_removes_and_purges(self):
        self.root.dpkg("-i", *self.debs.values())
        self.assert_states("installed")
        self.check_installed()
        self.upgrade()
        self.root.dpkg("-r", *self.debs)
        self.check_removed()
        self.root.dpkg("-P", *self.debs)
        self.assertEqual(self.root.states(), {})
        self.check_purged()

    def check_installed(self):
        self.assertTrue((self.path / "usr/bin/pool-run").exists())
        self.assertFalse((self.path / WANTED).is_symlink(), "the installation has enabled poold")
        if shutil.which("systemd-tmpfiles"):
            self.assertTrue((self.path / "run/gpupool").is_dir())
        if shutil.which("systemd-sysusers"):
            self.assertIn("\ngpupool:", "\n" + (self.path / "etc/passwd").read_text())

    def upgrade(self):
        edited = self.path / "etc/gpupool/poold.toml"
        edited.write_text(edited.read_text() + "# mine\n")
        (self.path / "etc/gpupool/mine.key").write_text("secret")
        for name in STATE:
            (self.path / name).mkdir(parents=True)
        (self.path / WANTED).parent.mkdir(parents=True, exist_ok=True)
        (self.path / WANTED).symlink_to("/usr/lib/systemd/system/poold.service")
        self.root.dpkg("-i", *[revised(deb, self.scratch.name, 2) for deb in self.debs.values()])
        self.assert_states("installed")
        self.assertTrue(edited.read_text().endswith("# mine\n"), "the upgrade has replaced edited configuration")
        self.assertIn("# of revision 2", (self.path / "etc/gpupool/poold.toml.dpkg-dist").read_text())
        self.assertIn("# of revision 2", (self.path / "etc/gpupool/pool-scheduler.toml").read_text())
        self.assertTrue((self.path / WANTED).is_symlink(), "the upgrade has disabled poold")

    def check_removed(self):
        self.assertEqual(set(self.root.states().values()), {"config-files"})
        self.assertFalse((self.path / OWN).exists())
        self.assertTrue((self.path / "etc/gpupool/poold.toml").exists())
        for name in STATE:
            self.assertTrue((self.path / name).exists(), name)
        if shutil.which("systemctl"):
            self.assertFalse((self.path / WANTED).is_symlink(), "the removal has left poold enabled")

    def check_purged(self):
        self.assertEqual(os.listdir(self.path / "etc/gpupool"), ["mine.key"], "a purge deletes the packages' files, and no others")
        for name in STATE:
            self.assertFalse((self.path / name).exists(), name)

    def test_a_package_needs_its_neighbours_in_the_same_version(self):
        self.root.dpkg("-i", *self.debs.values())
        for package in self.debs:
            if package == "gpupool-common":
                continue
            depends = run("dpkg-deb", "-f", self.debs[package], "Depends").stdout
            version = run("dpkg-deb", "-f", self.debs[package], "Version").stdout.strip()
            self.assertIn(f"gpupool-common (= {version})", depends)

    def test_a_library_may_move_between_packages(self):
        library = f"{OWN}/lib/libmoves.so.1"
        for number, (owner, heir) in enumerate((("gpupool-common", "gpupool-client"), ("gpupool-client", "gpupool-common"))):
            with self.subTest(owner=owner, heir=heir):
                root = Root(f"{self.scratch.name}/root{number}")
                # All but one package: dpkg must not need a package that a host does not have.
                debs = {package: deb for package, deb in self.debs.items() if package != "gpupool-scheduler"}
                root.dpkg("-i", *[revised(deb, self.scratch.name, 2, [library] if package == owner else []) for package, deb in debs.items()])
                newer = {package: revised(deb, self.scratch.name, 3, [library] if package == heir else []) for package, deb in debs.items()}
                # dpkg unpacks the package that gets the library before the one that loses it.
                root.dpkg("-i", newer.pop(heir), newer.pop(owner), *newer.values())
                self.assertEqual(root.states(), {package: "installed" for package in debs})
                self.assertEqual((root.path / library).read_text(), "of revision 3")

    def test_a_package_does_not_work_beside_an_older_one(self):
        for package, deb in self.debs.items():
            version = run("dpkg-deb", "-f", deb, "Version").stdout.strip()
            for relation in ("Breaks", "Replaces"):
                listed = run("dpkg-deb", "-f", deb, relation).stdout
                for sibling in self.debs:
                    self.assertEqual(f"{sibling} (<< {version})" in listed, sibling != package, f"{relation} of {package}: {listed}")

    def test_edited_configuration_is_a_question_unless_the_upgrade_answers_it(self):
        """Without a terminal: docs/packages.md says what an upgrade needs."""
        server = {package: self.debs[package] for package in ("gpupool-common", "gpupool-server")}
        self.root.dpkg("-i", *server.values())
        edited = self.path / "etc/gpupool/poold.toml"
        edited.write_text(edited.read_text() + "# mine\n")
        asked = self.root.dpkg("-i", *[revised(deb, self.scratch.name, 2) for deb in server.values()], check=False, configuration="--force-depends")
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn("conffile prompt", asked.stdout)
        self.assertEqual(self.root.states(), {"gpupool-common": "installed", "gpupool-server": "unpacked"})
        self.root.dpkg("--configure", "-a")
        self.assertEqual(self.root.states(), {package: "installed" for package in server})
        self.assertTrue(edited.read_text().endswith("# mine\n"))

    def test_scripts_ask_the_administrators_policy_before_they_touch_a_service(self):
        policy = self.path / "usr/sbin/policy-rc.d"
        policy.parent.mkdir(parents=True)
        functions = support.ROOT / "packaging/packages/functions.sh"

        def allows(action):
            return run("sh", "-ec", f". {functions}; policy_allows poold.service {action}", check=False,
                       env=support.without({"DPKG_ROOT": str(self.path)})).returncode == 0

        self.assertTrue(allows("restart"))
        policy.write_text('#!/bin/sh\n[ "$1 $2" != "poold.service stop" ] || exit 101\nexit 104\n')
        policy.chmod(0o755)
        self.assertTrue(allows("restart"))
        self.assertFalse(allows("stop"))

    def test_the_client_alone_leaves_nothing_behind(self):
        chosen = ("gpupool-common", "gpupool-client")
        before = set(support.files_below(self.path))
        self.root.dpkg("-i", *[self.debs[package] for package in chosen])
        self.root.dpkg("-P", *chosen)
        left = {name for name in set(support.files_below(self.path)) - before if not name.startswith(("var/lib/dpkg/", "log"))}
        self.assertEqual(left, set())
        self.assertFalse((self.path / "run/gpupool").exists())


if __name__ == "__main__":
    if os.geteuid() != 0:
        support.skip("packaging.host", "dpkg --root needs root")
    support.main()
