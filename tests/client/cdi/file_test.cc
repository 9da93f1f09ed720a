// Tests how pool-cdi updates a file that has several devices, other processes' updates, or another owner.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <set>

#include "tests/client/cdi/installation.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

std::set<std::string> names(const Json& specification) {
  std::set<std::string> out;
  for (const Json& device : specification["devices"]) out.insert(device["name"].get<std::string>());
  return out;
}

}  // namespace

TEST_CASE("adds, replaces, lists and removes the devices of a file") {
  const CdiInstallation pool;
  const Finished added = pool.update({"--name", "one", "--server", "tcp://h:5"});
  CHECK(added.status == 0);
  CHECK(added.output == "gpupool.dev/gpu=one\n");
  CHECK(pool.update({"--name", "two", "--server", "tcp://i:5"}).status == 0);
  const Json before = pool.specification();
  CHECK(names(before) == std::set<std::string>{"one", "two"});
  CHECK(pool.update({"--name", "one", "--server", "tcp://j:5"}).status == 0);
  const Json after = pool.specification();
  CHECK(after["devices"].size() == 2);
  CHECK(after["devices"][1] == before["devices"][1]);
  CHECK(pool.update({"--list"}).output == "gpupool.dev/gpu=one\ttcp://j:5\ngpupool.dev/gpu=two\ttcp://i:5\n");

  CHECK(pool.update({"--remove", "one"}).status == 0);
  CHECK(names(pool.specification()) == std::set<std::string>{"two"});
  for (const std::string name : {"one", ""}) {
    const Finished missing =
        run_to_end(pool.command({"--remove", name, "--output", pool.file()}), {{"GPUPOOL", "tcp://h:5"}});
    CHECK(missing.status == 1);
    CHECK(has(missing.output, "no device '" + name + "'"));
  }
  CHECK(pool.update({"--remove", "two"}).status == 0);
  CHECK(fs::is_empty(fs::path(pool.file()).parent_path()));
  CHECK(pool.update({"--list"}).status == 1);
}

TEST_CASE("makes the file readable for all users and leaves no others behind") {
  const CdiInstallation pool;
  const auto old = ::umask(077);
  const Finished added = pool.update({"--server", "tcp://h:5"});
  ::umask(old);
  CHECK(added.status == 0);
  struct stat about {};
  REQUIRE(::stat(pool.file().c_str(), &about) == 0);
  CHECK((about.st_mode & 07777) == 0644);
  const fs::directory_iterator entries(fs::path(pool.file()).parent_path());
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("simultaneous updates lose no device and readers see whole files") {
  const CdiInstallation pool;
  REQUIRE(pool.update({"--name", "first", "--server", "tcp://h:5"}).status == 0);
  std::vector<std::unique_ptr<Process>> updates;
  std::set<std::string> expected{"first"};
  for (int i = 0; i < 12; ++i) {
    const std::string name = "gpu" + std::to_string(i);
    expected.insert(name);
    updates.push_back(std::make_unique<Process>(
        pool.command({"--name", name, "--server", "tcp://h:5", "--output", pool.file()}), Environment{}));
  }
  size_t seen = 0;
  const auto all_present = [&] {
    const std::set<std::string> present = names(pool.specification());  // throws if a part is missing
    CHECK(present.size() >= seen);
    seen = present.size();
    return present == expected;
  };
  CHECK(eventually(all_present));
  for (const auto& update : updates) CHECK(update->wait() == 0);
}

TEST_CASE("does not wait forever for a folder that another process has locked") {
  const CdiInstallation pool;
  const std::string folder = fs::path(pool.file()).parent_path();
  const int lock = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(lock, LOCK_SH) == 0);
  const Finished refused = pool.update({"--server", "tcp://h:5"});
  CHECK(refused.status == 1);
  CHECK(has(refused.output, "lslocks"));
  CHECK(fs::is_empty(folder));
  ::close(lock);
  CHECK(pool.update({"--server", "tcp://h:5"}).status == 0);
}

TEST_CASE("changes no file that it did not write") {
  const CdiInstallation pool;
  for (const char* text : {"not JSON", "{}", "[]", "null", R"({"kind": "nvidia.com/gpu", "devices": []})",
                           R"({"kind": "gpupool.dev/gpu", "devices": {}})",
                           R"({"kind": "gpupool.dev/gpu", "devices": [{"name": 1}]})",
                           R"({"kind": ["gpupool.dev/gpu"], "devices": []})"}) {
    pool.folder().write("cdi/gpupool.json", text);
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"--server", "tcp://h:5"}, {"--remove", "all"}, {"--list"}}) {
      const Finished refused = pool.update(words);
      INFO(text << ": " << refused.output);
      CHECK(refused.status == 2);
      CHECK(has(refused.output, pool.file() + " is not a specification of pool-cdi"));
    }
    CHECK(content_of(pool.file()) == text);
  }
}

TEST_CASE("lists devices whose edits are damaged") {
  const CdiInstallation pool;
  pool.folder().write("cdi/gpupool.json", R"({"kind": "gpupool.dev/gpu", "devices": [
    {"name": "a"}, {"name": "b", "containerEdits": []}, {"name": "c", "containerEdits": {"env": [1, "GPUPOOL=x"]}}]})");
  CHECK(pool.update({"--list"}).output == "gpupool.dev/gpu=a\t\ngpupool.dev/gpu=b\t\ngpupool.dev/gpu=c\tx\n");
}

TEST_CASE("names a file that cannot be written") {
  const CdiInstallation pool;
  const Finished missing = pool.run({"--server", "tcp://h:5", "--output", "/nowhere/at/all/gpupool.json"});
  CHECK(missing.status == 1);
  CHECK(has(missing.output, "/nowhere/at/all"));
  fs::create_directory(pool.file());
  const Finished folder = pool.update({"--server", "tcp://h:5"});
  CHECK(folder.status != 0);
  CHECK(has(folder.output, pool.file()));
  const std::string fifo = pool.folder().path() / "cdi" / "fifo.json";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Finished pipe = pool.run({"--server", "tcp://h:5", "--output", fifo});  // does not wait for a writer
  CHECK(pipe.status == 2);
  CHECK(has(pipe.output, "is not a regular file"));
}
