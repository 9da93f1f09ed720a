// Tests of the programs that the plugin starts.
#include "client/slurm/programs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("a program's status and output are returned, and it gets the given environment") {
  const auto exits = slurm::run_program({"/bin/sh", "-c", "echo out; exit 5"});
  REQUIRE(exits);
  CHECK(exits->status == 5);
  CHECK(exits->output == "out\n");
  std::string variable = "ONLY=this";
  char* variables[] = {variable.data(), nullptr};
  const auto prints = slurm::run_program({"/bin/sh", "-c", "echo $ONLY $HOME"}, variables);
  REQUIRE(prints);
  CHECK(prints->output == "this\n");
  const auto killed = slurm::run_program({"/bin/sh", "-c", "kill -9 $$"});
  REQUIRE(killed);
  CHECK(killed->status == -1);
  const auto missing = slurm::run_program({"/not/there"});
  REQUIRE_FALSE(missing);
  CHECK(has(missing.error().message, "cannot start /not/there: No such file"));
}

TEST_CASE("a holder is a process of the job's user, in a session of its own, that keeps the lock") {
  if (::geteuid() != 0) return report_skip("needs root, to become another user");
  const TemporaryFolder parent;
  const std::string folder = parent.path() / "jobs";
  std::filesystem::permissions(parent.path(), std::filesystem::perms(0755));
  const auto files = slurm::make_job_folder(folder, {1, 0, "n"}, 65534, 65534);
  REQUIRE(files);
  slurm::Holder holder{
      .words = {"/bin/sh", "-c",
                "id -u; id -g; id -G; pwd; echo $ONLY; cut -d ' ' -f 6 /proc/$$/stat; echo $$; "
                "echo to the log >&2; exec sleep 1000"},
      .variables = {"ONLY=this", "PATH=/usr/bin:/bin"},
      .files = *files,
      .user = 65534,
      .group = 65534,
      .user_name = "nobody"};
  REQUIRE(slurm::start_holder(holder));
  REQUIRE(eventually([&] { return content_of(files->path + "/log") == "to the log\n"; }));
  std::istringstream lines(content_of(files->path + "/answer"));
  std::string user, group, groups, folder_of_process, variable;
  pid_t session = 0, process = 0;
  for (std::string* const line : {&user, &group, &groups, &folder_of_process, &variable})
    std::getline(lines, *line);
  lines >> session >> process;
  CHECK(user == "65534");
  CHECK(group == "65534");
  CHECK_FALSE(has(" " + groups + " ", " 0 "));
  CHECK(folder_of_process == "/");
  CHECK(variable == "this");
  REQUIRE(process > 1);
  CHECK(session == process);
  const int answer = ::open((files->path + "/answer").c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(::flock(answer, LOCK_SH | LOCK_NB) != 0);
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  CHECK(::flock(answer, LOCK_SH | LOCK_NB) == 0);
  ::close(answer);
}

TEST_CASE("a holder inherits no descriptor of the process that starts it") {
  if (::geteuid() != 0) return report_skip("needs root, to become another user");
  const TemporaryFolder parent;
  const auto files = slurm::make_job_folder(parent.path() / "jobs", {1, 0, "n"}, 65534, 65534);
  REQUIRE(files);
  const int left_open =
      ::open("/dev/null", O_RDONLY);  // not closed on exec, as descriptors of Slurm's may be
  const std::string path = "/proc/self/fd/" + std::to_string(left_open);
  const auto started =
      slurm::start_holder({.words = {"/bin/sh", "-c", "[ -e " + path + " ] && echo inherited || echo closed"},
                           .variables = {"PATH=/usr/bin:/bin"},
                           .files = *files,
                           .user = 65534,
                           .group = 65534,
                           .user_name = "nobody"});
  ::close(left_open);
  REQUIRE(started);
  CHECK(eventually([&] { return content_of(files->path + "/answer") == "closed\n"; }));
}

TEST_CASE("a request that is too long to start a holder refuses the job and does not fail the node") {
  if (::geteuid() != 0) return report_skip("needs root, to become another user");
  const TemporaryFolder parent;
  const auto files = slurm::make_job_folder(parent.path() / "jobs", {1, 0, "n"}, 65534, 65534);
  REQUIRE(files);
  const std::string longer_than_linux_passes_on(256 * 1024, 'x');
  CHECK(slurm::start_holder({.words = {"/bin/sh", "-c", ":", longer_than_linux_passes_on},
                             .variables = {},
                             .files = *files,
                             .user = 65534,
                             .group = 65534,
                             .user_name = "nobody"}));
  CHECK(content_of(files->path + "/answer") ==
        "refused cannot start /bin/sh: Argument list too long; the request is too long: shorten it\n");
}

TEST_CASE("a holder that cannot be started is reported") {
  if (::geteuid() != 0) return report_skip("needs root, to become another user");
  const TemporaryFolder parent;
  const auto files = slurm::make_job_folder(parent.path() / "jobs", {1, 0, "n"}, 65534, 65534);
  REQUIRE(files);
  const auto started = slurm::start_holder({.words = {"/not/there"},
                                            .variables = {},
                                            .files = *files,
                                            .user = 65534,
                                            .group = 65534,
                                            .user_name = "nobody"});
  REQUIRE_FALSE(started);
  CHECK(has(started.error().message, "cannot start /not/there: No such file"));
}
