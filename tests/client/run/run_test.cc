// Tests pool-run in an installation of its own: PREFIX/bin/pool-run and PREFIX/lib/client/libcuda.so.1.
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

class Installation {
 public:
  explicit Installation(const std::string& name = "pool", bool with_library = true)
      : prefix_(folder_.path() / name) {
    fs::create_directories(prefix_ / "bin");
    fs::create_directories(prefix_ / "lib" / "client");
    fs::copy_file(program_path("pool-run"), prefix_ / "bin" / "pool-run");
    if (with_library) fs::copy_file(STAND_IN, library());
  }
  std::string prefix() const { return prefix_.string(); }
  std::string library() const { return prefix_ / "lib" / "client" / "libcuda.so.1"; }
  const TemporaryFolder& folder() const { return folder_; }

  Finished run(std::vector<std::string> words, const Environment& more = {}) const {
    words.insert(words.begin(), prefix_ / "bin" / "pool-run");
    Environment environment{{"GPUPOOL", ""}, {"LD_LIBRARY_PATH", ""}};
    for (const auto& [name, value] : more) environment[name] = value;
    return run_to_end(words, environment);
  }

 private:
  TemporaryFolder folder_;
  fs::path prefix_;
};

constexpr const char* kShow = "printf '%s|%s|%s' \"$GPUPOOL\" \"$LD_LIBRARY_PATH\" \"$LD_PRELOAD\"";

}  // namespace

TEST_CASE("passes the server and the client library in the program's environment") {
  const Installation pool;
  const std::string folder = pool.prefix() + "/lib/client";
  Finished shown = pool.run({"--server", "tcp://127.0.0.1:5", "--", "sh", "-c", kShow});
  CHECK(shown.status == 0);
  CHECK(shown.output == "tcp://127.0.0.1:5|" + folder + "|");
  shown = pool.run({"--server=tcp://[::1]:5", "sh", "-c", kShow},
                   {{"LD_LIBRARY_PATH", "/a:/b"}, {"GPUPOOL", "tcp://other:1"}});
  CHECK(shown.output == "tcp://[::1]:5|" + folder + ":/a:/b|");
  shown = pool.run({"sh", "-c", kShow}, {{"GPUPOOL", "tcp://other:1"}});
  CHECK(shown.output == "tcp://other:1|" + folder + "|");
}

TEST_CASE("puts the library first in LD_PRELOAD with --preload") {
#ifdef GPUPOOL_ASAN
  return report_skip("a shell without AddressSanitizer cannot preload a library with it");
#endif
  const Installation pool;
  Finished shown = pool.run({"--preload", "--server", "tcp://h:5", "sh", "-c", kShow});
  CHECK(has(shown.output, "|" + pool.library()));
  shown = pool.run({"--preload", "--server", "tcp://h:5", "sh", "-c", kShow}, {{"LD_PRELOAD", STAND_IN}});
  CHECK(has(shown.output, "|" + pool.library() + ":" + STAND_IN));
}

TEST_CASE("creates the file of a timeline and names it to the program by an absolute path") {
  const Installation pool;
  const std::string file = pool.folder().path() / "out.json";
  const Finished shown = pool.run({"--timeline", file, "--server", "tcp://h:5", "sh", "-c",
                                   "printf %s \"$GPUPOOL_TIMELINE\"; tail -c 3 \"$GPUPOOL_TIMELINE\""});
  CHECK(shown.status == 0);
  CHECK(shown.output == file + "\n]\n");
  CHECK(has(pool.run({"--server", "tcp://h:5", "sh", "-c", "echo \"${GPUPOOL_TIMELINE-none}\""}).output,
            "none"));
  CHECK(pool.run({"--timeline", "/nonexistent/out.json", "--server", "tcp://h:5", "true"}).status == 2);
  CHECK(pool.run({"--server", "tcp://h:5", "--timeline"}).status == 2);
}

TEST_CASE("sets NCCL's variables unless the user has set them") {
  const Installation pool;
  for (const char* name : {"NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL", "NCCL_HOSTID"}) ::unsetenv(name);
  const auto told = [&](const std::string& server, const Environment& more) {
    return pool
        .run({"--server", server, "sh", "-c",
              "echo \"${NCCL_SHM_DISABLE-none}|${NCCL_P2P_LEVEL-none}|${NCCL_HOSTID-none}\""},
             more)
        .output;
  };
  const std::string here = told("tcp://h:5", {}), there = told("tcp://i:5", {});
  CHECK(here.starts_with("1|SYS|"));
  CHECK(here.ends_with("-tcp://h:5\n"));
  CHECK(here == told("tcp://h:5", {}));
  CHECK(here != there);  // each server has its own host id
  CHECK(told("tcp://h:5,tcp://i:5", {}) == "1|none|none\n");
  CHECK(told("tcp://h:5", {{"NCCL_SHM_DISABLE", "0"}, {"NCCL_P2P_LEVEL", "LOC"}, {"NCCL_HOSTID", "x"}}) ==
        "0|LOC|x\n");
  const std::string lease = pool.folder().write("lease", "gpupool lease 1\ntcp://h:5 token\n");
  CHECK(told("lease:" + lease, {}) == here);
}

TEST_CASE("adds the JAX plugin to PYTHONPATH before the user's folders") {
  const Installation pool;
  ::unsetenv("PYTHONPATH");
  const auto path = [&](const Environment& more) {
    return pool.run({"--server", "tcp://h:5", "sh", "-c", "echo \"${PYTHONPATH-none}\""}, more).output;
  };
  CHECK(path({}) == "none\n");  // this installation has no plugin
  const std::string modules = fs::path(pool.library()).parent_path() / "python";
  fs::create_directories(modules + "/jax_plugins/gpupool");
  CHECK(path({}) == modules + "\n");
  CHECK(path({{"PYTHONPATH", "/mine"}}) == modules + ":/mine\n");
}

TEST_CASE("does not change the program's arguments and exit status and signals") {
  const Installation pool;
  const Finished shown =
      pool.run({"--server", "tcp://h:5", "sh", "-c", "echo \"$@\"; exit 37", "x", "--server", "--", "-h"});
  CHECK(shown.status == 37);
  CHECK(shown.output == "--server -- -h\n");
  CHECK(pool.run({"--server", "tcp://h:5", "sh", "-c", "kill -USR1 $$"}).status == 128 + SIGUSR1);
}

TEST_CASE("names a program that cannot run and ends with the shell's exit status") {
  const Installation pool;
  const Finished missing = pool.run({"--server", "tcp://h:5", "--", "no-such-program-here"});
  CHECK(missing.status == 127);
  CHECK(has(missing.output, "no-such-program-here"));
  CHECK(pool.run({"--server", "tcp://h:5", "--", "/nowhere/app"}).status == 127);
  const std::string file = pool.folder().write("not-executable", "text");
  const Finished refused = pool.run({"--server", "tcp://h:5", "--", file});
  CHECK(refused.status == 126);
  CHECK(has(refused.output, file));
  CHECK(pool.run({"--server", "tcp://h:5", "--", pool.folder().path()}).status == 126);
}

TEST_CASE("wrong usage ends with status 2 and the reason") {
  const Installation pool;
  CHECK(has(pool.run({"true"}).output, "no server given"));
  CHECK(pool.run({"true"}).status == 2);
  CHECK(pool.run({"--server", "tcp://h:5"}).status == 2);
  CHECK(pool.run({"--server", "tcp://h:5", "--"}).status == 2);
  CHECK(pool.run({"--server"}).status == 2);
  const Finished bad = pool.run({"--server", "h:5", "true"});
  CHECK(bad.status == 2);
  CHECK(has(bad.output, "'h:5'"));
  for (const std::string server : {"h:5", "http://h:5", "pigeon://h:5", "tcp://h:5,http://i:5"}) {
    const Finished refused = pool.run({"--server", server, "true"});
    INFO(refused.output);
    CHECK(refused.status == 2);
    CHECK(has(refused.output, "write it as tcp://HOST:PORT"));
    CHECK(has(refused.output, "pool://SCHEDULER:PORT") == !server.starts_with("tcp://"));
  }
  CHECK(pool.run({"--server", "tcp://h:5,tcp://i:5", "true"}).status == 0);
  const Finished twice = pool.run({"--server", "tcp://h:5,tcp://i:5,tcp://h:5", "true"});
  CHECK(twice.status == 2);
  CHECK(has(twice.output, "duplicate server tcp://h:5"));
  CHECK(pool.run({"--server", "tcp://h:5,", "true"}).status == 2);
  const Finished unknown = pool.run({"--sever", "tcp://h:5", "true"});
  CHECK(unknown.status == 2);
  CHECK(has(unknown.output, "--sever"));
}

TEST_CASE("a broken installation ends with status 125") {
  const Installation without("pool", false);
  const Finished missing = without.run({"--server", "tcp://h:5", "true"});
  CHECK(missing.status == 125);
  CHECK(has(missing.output, without.library()));
  const Installation odd("po:ol");
  CHECK(odd.run({"--server", "tcp://h:5", "true"}).status == 125);
  const Installation blank("po ol");
  CHECK(blank.run({"--server", "tcp://h:5", "true"}).status == 0);
  CHECK(blank.run({"--preload", "--server", "tcp://h:5", "true"}).status == 125);
}

TEST_CASE("help and version") {
  const Installation pool;
  const Finished help = pool.run({"--help"});
  CHECK(help.status == 0);
  for (const char* option : {"--server", "--preload", "GPUPOOL", "127"}) CHECK(has(help.output, option));
  CHECK(pool.run({"--version"}).output.starts_with("pool-run "));
}
