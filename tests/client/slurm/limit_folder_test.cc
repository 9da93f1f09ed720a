// Tests limit-folder.sh in a mount namespace of its own.
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

// Runs shell commands in their own mount namespace; $1 is limit-folder.sh, $2 the folder.
int in_namespace(const std::string& commands, const fs::path& folder) {
  Process script(
      {"/usr/bin/unshare", "--mount", "/bin/sh", "-c", "set -eu\n" + commands, "sh", LIMIT_FOLDER, folder},
      {});
  return script.wait();
}

bool can_mount() {
  const TemporaryFolder folder;
  return in_namespace("mount -t tmpfs none \"$2\"", folder.path()) == 0;
}

}  // namespace

TEST_CASE("the folder of leases has a small file system of its own, which users cannot exceed") {
  if (!can_mount()) return report_skip("this process cannot mount");
  const TemporaryFolder parent;
  CHECK(in_namespace(R"sh(
"$1" "$2" 1m
"$1" "$2" 1m
test "$(grep -c " $2 " /proc/self/mounts)" = 1
test "$(stat -c %a "$2")" = 755
mkdir "$2/7.0-n1"
head -c 100000 /dev/zero >"$2/7.0-n1/log"
if head -c 2000000 /dev/zero 2>/dev/null >"$2/7.0-n1/log"; then exit 1; fi
)sh",
                     parent.path() / "jobs") == 0);
}

TEST_CASE("a folder that has leases is left as it is") {
  if (!can_mount()) return report_skip("this process cannot mount");
  const TemporaryFolder parent;
  const fs::path jobs = parent.path() / "jobs";
  fs::create_directories(jobs / "7.0-n1");
  CHECK(in_namespace(R"sh(
"$1" "$2" 1m
if grep -q " $2 " /proc/self/mounts; then exit 1; fi
test -d "$2/7.0-n1"
)sh",
                     jobs) == 0);
}
