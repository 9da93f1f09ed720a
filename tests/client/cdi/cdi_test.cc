// Tests what pool-cdi writes for a device, against the rules of the Container Device Interface.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/client/cdi/installation.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

void check_members(const Json& json, const std::set<std::string>& allowed) {
  REQUIRE(json.is_object());
  for (const auto& [name, value] : json.items()) {
    INFO(name);
    CHECK(allowed.count(name) == 1);
  }
}

// Checks `containerEdits` by the rules of CDI 0.5, and that they give neither devices nor writable files.
void check_edits(const Json& edits) {
  check_members(edits, {"env", "mounts"});
  CHECK(!edits.empty());  // engines reject empty edits
  for (const Json& pair : edits.value("env", Json::array()))
    CHECK(std::regex_match(pair.get<std::string>(), std::regex("[A-Za-z0-9_]+=.*")));
  std::set<std::string> places;
  for (const Json& mount : edits.value("mounts", Json::array())) {
    INFO(mount.dump());
    check_members(mount, {"hostPath", "containerPath", "options"});
    CHECK(mount["hostPath"].get<std::string>().front() == '/');
    CHECK(mount["containerPath"].get<std::string>().front() == '/');
    CHECK(mount["options"] == Json({"ro", "nosuid", "nodev", "bind"}));
    CHECK(places.insert(mount["containerPath"]).second);
  }
}

void check_specification(const Json& json) {
  check_members(json, {"cdiVersion", "kind", "devices", "containerEdits"});
  CHECK(json["cdiVersion"] == "0.5.0");
  CHECK(json["kind"] == "gpupool.dev/gpu");
  check_edits(json["containerEdits"]);
  REQUIRE(json["devices"].is_array());
  CHECK(!json["devices"].empty());
  std::set<std::string> names;
  for (const Json& device : json["devices"]) {
    check_members(device, {"name", "containerEdits"});
    const std::string name = device["name"];
    CHECK(std::regex_match(name, std::regex("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")));
    CHECK(names.insert(name).second);
    check_edits(device["containerEdits"]);
  }
}

// Returns a variable of the device; "none" if it is not set.
std::string variable(const Json& device, const std::string& name) {
  for (const Json& pair : device["containerEdits"]["env"]) {
    const std::string text = pair;
    if (text.starts_with(name + "=")) return text.substr(name.size() + 1);
  }
  return "none";
}

// Returns the host's path of a mount, "none" if there is none.
std::string mounted(const Json& edits, const std::string& place) {
  for (const Json& mount : edits.value("mounts", Json::array())) {
    if (mount["containerPath"] == place) return mount["hostPath"];
  }
  return "none";
}

// Runs pool-cdi --output - and returns the specification that it prints.
Json printed(const CdiInstallation& pool, std::vector<std::string> words) {
  words.insert(words.end(), {"--output", "-"});
  const Finished finished = pool.run(words);
  INFO(finished.output);
  REQUIRE(finished.status == 0);
  Json json = Json::parse(finished.output.substr(finished.output.find('{')));
  check_specification(json);
  return json;
}

}  // namespace

TEST_CASE("gives containers the server and the client library") {
  const CdiInstallation pool;
  const Json json = printed(pool, {"--server", "tcp://gpu-host:9700"});
  const Json& device = json["devices"][0];
  CHECK(device["name"] == "all");
  CHECK(variable(device, "GPUPOOL") == "tcp://gpu-host:9700");
  CHECK(variable(device, "LD_LIBRARY_PATH") == "/usr/lib/gpupool/lib/client");
  CHECK(variable(device, "NCCL_SHM_DISABLE") == "1");
  CHECK(variable(device, "NCCL_P2P_LEVEL") == "SYS");
  CHECK(has(variable(device, "NCCL_HOSTID"), "tcp://gpu-host:9700"));
  CHECK(variable(device, "PYTHONPATH") == "none");
  const Json& common = json["containerEdits"];
  CHECK(mounted(common, "/usr/lib/gpupool/lib/client") == pool.client());
  CHECK(mounted(common, "/usr/lib/gpupool/bin/pool-smi") == pool.prefix() / "bin" / "pool-smi");
  CHECK(common["mounts"].size() == 2);
  CHECK(!device["containerEdits"].contains("mounts"));

  // A program that needs the host's packages would not start in containers.
  pool.set_program("pool-smi", "/usr/bin/openssl");
  CHECK(printed(pool, {"--server", "tcp://gpu-host:9700"})["containerEdits"]["mounts"].size() == 1);
}

TEST_CASE("takes the server from GPUPOOL") {
  const CdiInstallation pool;
  const Finished finished = run_to_end(pool.command({"--output", "-"}), {{"GPUPOOL", "tcp://h:5,tcp://i:5"}});
  REQUIRE(finished.status == 0);
  CHECK(variable(Json::parse(finished.output)["devices"][0], "GPUPOOL") == "tcp://h:5,tcp://i:5");
}

TEST_CASE("mounts the folder of a socket but no other folder of the host") {
  const CdiInstallation pool;
  const fs::path folder = pool.folder().path() / "sockets";
  fs::create_directory(folder);
  const std::string address = "shm://" + (folder / "pool.sock").string();
  const Json device = printed(pool, {"--server", address})["devices"][0];
  CHECK(variable(device, "GPUPOOL") == address);
  CHECK(mounted(device["containerEdits"], folder) == folder);
  CHECK(device["containerEdits"]["mounts"].size() == 1);
  const std::string both = address + ",shm://" + (folder / "other.sock").string();
  CHECK(printed(pool, {"--server", both})["devices"][0]["containerEdits"]["mounts"].size() == 1);

  CHECK(has(pool.run({"--server", "shm:///nowhere/gpupool/pool.sock", "--output", "-"}).output,
            "/nowhere/gpupool does not exist"));
  fs::create_symlink("/run", pool.folder().path() / "link");
  const std::string link = pool.folder().path() / "link" / "pool.sock";
  fs::create_directory(folder / "private");
  for (const std::string& path :
       {std::string("/run/pool.sock"), std::string("/pool.sock"), link, (folder / "pool.sock").string()}) {
    const Finished refused = pool.run({"--server", "shm://" + path, "--output", "-"});
    INFO(refused.output);
    CHECK(refused.status == 2);
    CHECK(has(refused.output, "in a folder of its own"));
  }
}

TEST_CASE("mounts no folder with a private file or in which every user can write") {
  const CdiInstallation pool;
  const fs::path folder = pool.folder().path() / "sockets";
  const std::vector<std::string> words{"--server", "shm://" + (folder / "pool.sock").string()};
  const auto refuses = [&](const std::string& reason) {
    const Finished refused = pool.update(words);
    INFO(refused.output);
    CHECK(refused.status == 2);
    CHECK(has(refused.output, reason));
  };
  fs::create_directory(folder);
  pool.folder().write_secret("sockets/key.pem", "very-private");
  refuses("it contains key.pem, which not every user can read");
  fs::remove(folder / "key.pem");
  fs::permissions(folder, fs::perms::all | fs::perms::sticky_bit);
  refuses("every user can write to it");
  fs::permissions(folder, fs::perms(0755));
  CHECK(pool.update(words).status == 0);
  CHECK(pool.run({"--server", "shm://" + (folder / ".." / "sockets" / "pool.sock").string(), "--output", "-"})
            .status == 2);
}

TEST_CASE("mounts the folder that a symbolic link names at the link's path") {
  const CdiInstallation pool;
  const fs::path link = pool.folder().path() / "link", folder = pool.folder().path() / "sockets";
  fs::create_directory(folder);
  fs::create_directory_symlink(folder, link);
  const Json device = printed(pool, {"--server", "shm://" + link.string() + "//pool.sock"})["devices"][0];
  CHECK(mounted(device["containerEdits"], link) == fs::canonical(folder));
}

TEST_CASE("explains addresses that are the container's own") {
  const CdiInstallation pool;
  for (const char* address : {"tcp://127.0.0.1:9700", "tcp://localhost:9700", "tcp://[::1]:9700",
                              "shm://@name", "pool://localhost:9800"}) {
    const Finished finished = pool.run({"--server", address, "--output", "-"});
    INFO(address);
    CHECK(finished.status == 0);
    CHECK(has(finished.output, "--network=host"));
  }
  CHECK(!has(pool.run({"--server", "tcp://10.0.0.1:9700", "--output", "-"}).output, "--network=host"));
}

TEST_CASE("mounts credentials without writing them into the specification") {
  const CdiInstallation pool;
  const std::string token = pool.folder().write_secret("token", "top-secret"),
                    key = pool.folder().write_secret("key.pem", "very-private"),
                    open = pool.folder().write("ca.pem", "public");
  const Json json = printed(pool, {"--server", "tls://h:5", "--token-file", token, "--tls-ca", open,
                                   "--tls-cert", open, "--tls-key", key});
  const Json& device = json["devices"][0];
  const Json& edits = device["containerEdits"];
  CHECK(variable(device, "GPUPOOL_TOKEN_FILE") == "/etc/gpupool/token");
  CHECK(variable(device, "GPUPOOL_TLS_CA") == "/etc/gpupool/ca.pem");
  CHECK(variable(device, "GPUPOOL_TLS_CERT") == "/etc/gpupool/cert.pem");
  CHECK(variable(device, "GPUPOOL_TLS_KEY") == "/etc/gpupool/key.pem");
  CHECK(mounted(edits, "/etc/gpupool/token") == token);
  CHECK(mounted(edits, "/etc/gpupool/ca.pem") == open);
  CHECK(mounted(edits, "/etc/gpupool/key.pem") == key);
  CHECK(!has(json.dump(), "top-secret"));
  CHECK(!has(json.dump(), "very-private"));

  ::chmod(token.c_str(), 0644);
  const Finished exposed = pool.run({"--server", "tls://h:5", "--token-file", token, "--output", "-"});
  CHECK(exposed.status == 2);
  CHECK(has(exposed.output, "chmod"));
  for (const char* option : {"--token-file", "--tls-ca", "--tls-cert", "--tls-key"}) {
    const Finished missing = pool.run({"--server", "tls://h:5", option, "/nowhere/file", "--output", "-"});
    CHECK(missing.status == 1);
    CHECK(has(missing.output, std::string(option) + ": '/nowhere/file' cannot be read"));
  }
  CHECK(pool.run({"--server", "tls://h:5", "--tls-ca", pool.prefix(), "--output", "-"}).status == 2);
}

TEST_CASE("leaves the image's LD_LIBRARY_PATH to it where asked") {
  const CdiInstallation pool;
  const Json extended = printed(pool, {"--server", "tcp://h:5", "--library-path", "/opt/a:/opt/b"});
  CHECK(variable(extended["devices"][0], "LD_LIBRARY_PATH") == "/usr/lib/gpupool/lib/client:/opt/a:/opt/b");
  for (const char* folders : {":", "/a:", ":/a", "/a::/b", "a", "/a;b"})
    CHECK(pool.run({"--server", "tcp://h:5", "--library-path", folders, "--output", "-"}).status == 2);
  const Json device = printed(pool, {"--server", "tcp://h:5", "--system-folders"})["devices"][0];
  CHECK(variable(device, "LD_LIBRARY_PATH") == "none");
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    for (const std::string folder : {"/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"})
      CHECK(mounted(device["containerEdits"], folder + name) == pool.client() / name);
  }
}

TEST_CASE("adds further variables and the JAX plugin on request") {
  const CdiInstallation pool;
  const Json device = printed(pool, {"--server", "tcp://h:5", "--env", "CUDA_VISIBLE_DEVICES=1,0", "--env",
                                     "NCCL_SHM_DISABLE=0"})["devices"][0];
  CHECK(variable(device, "CUDA_VISIBLE_DEVICES") == "1,0");
  CHECK(variable(device, "NCCL_SHM_DISABLE") == "0");
  const Finished secret = pool.run({"--server", "tcp://h:5", "--env", "GPUPOOL_TOKEN=x", "--output", "-"});
  CHECK(secret.status == 2);
  CHECK(has(secret.output, "--token-file"));
  for (const char* pair : {"A", "=1", "A B=1", "GPUPOOL=tcp://i:5", "LD_LIBRARY_PATH=/x"})
    CHECK(pool.run({"--server", "tcp://h:5", "--env", pair, "--output", "-"}).status == 2);

  CHECK(pool.run({"--server", "tcp://h:5", "--jax", "--output", "-"}).status == 1);
  fs::create_directories(pool.client() / "python" / "jax_plugins");
  CHECK(variable(printed(pool, {"--server", "tcp://h:5", "--jax"})["devices"][0], "PYTHONPATH") ==
        "/usr/lib/gpupool/lib/client/python");
}

TEST_CASE("passes a pool's request and mounts pool-lease") {
  const CdiInstallation pool;
  const Json device = printed(pool, {"--server", "pool://sched:9800", "--gpus", "2", "--memory=8GiB",
                                     "--label", "a b", "--one-host"})["devices"][0];
  CHECK(variable(device, "GPUPOOL") == "pool://sched:9800?gpus=2&memory=8GiB&label=a%20b&one-host=1");
  CHECK(mounted(device["containerEdits"], "/usr/lib/gpupool/bin/pool-lease") ==
        pool.prefix() / "bin" / "pool-lease");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--server", "pool://sched", "--memory", "much"},
        {"--server", "pool://sched", "--gpus"},
        {"--server", "pool://sched:0"},
        {"--server", "pool://sched", "--system-folders"},
        {"--server", "tcp://h:5", "--gpus", "2"}}) {
    const Finished refused = pool.update(words);
    INFO(refused.output);
    CHECK(refused.status == 2);
  }
  CHECK(!fs::exists(pool.file()));
}

TEST_CASE("refuses a pool if pool-lease needs libraries of the host") {
  const CdiInstallation pool;
  pool.set_program("pool-lease", "/usr/bin/openssl");
  const Finished refused = pool.update({"--server", "pool://sched:9800"});
  INFO(refused.output);
  CHECK(refused.status == 1);
  CHECK(has(refused.output, "libssl.so"));
  CHECK(has(refused.output, "make-bundle.sh"));
  pool.set_program("pool-lease", "/etc/passwd");
  CHECK(has(pool.update({"--server", "pool://sched:9800"}).output, "cannot list the libraries"));
  CHECK(!fs::exists(pool.file()));
}

TEST_CASE("mounts the libraries that a bundle brings for pool-lease") {
#ifndef BUNDLED_PROGRAM
  return report_skip("a program with a sanitizer needs a library of the host");
#else
  const CdiInstallation pool;
  const std::string name = fs::path(BUNDLED_LIBRARY).filename();
  const std::vector<std::string> words{"--server", "pool://sched:9800"};
  pool.set_program("pool-lease", BUNDLED_PROGRAM);
  CHECK(has(pool.update(words).output, name));  // the library is missing
  fs::copy_file(BUNDLED_LIBRARY, pool.prefix() / "lib" / name);
  const Json device = printed(pool, words)["devices"][0];
  CHECK(mounted(device["containerEdits"], "/usr/lib/gpupool/lib/" + name) == pool.prefix() / "lib" / name);

  // Variables of this process do not apply in containers.
  fs::create_directory(pool.folder().path() / "elsewhere");
  fs::rename(pool.prefix() / "lib" / name, pool.folder().path() / "elsewhere" / name);
  const Finished refused = run_to_end(pool.command({"--server", "pool://sched:9800", "--output", "-"}),
                                      {{"LD_LIBRARY_PATH", pool.folder().path() / "elsewhere"}});
  CHECK(refused.status == 1);
  CHECK(has(refused.output, name));
#endif
}

TEST_CASE("wrong usage of pool-cdi ends with status 2 and the reason") {
  const CdiInstallation pool;
  const auto refuses = [&](const std::vector<std::string>& words, const std::string& reason) {
    const Finished refused = pool.run(words);
    INFO(refused.output);
    CHECK(refused.status == 2);
    CHECK(has(refused.output, reason));
  };
  refuses({}, "no server given");
  refuses({"--server", "h:5"}, "tcp://HOST:PORT");
  refuses({"--server", "lease:/tmp/x"}, "pool://SCHEDULER:PORT");
  refuses({"--server", "tcp://h:5", "--output", "gpupool.conf"}, "must end in .json");
  refuses({"--sever", "tcp://h:5"}, "'--sever'");
  refuses({"--server", "tcp://h:5", "extra"}, "'extra'");
  refuses({"--list", "--output", "-"}, "--output");
  refuses({"--server", "tcp://h:5", "--library-path", "/x", "--system-folders"}, "exclude each other");
  for (const char* name : {"", "a b", "-a", "a-", "a/b", ".", "\xc3\xa4"})
    refuses({"--server", "tcp://h:5", "--name", name}, "cannot be a device's name");
  for (const char* name : {"0", "a", "A_1.b:c-d"})
    CHECK(printed(pool, {"--server", "tcp://h:5", "--name", name})["devices"][0]["name"] == name);
}

TEST_CASE("pool-cdi prints its help and version and names a missing client library") {
  const CdiInstallation pool;
  const Finished help = pool.run({"--help"});
  CHECK(help.status == 0);
  for (const char* option : {"--server", "--token-file", "--output", "gpupool.dev/gpu=NAME"})
    CHECK(has(help.output, option));
  CHECK(pool.run({"--version"}).output.starts_with("pool-cdi "));
  fs::remove(pool.client() / "libcuda.so.1");
  const Finished missing = pool.run({"--server", "tcp://h:5", "--output", "-"});
  CHECK(missing.status == 1);
  CHECK(has(missing.output, (pool.client() / "libcuda.so.1").string()));
}
