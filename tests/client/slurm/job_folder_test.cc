// Tests of the folders of jobs' leases.
#include "client/slurm/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

// Another user's numbers, if this process may give files away.
uid_t some_user() {
  return ::geteuid() == 0 ? 65534 : ::geteuid();
}
gid_t some_group() {
  return ::geteuid() == 0 ? 65534 : ::getegid();
}

slurm::JobFiles make(const std::string& folder, const slurm::JobRun& run) {
  const auto files = slurm::make_job_folder(folder, run, some_user(), some_group());
  INFO((files ? "" : files.error().message));
  REQUIRE(files);
  return *files;
}

void close_files(const slurm::JobFiles& files) {
  ::close(files.answer);
  ::close(files.log);
}

struct stat about(const std::string& path) {
  struct stat out {};
  REQUIRE(::lstat(path.c_str(), &out) == 0);
  return out;
}

bool is_locked(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool locked = ::flock(file, LOCK_SH | LOCK_NB) != 0;
  ::close(file);
  return locked;
}

}  // namespace

TEST_CASE("a job's folder belongs to its user alone and its answer is locked while it is open") {
  const TemporaryFolder parent;
  const std::string folder = parent.path() / "gpupool/slurm";
  const slurm::JobRun run{.job = 12, .restart = 3, .node = "node-a"};
  const slurm::JobFiles files = make(folder, run);
  CHECK(files.path == folder + "/12.3-node-a");
  CHECK((about(files.path).st_mode & 07777) == 0700);
  CHECK(about(files.path).st_uid == some_user());
  for (const char* const name : {"/answer", "/log"}) {
    CHECK((about(files.path + name).st_mode & 07777) == 0600);
    CHECK(about(files.path + name).st_uid == some_user());
  }
  CHECK(about(folder).st_uid == ::geteuid());
  CHECK(is_locked(files.path + "/answer"));
  CHECK(slurm::find_job_folder(folder, 12, "node-a", some_user()) == files.path);
  CHECK(slurm::find_job_folder(folder, 12, "node-a", some_user() + 1).empty());
  CHECK(slurm::find_job_folder(folder, 12, "node", some_user()).empty());
  CHECK(slurm::find_job_folder(folder, 1, "node-a", some_user()).empty());
  close_files(files);
  CHECK_FALSE(is_locked(files.path + "/answer"));
}

TEST_CASE("a folder of jobs that others can write, or that is a symbolic link, is not used") {
  const TemporaryFolder parent;
  const std::string folder = parent.path() / "jobs";
  fs::create_directory(folder);
  REQUIRE(::chmod(folder.c_str(), 0777) == 0);
  const auto open_to_all = slurm::make_job_folder(folder, {1, 0, "n"}, some_user(), some_group());
  REQUIRE_FALSE(open_to_all);
  CHECK(has(open_to_all.error().message, "must be a folder that only root can write"));
  REQUIRE(::chmod(folder.c_str(), 0755) == 0);
  const std::string link = parent.path() / "link";
  fs::create_symlink(folder, link);
  CHECK_FALSE(slurm::make_job_folder(link, {1, 0, "n"}, some_user(), some_group()));
  close_files(make(folder, {1, 0, "n"}));
  CHECK_FALSE(slurm::make_job_folder(folder, {1, 0, "n"}, some_user(), some_group()));  // it exists
}

TEST_CASE("users can reach their folders whatever the umask is") {
  const TemporaryFolder parent;
  const std::string folder = parent.path() / "jobs";
  const mode_t before = ::umask(0077);
  const auto files = slurm::make_job_folder(folder, {1, 0, "n"}, some_user(), some_group());
  ::umask(before);
  REQUIRE(files);
  close_files(*files);
  CHECK((about(folder).st_mode & 07777) == 0755);
}

TEST_CASE("ending a job's leases removes all runs of the job on this node and nothing else") {
  const TemporaryFolder parent;
  const std::string folder = parent.path() / "jobs";
  const std::vector<slurm::JobRun> ended = {{7, 0, "n1"}, {7, 12, "n1"}};
  const std::vector<slurm::JobRun> others = {{7, 0, "n11"}, {7, 0, "a-n1"}, {77, 0, "n1"}, {70, 7, "n1"}};
  for (const auto& runs : {ended, others}) {
    for (const slurm::JobRun& run : runs) close_files(make(folder, run));
  }
  std::ofstream(folder + "/7.0-n1/servers") << "left";
  fs::create_directories(folder + "/7.12-n1/made/by/the/user");
  fs::create_symlink(folder + "/77.0-n1", folder + "/7.12-n1/link");
  slurm::end_leases(folder, 7, "n1");
  for (const slurm::JobRun& run : others)
    CHECK(fs::exists(folder + "/" + slurm::folder_name(run) + "/answer"));
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) ==
        static_cast<ptrdiff_t>(others.size()));
  slurm::end_leases(folder, 7, "n1");  // has ended already
  slurm::end_leases(folder + "/not there", 7, "n1");
}
