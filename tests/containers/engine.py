"""podman in namespaces of its own: the containers, networks, mounts and files of a test are invisible to the machine, and end
with the test, even if it is killed."""
import os
import shutil
import subprocess
import sys
import time

INSIDE = "GPUPOOL_TEST_NAMESPACES"
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
BASE = "localhost/gpupool-test-base"
# podman has its state, its cache and CDI's specifications here; with the modes of the folders.
PRIVATE_FOLDERS = {"/run": "755", "/etc/cdi": "755", "/var/lib/containers": "755", "/dev/shm": "1777"}


class Missing(Exception):
    """This machine cannot run containers; the text is the reason."""


def missing_tool():
    """Returns why the machine cannot run containers at all; empty: it may."""
    if os.geteuid() != 0:
        return "needs root: podman without root needs subordinate users, which the test does not set up"
    for tool, package in (("podman", "podman"), ("patchelf", "patchelf"), ("ip", "iproute2")):
        if not shutil.which(tool):
            return f"{tool} is not installed (package {package})"
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        return "this machine gives no namespaces (unshare)"
    return ""


def enter_namespaces():
    """Replaces this process by one in namespaces of its own, unless it is there."""
    if os.environ.get(INSIDE):
        return
    made = not os.path.exists("/etc/cdi")
    os.makedirs("/etc/cdi", exist_ok=True)  # as a place to mount on
    os.environ[INSIDE] = "made /etc/cdi" if made else "yes"
    status = subprocess.run([*NAMESPACES, sys.executable, *sys.argv], check=False).returncode
    if made:
        try:
            os.rmdir("/etc/cdi")
        except OSError:
            pass  # somebody uses it now
    sys.exit(status)


def run(*words, check=True, timeout=300, **options):
    """Runs a command; returns it with its output, in which stderr follows stdout."""
    try:
        finished = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                                  stdin=subprocess.DEVNULL, check=False, **options)
    except subprocess.TimeoutExpired as expired:
        output = (expired.output or b"").decode(errors="replace")
        raise AssertionError(f"{' '.join(map(str, words))}: not done after {timeout} s\n{output}") from None
    if check and finished.returncode:
        raise AssertionError(f"{' '.join(map(str, words))}: status {finished.returncode}\n{finished.stdout}")
    return finished


def await_true(condition, what, patience=60):
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timed out after {patience} s waiting until {what}")
        time.sleep(0.05)


def configure(folder, driver, runtime, cgroups):
    """Writes podman's configuration; it applies to all later commands."""
    storage, containers = os.path.join(folder, "storage.conf"), os.path.join(folder, "containers.conf")
    network = "netavark" if os.path.exists("/usr/lib/podman/netavark") else "cni"
    os.makedirs(f"{folder}/networks", exist_ok=True)
    with open(storage, "w", encoding="utf-8") as file:
        file.write(f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/{driver}"\nrunroot = "/run/containers/{driver}"\n')
    with open(containers, "w", encoding="utf-8") as file:
        file.write(f'[containers]\ncgroups = "{cgroups}"\ndefault_ulimits = []\nlog_driver = "k8s-file"\n'
                   f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{runtime}"\n'
                   f'[network]\nnetwork_backend = "{network}"\nnetwork_config_dir = "{folder}/networks"\n')
    os.environ.update(CONTAINERS_STORAGE_CONF=storage, CONTAINERS_CONF=containers, TMPDIR=folder, HOME=folder,
                      DISABLE_HC_SYSTEMD="true")


def start(folder, archive):
    """Prepares podman and imports the base image. Returns a description of the configuration that works. Raises Missing."""
    for place, mode in PRIVATE_FOLDERS.items():
        if os.path.isdir(place):
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", place], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    failures = []
    for driver in ("overlay", "vfs"):
        for runtime, cgroups in (("crun", "enabled"), ("runc", "enabled"), ("crun", "disabled")):
            if not shutil.which(runtime):
                continue
            configure(folder, driver, runtime, cgroups)
            imported = run("podman", "image", "exists", BASE, check=False)
            if imported.returncode:
                imported = run("podman", "import", "--quiet", archive, BASE, check=False)
            tried = run("podman", "run", "--rm", "--network=none", "--pull=never", BASE, "true", check=False) \
                if not imported.returncode else imported
            if not tried.returncode:
                return f"storage {driver}, runtime {runtime}, cgroups {cgroups}"
            failures.append(f"{driver}, {runtime}, cgroups {cgroups}: {tried.stdout.strip().splitlines()[-1:]}")
    raise Missing("podman cannot start a container: " + "; ".join(failures or ["neither crun nor runc is installed"]))


def network_fault():
    """Returns why containers cannot have a network of their own; empty: they can."""
    made = run("podman", "network", "create", "--subnet", "10.89.99.0/24", "probe", check=False)
    if made.returncode:
        return made.stdout.strip().splitlines()[-1]
    tried = run("podman", "run", "--rm", "--network=probe", "--pull=never", BASE, "true", check=False)
    run("podman", "network", "rm", "--force", "probe", check=False)
    return tried.stdout.strip().splitlines()[-1] if tried.returncode else ""
