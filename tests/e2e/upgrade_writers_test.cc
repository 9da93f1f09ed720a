// An upgrade executes no program that others than root and poold's user can write or replace.
#include <unistd.h>

#include <filesystem>

#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/installed_poold.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

struct Installed {
  InstalledPoold poold;
  Pool pool{{}, {}, test_device(), poold.launcher()};
  const fs::path program = poold.path(), folder = program.parent_path();

  void expect_refused(const std::string& why) {
    const Finished upgrade = pool_admin(pool, {"upgrade"});
    INFO(upgrade.output);
    CHECK(upgrade.status == 1);
    CHECK_THAT(upgrade.output, Catch::Matchers::ContainsSubstring(why));
    CHECK(json_in(pool_admin(pool, {"health"}))["upgrades"] == 0);
  }
};

}  // namespace

TEST_CASE("a program that others can write or replace is not executed at an upgrade") {
  Installed installed;
  fs::permissions(installed.program, fs::perms(0775));
  installed.expect_refused("'" + installed.program.string() + "': other users can write it");
  fs::permissions(installed.program, fs::perms(0755));
  fs::permissions(installed.folder, fs::perms(0757));
  installed.expect_refused("'" + installed.folder.string() + "': other users can write it");
  fs::permissions(installed.folder, fs::perms(0755));
  CHECK(pool_admin(installed.pool, {"upgrade"}).status == 0);
}

TEST_CASE("a program that belongs to another user is not executed at an upgrade") {
  if (::geteuid() != 0) return report_skip("only root can give files to other users");
  constexpr uid_t kSomebody = 61'234;
  Installed installed;
  for (const fs::path& path : {installed.program, installed.folder}) {
    REQUIRE(::chown(path.c_str(), kSomebody, 0) == 0);
    installed.expect_refused("'" + path.string() + "' must belong to root or to poold's user");
    REQUIRE(::chown(path.c_str(), 0, 0) == 0);
  }
  CHECK(pool_admin(installed.pool, {"upgrade"}).status == 0);
}
