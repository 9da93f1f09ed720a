// Tests the settings from the environment: values, defaults, and invalid values, which are logged and
// ignored.
#include "client/process/settings.h"

#include <sys/stat.h>

#include "client/process/driver_version.h"
#include "tests/client/child.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using Catch::Matchers::ContainsSubstring;
using gpupool::testing::Environment;
using gpupool::testing::TemporaryFolder;

namespace {

// Calls `show` with the settings of this environment.
ChildResult settings(const Environment& environment,
                     const std::function<std::string(const Settings&)>& show) {
  return in_child(environment, [&] { return show(settings_from_environment()); });
}

std::string milliseconds(const Settings& settings) {
  return std::to_string(settings.connect_timeout.count()) + " " +
         std::to_string(settings.dead_peer_timeout.count());
}
std::string connections(const Settings& settings) {
  return settings.bulk_connections ? std::to_string(*settings.bulk_connections) : "unset";
}
std::string carrier(const Settings& settings) {
  return settings.carrier == Carrier::tcp ? "tcp" : settings.carrier == Carrier::rdma ? "rdma" : "auto";
}
std::string compression_of(const Settings& settings) {
  return settings.compression == compression::Policy::always ? "always"
         : settings.compression == compression::Policy::off  ? "off"
                                                             : "auto";
}
std::string token(const Settings& settings) {
  return "'" + settings.token + "'";
}

}  // namespace

TEST_CASE("settings: an empty environment has the defaults and logs nothing") {
  const auto got = settings({}, [](const Settings& all) {
    return carrier(all) + " " + connections(all) + " " + compression_of(all) + " " + milliseconds(all) + " " +
           token(all) + (all.shared_memory ? " shm" : "") + (all.every_call_waits ? " sync" : "") +
           (all.launch_blocking ? " blocking" : "") + all.tenant + all.tls.ca;
  });
  CHECK(got.result == "auto unset auto 5000 15000 '' shm");
  CHECK(got.errors.empty());
}

TEST_CASE("settings: reads every variable") {
  const auto got = settings({{"GPUPOOL_TENANT", "alice"},
                             {"GPUPOOL_TOKEN", "  secret \r\nnext line"},
                             {"GPUPOOL_TLS_CA", "ca.pem"},
                             {"GPUPOOL_TLS_CERT", "cert.pem"},
                             {"GPUPOOL_TLS_KEY", "key.pem"},
                             {"GPUPOOL_TRANSPORT", "tcp"},
                             {"GPUPOOL_SHM", "0"},
                             {"GPUPOOL_BULK_CONNECTIONS", "8"},
                             {"GPUPOOL_COMPRESSION", "always"},
                             {"GPUPOOL_SYNC", "1"},
                             {"CUDA_LAUNCH_BLOCKING", "1"},
                             {"GPUPOOL_CONNECT_TIMEOUT_MS", "7"},
                             {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "8"}},
                            [](const Settings& all) {
                              return all.tenant + " " + token(all) + " " + all.tls.ca + " " +
                                     all.tls.certificate + " " + all.tls.key + " " + carrier(all) +
                                     (all.shared_memory ? " shm " : " ") + connections(all) + " " +
                                     compression_of(all) + (all.every_call_waits ? " sync" : "") +
                                     (all.launch_blocking ? " blocking " : "") + milliseconds(all);
                            });
  CHECK(got.result == "alice 'secret' ca.pem cert.pem key.pem tcp 8 always sync blocking 7 8");
  CHECK(got.errors.empty());
}

TEST_CASE("settings: ignores invalid values and names the variable") {
  struct Wrong {
    const char *variable, *value, *result;
    std::string (*show)(const Settings&);
  };
  const Wrong all[] = {
      {"GPUPOOL_CONNECT_TIMEOUT_MS", "0", "5000 15000", milliseconds},
      {"GPUPOOL_CONNECT_TIMEOUT_MS", "-5", "5000 15000", milliseconds},
      {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "10s", "5000 15000", milliseconds},
      // A deadline that far in the future would overflow the clock and already have passed.
      {"GPUPOOL_CONNECT_TIMEOUT_MS", "1000000001", "5000 15000", milliseconds},
      {"GPUPOOL_DEAD_PEER_TIMEOUT_MS", "99999999999999999999", "5000 15000", milliseconds},
      {"GPUPOOL_BULK_CONNECTIONS", "9", "unset", connections},
      {"GPUPOOL_BULK_CONNECTIONS", "-1", "unset", connections},
      {"GPUPOOL_BULK_CONNECTIONS", " 1", "unset", connections},
      {"GPUPOOL_BULK_CONNECTIONS", "two", "unset", connections},
      {"GPUPOOL_COMPRESSION", "yes", "auto", compression_of},
      {"GPUPOOL_TRANSPORT", "udp", "auto", carrier},
  };
  for (const Wrong& wrong : all) {
    INFO(wrong.variable << "=" << wrong.value);
    const auto got = settings({{wrong.variable, wrong.value}}, wrong.show);
    CHECK(got.result == wrong.result);
    CHECK_THAT(got.errors, ContainsSubstring(std::string(wrong.variable) + "=" + wrong.value + ": ignored"));
  }
}

TEST_CASE("settings: an empty variable counts as not set") {
  for (const char* const variable : {"GPUPOOL_CONNECT_TIMEOUT_MS", "GPUPOOL_BULK_CONNECTIONS",
                                     "GPUPOOL_COMPRESSION", "GPUPOOL_TRANSPORT", "GPUPOOL_TOKEN_FILE"}) {
    INFO(variable);
    const auto got = settings({{variable, ""}}, [](const Settings& all) {
      return milliseconds(all) + connections(all) + compression_of(all) + carrier(all) + token(all);
    });
    CHECK(got.result == "5000 15000unsetautoauto''");
    CHECK(got.errors.empty());
  }
}

TEST_CASE("settings: a token file wins over GPUPOOL_TOKEN and must be private") {
  const TemporaryFolder folder;
  const std::string path = folder.write_secret("token", "\tfrom the file \nsecond line\n");
  Environment environment{{"GPUPOOL_TOKEN_FILE", path}, {"GPUPOOL_TOKEN", "from the variable"}};
  SECTION("its first line is the token") {
    const auto got = settings(environment, token);
    CHECK(got.result == "'from the file'");
    CHECK(got.errors.empty());
  }
  SECTION("readable by others: used with a warning") {
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    const auto got = settings(environment, token);
    CHECK(got.result == "'from the file'");
    CHECK_THAT(got.errors, ContainsSubstring("readable by other users"));
  }
  SECTION("writable by others: not used") {
    REQUIRE(::chmod(path.c_str(), 0622) == 0);
    const auto got = settings(environment, token);
    CHECK(got.result == "''");
    CHECK_THAT(got.errors, ContainsSubstring("writable by other users"));
  }
  SECTION("missing") {
    environment["GPUPOOL_TOKEN_FILE"] = path + ".missing";
    const auto got = settings(environment, token);
    CHECK(got.result == "''");
    CHECK_THAT(got.errors, ContainsSubstring("cannot be read: No such file"));
  }
  SECTION("empty first line") {
    environment["GPUPOOL_TOKEN_FILE"] = folder.write_secret("empty", " \nsecond line\n");
    const auto got = settings(environment, token);
    CHECK(got.result == "''");
    CHECK_THAT(got.errors, ContainsSubstring("no token in its first line"));
    CHECK(got.errors.find("second line") == std::string::npos);
  }
}

TEST_CASE("settings: GPUPOOL_DRIVER_VERSION is read once") {
  const auto version = [] {
    const auto setting = driver_version_setting();
    ::setenv("GPUPOOL_DRIVER_VERSION", "11.8", 1);
    return (setting ? std::to_string(*setting) : "unset") +
           (driver_version_setting() == setting ? "" : " changed");
  };
  CHECK(in_child({}, version).result == "unset");
  CHECK(in_child({{"GPUPOOL_DRIVER_VERSION", ""}}, version).result == "unset");
  CHECK(in_child({{"GPUPOOL_DRIVER_VERSION", "12.4"}}, version).result == "12040");
  const auto wrong = in_child({{"GPUPOOL_DRIVER_VERSION", "10.2"}}, version);
  CHECK(wrong.result == "unset");
  CHECK_THAT(wrong.errors, ContainsSubstring("GPUPOOL_DRIVER_VERSION=10.2: ignored, must be a CUDA version"));
}
