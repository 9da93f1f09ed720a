// Tests end-stale-leases.sh with a program in squeue's place.
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

class Node {
 public:
  // `squeue`: a shell script, whose arguments are squeue's.
  explicit Node(const std::string& squeue) {
    const std::string path = parent_.write("squeue", "#!/bin/sh\n" + squeue);
    REQUIRE(::chmod(path.c_str(), 0755) == 0);
    fs::create_directory(jobs());
  }
  fs::path jobs() const { return parent_.path() / "jobs"; }
  fs::path asked() const { return parent_.path() / "asked"; }
  void make(const std::string& name) const { fs::create_directories(jobs() / name / "made/by/the/user"); }
  // Returns the names that are left; none if the script does not end.
  std::set<std::string> end_stale_leases() const {
    Process script({"/bin/sh", END_STALE_LEASES, jobs()},
                   {{"PATH", parent_.path().string() + ":/usr/bin:/bin"}, {"ASKED", asked()}});
    if (script.wait() != 0) return {};
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(jobs())) names.insert(entry.path().filename());
    return names;
  }

 private:
  TemporaryFolder parent_;
};

}  // namespace

TEST_CASE("leases of jobs that are not on their node any more are stale") {
  const Node node(R"(case "$*" in
*--nodelist=n1\ *) printf '12\n7\n' ;;
*--nodelist=a-n1\ *) echo 9 ;;
*) exit 1 ;;
esac)");
  for (const char* const name : {"7.0-n1", "12.3-n1", "9.0-n1", "1.0-n1", "9.0-a-n1", "7.0-a-n1", "other"})
    node.make(name);
  CHECK(node.end_stale_leases() == std::set<std::string>{"7.0-n1", "12.3-n1", "9.0-a-n1", "other"});
}

TEST_CASE("folders whose removal was interrupted are removed, without a question to Slurm") {
  const Node node("touch \"$ASKED\"; exit 1");
  node.make(".ended-7.0-n1");
  node.make("other");
  CHECK(node.end_stale_leases() == std::set<std::string>{"other"});
  CHECK_FALSE(fs::exists(node.asked()));
}

TEST_CASE("no job is on a node that was removed from slurm.conf") {
  const Node node(R"(case "$*" in
*--nodelist=n1\ *) echo 7 ;;
*) echo "squeue: error: Invalid node name gone" >&2; exit 1 ;;
esac)");
  for (const char* const name : {"7.0-gone", "7.0-n1"}) node.make(name);
  CHECK(node.end_stale_leases() == std::set<std::string>{"7.0-n1"});
}

TEST_CASE("the question is repeated until slurmctld answers") {
  const Node node(
      "[ -e \"$ASKED\" ] || { touch \"$ASKED\"; echo 'slurm_load_node error: Unable to contact' >&2; exit 1; "
      "}");
  node.make("7.0-n1");
  node.make("other");
  CHECK(node.end_stale_leases() == std::set<std::string>{"other"});
}
