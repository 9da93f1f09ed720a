// Tests of the files of claims and of containers.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "client/kubernetes/claim_store.h"
#include "client/kubernetes/host_files.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::kubernetes;
using namespace gpupool::testing;
namespace fs = std::filesystem;

namespace {

mode_t mode_of(const fs::path& path) {
  struct stat about {};
  REQUIRE(::stat(path.c_str(), &about) == 0);
  return about.st_mode & 0777;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

StoredClaim claim(const std::string& uid) {
  StoredClaim out;
  out.name = {"team", "claim", uid};
  out.devices = {{"gpu", "gpupool", "h200"}};
  out.lease = {2, 500, 1 << 30, {"NVIDIA H200"}, "mode=hard"};
  out.token = "secret";
  return out;
}

}  // namespace

TEST_CASE("claims are read as they were stored, and only root reaches them") {
  const TemporaryFolder folder;
  const auto store = ClaimStore::open(folder.path().string() + "/state");
  REQUIRE(store);
  REQUIRE(store->put(claim("u-1")));
  StoredClaim prepared = claim("u-1");
  prepared.prepared = true;
  prepared.own_token = false;
  REQUIRE(store->put(prepared));
  std::vector<std::string> report;
  const auto all = store->read_all(report);
  CHECK(report.empty());
  REQUIRE(all.size() == 1);
  CHECK(all[0].name.space == "team");
  CHECK(all[0].devices[0].device == "h200");
  CHECK(all[0].lease.models == std::vector<std::string>{"NVIDIA H200"});
  CHECK(all[0].lease.terms == "mode=hard");
  CHECK(all[0].token == "secret");
  CHECK_FALSE(all[0].own_token);
  CHECK(all[0].prepared);
  CHECK(mode_of(folder.path().string() + "/state") == 0700);
  CHECK(mode_of(store->lease_folder("u-1")) == 0755);  // every user of a container
  REQUIRE(store->remove("u-1"));
  REQUIRE(store->remove("u-1"));
  CHECK(store->read_all(report).empty());
}

TEST_CASE("a file that was cut off is reported, and an unfinished claim is removed") {
  const TemporaryFolder folder;
  const auto store = ClaimStore::open(folder.path().string());
  REQUIRE(store);
  write(folder.path().string() + "/claims/u-1/claim.json", "{\"namespace\": ");
  write(folder.path().string() + "/claims/u-2/lease/servers", "");
  REQUIRE(store->put(claim("u-3")));
  std::vector<std::string> report;
  CHECK(store->read_all(report).size() == 1);
  REQUIRE(report.size() == 1);
  CHECK(has(report[0], "u-1/claim.json"));
  CHECK_FALSE(fs::exists(folder.path().string() + "/claims/u-2"));
}

TEST_CASE("a UID that would lead out of the folder is none") {
  CHECK(is_uid("0d1c2b3a-0000-4000-8000-000000000000"));
  for (const char* const wrong : {"", ".", "..", "../x", "a/b", "a b"}) CHECK_FALSE(is_uid(wrong));
}

TEST_CASE("the client library is copied once, and another version beside it") {
  const TemporaryFolder folder;
  const run::Installation own{folder.path().string() + "/own/bin",
                              folder.path().string() + "/own/lib/client"};
  write(own.client / "libcuda.so.1", "one");
  write(own.programs / "pool-lease", "program");
  write(folder.path().string() + "/own/lib/libgrpc.so.1", "library");
  const std::string host = folder.path().string() + "/host";
  const auto first = copy_installation(own, host);
  REQUIRE(first);
  CHECK(fs::exists(first->client / "libcuda.so.1"));
  CHECK(fs::exists(first->programs / "pool-lease"));
  CHECK(fs::exists(first->client.parent_path() / "libgrpc.so.1"));
  CHECK(copy_installation(own, host)->client == first->client);
  write(own.client / "libcuda.so.1", "two");
  const auto second = copy_installation(own, host);
  REQUIRE(second);
  CHECK(second->client != first->client);
  CHECK(fs::exists(first->client / "libcuda.so.1"));  // running containers use it
  // An image may differ in a program or a library alone.
  std::set<std::string> copies{first->client, second->client};
  write(own.programs / "pool-lease", "program two");
  copies.insert(copy_installation(own, host)->client);
  write(folder.path().string() + "/own/lib/libgrpc.so.1", "library two");
  copies.insert(copy_installation(own, host)->client);
  fs::create_symlink("libcuda.so.1", own.client / "libcuda.so");
  const auto last = copy_installation(own, host);
  REQUIRE(last);
  copies.insert(last->client);
  CHECK(copies.size() == 5);
  CHECK(fs::is_symlink(last->client / "libcuda.so"));
  CHECK_FALSE(copy_installation({own.programs, folder.path().string() + "/none"}, host));
}

TEST_CASE("users of containers can read the copy, whatever the umask is") {
  const TemporaryFolder folder;
  const run::Installation own{folder.path() / "own/bin", folder.path() / "own/lib/client"};
  write(own.client / "libcuda.so.1", "one");
  write(own.programs / "pool-lease", "program");
  const mode_t before = ::umask(077);
  const auto copied = copy_installation(own, folder.path() / "host");
  ::umask(before);
  REQUIRE(copied);
  for (const fs::path& one :
       {copied->client, copied->client.parent_path(), copied->programs, copied->programs.parent_path()})
    CHECK(mode_of(one) == 0755);
}

TEST_CASE("a copy that was begun by a process that was killed is made anew") {
  const TemporaryFolder folder;
  const run::Installation own{folder.path() / "own/bin", folder.path() / "own/lib/client"};
  write(own.client / "libcuda.so.1", "one");
  const std::string host = folder.path() / "host";
  const auto first = copy_installation(own, host);
  REQUIRE(first);
  const fs::path top = first->client.parent_path().parent_path();
  fs::rename(top, top.string() + ".new");
  write(top.string() + ".new/lib/client/left", "");
  const auto second = copy_installation(own, host);
  REQUIRE(second);
  CHECK(content_of(second->client / "libcuda.so.1") == "one");
  CHECK_FALSE(fs::exists(second->client / "left"));
}
