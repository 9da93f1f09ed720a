#!/usr/bin/env python3
"""wheel_test.py BUILD ENVIRONMENT TOOLS: tests what a user does with the wheel in the virtual environment ENVIRONMENT
(environment.py), on BUILD's poold with softgpu. TOOLS: a virtual environment with mypy and nvidia-ml-py."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from environment import Environment, skip_unless_installed  # noqa: E402
from pool import Pool  # noqa: E402

BUILD, TOOLS = (pathlib.Path(sys.argv[index]).resolve() for index in (1, 3))
MEMORY = 256 << 20
environment = Environment(sys.argv[2])


def setUpModule():
    global pool
    pool = Pool(BUILD / "bin", BUILD / "lib" / "client", settings={"SOFTGPU_MEMORY": str(MEMORY)})
    unittest.addModuleCleanup(pool.__exit__)
    pool.__enter__()


class WheelTest(unittest.TestCase):
    def assert_passed(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout


class Commands(WheelTest):
    def test_run_starts_a_program_on_the_server(self):
        program = f"import sys; sys.path.insert(0, {str(HERE / 'programs')!r}); import driver; " \
                  "print(driver.count_devices(driver.open_by_name()), driver.loaded_libraries('libcuda.so')); sys.exit(7)"
        done = environment.run("gpupool", "run", "--server", pool.url, "--", "python", "-c", program)
        self.assertEqual((done.returncode, done.stderr), (7, ""))
        library = environment.packages / "gpupool" / "lib" / "client" / "libcuda.so.1"
        self.assertEqual(done.stdout.strip(), f"1 ['{library}']")

    def test_run_leaves_no_signal_ignored(self):
        ignored = self.assert_passed(environment.run("gpupool", "run", "--server", pool.url, "cat", "/proc/self/status"))
        mask = int(re.search(r"SigIgn:\s*([0-9a-f]+)", ignored)[1], 16)
        self.assertFalse(mask & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)))

    def test_smi_shows_the_gpu(self):
        shown = self.assert_passed(environment.run("gpupool", "smi", "--server", pool.url, "--json"))
        (gpu,) = json.loads(shown)["gpus"]
        self.assertEqual(gpu["memory.total"], MEMORY >> 20)

    def test_wrong_usage(self):
        for words, text in ((["walk"], "unknown command 'walk'"), ([], "Usage:"), (["run"], "no program given"),
                            (["run", "--server", "nothing", "true"], "nothing")):
            done = environment.run("gpupool", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(text, done.stderr)

    def test_version(self):
        version = re.search(r"project\(gpupool VERSION ([0-9.]+)", (HERE.parent.parent / "CMakeLists.txt").read_text())[1]
        for words in (["gpupool", "--version"], ["python", "-m", "gpupool", "--version"]):
            self.assertEqual(self.assert_passed(environment.run(*words)), f"gpupool {version}\n")

    def test_jax_finds_one_plugin(self):
        program = "import jax_plugins, pkgutil; print([name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]); " \
                  "import jax_plugins.gpupool; print(callable(jax_plugins.gpupool.initialize))"
        for words in (["python"], ["gpupool", "run", "--server", pool.url, "python"]):
            self.assertEqual(self.assert_passed(environment.run(*words, "-c", program)), "['gpupool']\nTrue\n")


class Connect(WheelTest):
    def test_gives_the_gpu_to_the_process_and_its_children(self):
        changed = json.loads(self.assert_passed(environment.program("connects", pool.url, str(MEMORY))))
        shown = self.assert_passed(environment.run("gpupool", "run", "--server", pool.url, "env", "-0"))
        by_pool_run = dict(entry.split("=", 1) for entry in shown.split("\0") if entry)
        self.assertLessEqual({"GPUPOOL", "LD_LIBRARY_PATH", "NCCL_SHM_DISABLE", "NCCL_HOSTID", "NCCL_P2P_LEVEL"}, set(changed))
        self.assertEqual(changed, {name: by_pool_run[name] for name in changed})

    def test_uses_the_variable_without_an_argument(self):
        program = "import gpupool; gpupool.connect(); print(gpupool.status().address)"
        self.assertEqual(self.assert_passed(environment.run("python", "-c", program, GPUPOOL=pool.url)).strip(), pool.url)

    def test_under_pool_run(self):
        program = "import gpupool; gpupool.connect(); print(len(gpupool.status().devices))"
        done = environment.run("gpupool", "run", "--server", pool.url, "python", "-c", program)
        self.assertEqual(self.assert_passed(done), "1\n")

    def test_nvidia_ml_py_shows_the_gpu(self):
        source = next((TOOLS / "lib").glob("python*/site-packages/pynvml.py")).parent
        self.assert_passed(environment.program("nvml", pool.url, str(MEMORY), PYTHONPATH=str(source)))

    def test_refusals(self):
        softgpu = BUILD / "lib" / "softgpu" / "libcuda.so.1"
        for case, expected in {
            "other_driver": f"LoadError: this process has loaded another driver, {softgpu.resolve()}; call .* first.*",
            "other_server_in_use": f"LoadError: .* already connected to {pool.url}; .*",
            "failed_before": "LoadError: CUDA has already failed to start in this process; .*",
            "forked": "LoadError: this process was forked .*'spawn'.*",
            "unreachable": "ServerError: cannot use the server tcp://127.0.0.1:1: .*connection refused.*",
            "unchecked": "tcp://127.0.0.1:1 was not asked",
            "request_without_pool": f"AddressError: gpus, memory, one_host: only a pool .*pool://.*'{pool.url}'",
            "no_server": "AddressError: no server is given; .*",
            "wrong_address": "AddressError: .*tcp//127.0.0.1.*",
            "token_file": "AddressError: token_file: '/proc/self/no-such-file' cannot be read",
        }.items():
            with self.subTest(case):
                done = environment.program("refusals", case, pool.url, str(softgpu), SOFTGPU_INSTANCE=f"wheel-{os.getpid()}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stdout, f"\\A{expected}\n\\Z")
                if case != "failed_before":  # there the client library says why
                    self.assertEqual(done.stderr, "")


class Hook(WheelTest):
    OPEN = "import ctypes, os, sys; open_driver = lambda: ctypes.CDLL('libcuda.so.1', mode=os.RTLD_NOLOAD | os.RTLD_NOW); "

    def python(self, program, **variables):
        return environment.run("python", "-c", self.OPEN + program, **variables)

    def test_does_nothing_unless_it_is_chosen(self):
        program = "print('gpupool' in sys.modules, any('libcuda.so' in line for line in open('/proc/self/maps')))"
        for choice in ({}, {"GPUPOOL_AUTO": "0"}, {"GPUPOOL_AUTO": ""}):
            self.assertEqual(self.assert_passed(self.python(program, GPUPOOL=pool.url, **choice)), "False False\n")

    def test_loads_the_client_for_a_program_that_knows_nothing_of_it(self):
        program = "cuda = open_driver(); n = ctypes.c_int(); print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n)), n.value, " \
                  "os.environ['NCCL_P2P_LEVEL'])"
        self.assertEqual(self.assert_passed(self.python(program, GPUPOOL=pool.url, GPUPOOL_AUTO="1")), "0 0 1 SYS\n")

    def test_connect_may_choose_another_server_later(self):
        program = f"import gpupool; gpupool.connect({pool.url!r}); print(open_driver().cuInit(0))"
        self.assertEqual(self.assert_passed(self.python(program, GPUPOOL="tcp://127.0.0.1:1", GPUPOOL_AUTO="1")), "0\n")

    def test_does_not_ask_servers(self):
        """A pool that cannot be reached: asking it for a lease would fail or wait."""
        for address in ("pool://127.0.0.1:1", "tcp://127.0.0.1:1"):
            shown = self.assert_passed(self.python("open_driver(); print(os.environ['GPUPOOL'])", GPUPOOL=address, GPUPOOL_AUTO="1"))
            self.assertEqual(shown, f"{address}\n")

    def test_an_error_is_one_line_and_python_goes_on(self):
        for address in ("", "nonsense"):
            done = self.python("print('goes on', 'libcuda.so' in open('/proc/self/maps').read())", GPUPOOL=address, GPUPOOL_AUTO="1")
            self.assertEqual((done.returncode, done.stdout), (0, "goes on False\n"))
            self.assertRegex(done.stderr, r"\Agpupool: GPUPOOL_AUTO has no effect: [^\n]+\n\Z")

    def test_an_interpreter_without_site_packages_or_the_environment_ignores_it(self):
        for option in ("-S", "-E", "-I"):
            done = environment.run("python", option, "-c", "import sys; print('gpupool' in sys.modules)", GPUPOOL=pool.url, GPUPOOL_AUTO="1")
            self.assertEqual(self.assert_passed(done), "False\n")


class Package(WheelTest):
    def test_types(self):
        mypy = [TOOLS / "bin" / "mypy", "--strict", "--python-executable", environment.folder / "bin" / "python", "--cache-dir", "/dev/null"]
        for words, folder in ((["programs/typed.py"], HERE), (["--python-version", "3.10", "-p", "gpupool"], HERE.parents[1] / "client" / "python")):
            done = subprocess.run([*mypy, *words], cwd=folder, env=environment.variables(), capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_source_tree_without_programs_says_so(self):
        done = environment.run("python", "-c", "import gpupool; gpupool.connect('tcp://127.0.0.1:1')",
                               PYTHONPATH=str(HERE.parents[1] / "client" / "python"), PYTHONDONTWRITEBYTECODE="1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\ngpupool.LoadError: \S+libcuda.so.1 is missing; .*make-wheel.sh makes\n\Z")


if __name__ == "__main__":
    skip_unless_installed(environment.folder)
    unittest.main(argv=sys.argv[:1])
