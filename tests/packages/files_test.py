#!/usr/bin/env python3
"""Usage: files_test.py BUILD MADE
Tests the files of the .deb packages: names, modes, owners, links, needed libraries, and that none has a path of the build.
"""
import gzip
import os
import pathlib
import re
import stat
import subprocess
import tempfile
import unittest

import support
from support import OWN, run

SETTINGS = {}
EXPECTED = {
    "gpupool-common": (f"{OWN}/bin/pool-admin", "usr/bin/pool-admin", "usr/lib/tmpfiles.d/gpupool.conf", "usr/share/man/man8/pool-admin.8.gz",
                       "usr/share/doc/gpupool-common/docs/operations.md", "usr/share/doc/gpupool-common/changelog.gz"),
    "gpupool-client": (f"{OWN}/bin/pool-lease", f"{OWN}/lib/client/libcuda.so", f"{OWN}/lib/client/libcuda.so.1", f"{OWN}/lib/client/libnvidia-ml.so.1",
                       f"{OWN}/lib/client/python/jax_plugins/gpupool/__init__.py", "usr/bin/pool-cdi", "usr/bin/pool-run", "usr/bin/pool-smi",
                       "usr/share/bash-completion/completions/pool-run", "usr/share/man/man1/pool-run.1.gz",
                       "usr/share/zsh/vendor-completions/_pool-run", "usr/share/fish/vendor_completions.d/pool-run.fish"),
    "gpupool-server": (f"{OWN}/bin/poold", f"{OWN}/bin/poold-worker", "usr/bin/poold", "etc/gpupool/poold.toml", "usr/lib/systemd/system/poold.service",
                       "usr/share/man/man8/poold.8.gz"),
    "gpupool-scheduler": (f"{OWN}/bin/pool-scheduler", "usr/bin/pool-scheduler", "usr/bin/pool-sim", "etc/gpupool/pool-scheduler.toml",
                          "usr/lib/sysusers.d/gpupool.conf", "usr/lib/systemd/system/pool-scheduler.service", "usr/share/man/man8/pool-scheduler.8.gz"),
    "gpupool-softgpu": (f"{OWN}/lib/softgpu/libcuda.so.1", f"{OWN}/lib/softgpu/libnvidia-ml.so.1"),
    "gpupool-slurm": (f"{OWN}/lib/slurm/spank_gpupool.so", f"{OWN}/lib/slurm/job_submit.lua", f"{OWN}/lib/slurm/end-stale-leases.sh",
                      f"{OWN}/lib/slurm/limit-folder.sh", "usr/lib/systemd/system/slurmd.service.d/gpupool.conf"),
}


def field(package, name):
    return run("dpkg-deb", "-f", SETTINGS["debs"][package], name).stdout.strip()


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.trees = {}
        for package, deb in SETTINGS["debs"].items():
            cls.trees[package] = support.unpack(deb, f"{cls.scratch.name}/{package}")

    def every_file(self):
        for package, tree in self.trees.items():
            for name in support.files_below(tree):
                yield package, name, tree / name

    def test_has_the_expected_files(self):
        for package, names in EXPECTED.items():
            if package == "gpupool-slurm" and package not in self.trees:
                continue  # the plugin was not built
            for name in names:
                self.assertTrue(os.path.lexists(self.trees[package] / name), f"{package} lacks {name}")

    def test_each_file_is_in_one_package_and_in_a_folder_of_packages(self):
        owners = {}
        for package, name, _ in self.every_file():
            self.assertEqual(owners.setdefault(name, package), package, name)
            self.assertRegex(name, r"^(etc/gpupool|usr/(bin|lib/(gpupool|systemd/system|sysusers\.d|tmpfiles\.d)|share))/")
            self.assertNotIn("/usr/lib/gpupool/bin/poold-worker", name if name.startswith("usr/bin") else "")

    def test_has_no_libraries_where_the_dynamic_linker_looks(self):
        for package, name, _ in self.every_file():
            if ".so" in name:
                self.assertTrue(name.startswith(f"{OWN}/lib/"), f"{package}: {name}")
            self.assertNotIn("ld.so.conf", name)

    def test_modes_and_owners(self):
        for package, deb in SETTINGS["debs"].items():
            for line in run("dpkg-deb", "-c", deb).stdout.splitlines():
                mode, owner = line.split()[:2]
                self.assertEqual(owner, "root/root", f"{package}: {line}")
                self.assertIn(mode, ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"), f"{package}: {line}")
        for _, name, path in self.every_file():
            if support.is_program_or_library(path) and "/bin/" in name:
                self.assertTrue(path.stat().st_mode & stat.S_IXUSR, name)

    def test_links_lead_to_files_of_the_packages_or_to_the_systems_libraries(self):
        everything = {name for _, name, _ in self.every_file()}
        for _, name, path in self.every_file():
            if path.is_symlink():
                target = os.path.normpath(os.path.join("/", os.path.dirname(name), os.readlink(path))).lstrip("/")
                if target not in everything:
                    self.assertRegex(target, r"^usr/lib/[a-z0-9_]+-linux-gnu/lib(ssl|crypto|z|sqlite3|seccomp)\.so\.")
                    self.assertTrue(os.path.exists("/" + target), f"{name} leads to {target}, which this machine lacks")

    def test_checksums_cover_each_file(self):
        for package, deb in SETTINGS["debs"].items():
            sums = run("dpkg-deb", "-I", deb, "md5sums").stdout.splitlines()
            names = [line.split("  ", 1)[1] for line in sums]
            self.assertEqual(names, sorted(names))
            self.assertEqual(set(names), {name for name in support.files_below(self.trees[package]) if not (self.trees[package] / name).is_symlink()})
            subprocess.run(["md5sum", "--check", "--quiet", "-"], cwd=self.trees[package], input="\n".join(sums) + "\n", text=True, check=True)

    def test_configuration_is_kept_by_upgrades(self):
        for package, tree in self.trees.items():
            expected = sorted("/" + name for name in support.files_below(tree) if name.startswith("etc/"))
            listed = run("dpkg-deb", "-I", SETTINGS["debs"][package], "conffiles", check=False)
            self.assertEqual(sorted(listed.stdout.split()) if listed.returncode == 0 else [], expected, package)

    def test_needs_only_what_releases_have_in_common(self):
        common = r"(libc6|libgcc-s1|libstdc\+\+6|libssl3|zlib1g|libsqlite3-0|libseccomp2)"
        for package in self.trees:
            for word in field(package, "Depends").split(", "):
                if word:
                    self.assertRegex(word, rf"^({common}( \(>= [^)]+\))?|gpupool-[a-z]+ \(= {re.escape(field(package, 'Version'))}\)|systemd \|.*)$", package)
        self.assertIn("libc6", field("gpupool-client", "Depends"))

    def test_finds_its_libraries_in_the_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            for deb in SETTINGS["debs"].values():
                support.unpack(deb, folder)
            for name in support.files_below(folder):
                path = pathlib.Path(folder, name)
                if not support.is_program_or_library(path):
                    continue
                listed = run("ldd", path, check=False, env=support.without({}, "LD_LIBRARY_PATH", "LD_PRELOAD")).stdout
                self.assertNotIn("not found", listed, name)
                for library in re.findall(r"=> (/\S+) ", listed):
                    if not library.startswith(folder):
                        self.assertRegex(os.path.basename(library), r"^(ld-linux|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|ssl|crypto|z|sqlite3|seccomp)\.so)", name)
                if name.startswith(f"{OWN}/lib/client/"):  # programs load it
                    self.assertNotIn(folder, listed, name)

    def test_has_no_path_of_the_build(self):
        unwanted = [str(folder).encode() for folder in (support.ROOT, SETTINGS["build"], self.scratch.name)]
        for package, name, path in self.every_file():
            if path.is_symlink():
                continue
            content = path.read_bytes()
            if name.endswith(".gz"):
                content = gzip.decompress(content)
            for folder in unwanted:
                at = content.find(folder)
                self.assertEqual(at, -1, f"{package}: {name} has {content[max(at, 0):at + 200]}")

    def test_manual_pages_are_well_formed(self):
        for _, name, path in self.every_file():
            if "/man/" not in name:
                continue
            text = gzip.decompress(path.read_bytes()).decode()
            self.assertRegex(text, r"^\.TH [A-Z-]+ [18] ")
            for section in ("NAME", "SYNOPSIS", "OPTIONS"):
                self.assertIn(f".SH {section}\n", text, name)
            self.assertNotIn(os.uname().nodename.encode() + b"]", text.encode(), f"{name} names this machine")

    def test_each_package_has_changelogs_and_a_copyright(self):
        for package, tree in self.trees.items():
            documents = tree / "usr/share/doc" / package
            self.assertTrue(os.path.lexists(documents / "changelog.gz"), package)
            self.assertTrue((documents / "copyright").is_file(), package)
            parsed = run("dpkg-parsechangelog", "--format", "rfc822", "-l", "-", check=False, text_input=gzip.decompress(
                (documents / "changelog.Debian.gz").read_bytes()).decode()).stdout
            self.assertIn(f"Version: {field(package, 'Version')}\n", parsed, package)

    def test_completion_scripts_are_valid(self):
        for _, name, path in self.every_file():
            if "/bash-completion/" in name:
                run("bash", "-n", path)
        offered = run("bash", "-c", f"source {self.trees['gpupool-client']}/usr/share/bash-completion/completions/pool-run; COMP_WORDS=(pool-run --ser); "
                      "COMP_CWORD=1; $(complete -p pool-run | sed -E 's/.*-F (\\S+).*/\\1/'); echo \"${COMPREPLY[@]}\"").stdout
        self.assertEqual(offered.strip(), "--server")


if __name__ == "__main__":
    support.main()
