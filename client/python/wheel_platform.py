"""Sets the platform tag of the wheel, which scripts/make-wheel.sh has computed. Hatchling's build hook."""
import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformHook(BuildHookInterface):
    def initialize(self, version, build_data):
        platform = os.environ.get("GPUPOOL_WHEEL_PLATFORM")
        if not platform or not os.path.exists(os.path.join(self.root, "gpupool", "bin", "pool-run")):
            self.app.abort("this folder has no programs of gpupool: scripts/make-wheel.sh makes the wheel from a build")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
