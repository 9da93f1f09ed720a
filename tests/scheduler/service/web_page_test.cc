// Tests of the web page of a real pool-scheduler: who may read it, its headers, its history and events.
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/token/token.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/http_get.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr const char* kProtected[] = {"/pool.json", "/history.json", "/events.json"};

std::string token_of(const std::string& name) {
  return name + std::string(kShortestToken, 'x');
}

std::string entry(const std::string& kind, const std::string& name) {
  return "[[" + kind + "]]\nname = \"" + name + "\"\ntokens = [\"" + hash_text(hash_token(token_of(name))) +
         "\"]\n";
}

std::string get_as(uint16_t port, const std::string& path, const std::string& token,
                   const std::string& host = "localhost") {
  const std::string field = token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
  return http_exchange(port, "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + field + "\r\n");
}

std::string status_of(const std::string& answer) {
  return answer.substr(answer.find(' ') + 1, 3);
}

nlohmann::json json_in(const std::string& answer) {
  return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
}

uint16_t page_port(const SchedulerProcess& scheduler) {
  REQUIRE(scheduler.await_log("url=http"));
  return metrics_port(scheduler.log());
}

}  // namespace

TEST_CASE("with tokens, the web page's data need an operator's token and its files do not") {
  TemporaryFolder folder;
  const std::string config = folder.write(
      "pool.toml", entry("tenant", "research") + entry("node", "n0") + entry("operator", "root"));
  SchedulerProcess scheduler({"--config", config, "--metrics", "127.0.0.1:0"});
  const uint16_t port = page_port(scheduler);
  for (const char* const path : kProtected) {
    INFO(path);
    CHECK(status_of(get_as(port, path, "")) == "401");
    CHECK(get_as(port, path, "").find("\r\nWWW-Authenticate: Bearer\r\n") != std::string::npos);
    CHECK(status_of(get_as(port, path, token_of("root"))) == "200");
    CHECK(status_of(get_as(port, path, "")) == "401");  // not the answer that was made for the operator
    CHECK(status_of(get_as(port, path, token_of("research"))) == "403");
    CHECK(status_of(get_as(port, path, token_of("n0"))) == "403");
    CHECK(status_of(get_as(port, path, token_of("other"))) == "401");
    CHECK(status_of(get_as(port, std::string(path) + "?token=" + token_of("root"), "")) == "401");
  }
  for (const char* const path :
       {"/", "/page/main.js", "/page/theme.css", "/page/icon.svg", "/metrics", "/healthz"}) {
    INFO(path);
    CHECK(status_of(get_as(port, path, "")) == "200");
  }
  CHECK(status_of(get_as(port, "/page/nothing.js", "")) == "404");
  CHECK(scheduler.await_log(" caller_refused "));
  // Asking without a token, as the page does first, is no failed authentication.
  const size_t kRefused = 3 * std::size(kProtected);
  CHECK(http_get(port, "/metrics").find("pool_callers_refused_total " + std::to_string(kRefused) + "\n") !=
        std::string::npos);
}

TEST_CASE("a removed operator's token no longer reads the web page") {
  TemporaryFolder folder;
  const std::string others = entry("tenant", "research") + entry("operator", "other");
  const std::string config = folder.write("pool.toml", others + entry("operator", "root"));
  SchedulerProcess scheduler({"--config", config, "--metrics", "127.0.0.1:0"});
  const uint16_t port = page_port(scheduler);
  REQUIRE(status_of(get_as(port, "/pool.json", token_of("root"))) == "200");
  std::ofstream(config) << others;
  scheduler.process().signal(SIGHUP);
  REQUIRE(scheduler.await_log(" reloaded "));
  CHECK(status_of(get_as(port, "/pool.json", token_of("root"))) == "401");
  CHECK(status_of(get_as(port, "/pool.json", token_of("other"))) == "200");
}

TEST_CASE("without tokens, the web page's data need a Host that other sites' pages cannot have") {
  for (const std::string listen : {"127.0.0.1:0", "0.0.0.0:0"}) {
    INFO(listen);
    SchedulerProcess scheduler({"--metrics", listen});
    REQUIRE(scheduler.await_log("url=http"));
    const std::string log = scheduler.log();
    const uint16_t port =
        static_cast<uint16_t>(std::stoul(log.substr(log.rfind(":", log.find("/metrics")) + 1)));
    for (const char* const path : kProtected) {
      INFO(path);
      for (const char* const host : {"localhost", "127.0.0.1:9801", "10.1.2.3"})
        CHECK(status_of(get_as(port, path, "", host)) == "200");
      CHECK(status_of(get_as(port, path, "", "evil.example")) == "421");
    }
  }
}

TEST_CASE("--web-host names a further host of the web page") {
  SchedulerProcess scheduler(
      {"--metrics", "127.0.0.1:0", "--web-host", "pool.example", "--web-host", "other.example"});
  const uint16_t port = page_port(scheduler);
  for (const char* const host : {"pool.example", "Other.example:443", "localhost"})
    CHECK(status_of(get_as(port, "/pool.json", "", host)) == "200");
  for (const char* const path : {"/pool.json", "/", "/metrics"})
    CHECK(status_of(get_as(port, path, "", "evil.example")) == "421");
}

TEST_CASE("the web page is read-only, and its headers forbid other sites' content") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  const uint16_t port = page_port(scheduler);
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    INFO(method);
    CHECK(status_of(http_exchange(
              port, std::string(method) + " /pool.json HTTP/1.1\r\nHost: localhost\r\n\r\n")) == "405");
  }
  const std::string page = http_get(port, "/");
  for (const char* const field : {"script-src 'self'", "style-src 'self'", "frame-ancestors 'none'",
                                  "require-trusted-types-for 'script'", "X-Content-Type-Options: nosniff",
                                  "Referrer-Policy: no-referrer", "Cache-Control: no-store",
                                  "Content-Type: text/html; charset=utf-8"}) {
    INFO(field);
    CHECK(page.find(field) != std::string::npos);
  }
  CHECK(page.find("Set-Cookie") == std::string::npos);
  CHECK(page.find("Access-Control-Allow-Origin") == std::string::npos);
  CHECK(http_get(port, "/page/main.js").find("\r\nContent-Type: text/javascript; charset=utf-8\r\n") !=
        std::string::npos);
}

TEST_CASE("the web page's history has the tenants' shares, and its state the GPUs' use") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  const uint16_t port = page_port(scheduler);
  SimulatedPoold poold(connect(scheduler.address()),
                       {.name = "n0", .gpus = 2, .rack = "r1", .reports_use = true});
  poold.send_heartbeat();
  REQUIRE(eventually([&] { return poold.is_registered(); }));
  LeaseClient holder(connect(scheduler.address()), request_call(1, 500));
  REQUIRE(holder.granted());
  // GPU 1 reports 331 thousandths; two reports that are four seconds apart are needed.
  CHECK(eventually([&] {
    poold.send_heartbeat();
    const auto node = json_in(http_get(port, "/pool.json"))["nodes"][0];
    const auto used = node["gpus"][1]["compute_milli_used"];
    return node["rack"] == "r1" && used.is_number() && used >= 300 && used <= 360;
  }));
  CHECK(eventually([&] {
    const auto history = json_in(http_get(port, "/history.json"));
    return history["tenants"] == nlohmann::json::array({"default"}) && history["points"].back()[6][0][1] > 0;
  }));
}

TEST_CASE("the web page's events have the moves of a lease, with hostile reasons made printable") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  const uint16_t port = page_port(scheduler);
  SimulatedPoolds poolds(scheduler.address(), 2, 1);
  REQUIRE(poolds.await());
  LeaseClient holder(connect(scheduler.address()), request_call(1, 1000));
  const auto granted = holder.granted();
  REQUIRE(granted);
  const std::string from = granted->servers(0).node(), to = from == "n0" ? "n1" : "n0";
  const auto admin = pool::PoolAdmin::NewStub(connect(scheduler.address()));
  const std::string id = json_in(http_get(port, "/pool.json"))["leases"][0]["id"];
  grpc::ClientContext moving, draining;
  pool::MoveRequest move;
  move.set_lease(id);
  pool::LeaseState moved;
  REQUIRE(admin->Move(&moving, move, &moved).ok());
  pool::DrainRequest drain;
  drain.set_node(from);
  drain.set_reason("<b>\xe2\x80\xaetfil\x1b[2J");
  pool::NodeState drained;
  REQUIRE(admin->Drain(&draining, drain, &drained).ok());
  nlohmann::json events;
  const auto has_event = [&](const std::string& name) {
    return std::any_of(events.begin(), events.end(), [&](const auto& one) { return one["event"] == name; });
  };
  CHECK(eventually([&] {
    events = json_in(http_get(port, "/events.json"));
    return has_event("lease_moved") && has_event("node_drained");
  }));
  for (const auto& event : events) {
    if (event["event"] == "lease_moved") {
      CHECK(event["lease"] == id);
      CHECK(event["from"] == from);
      CHECK(event["to"] == to);
      CHECK(event["at_ms"] > 1'700'000'000'000);
    }
  }
  CHECK(events.dump().find("\x1b") == std::string::npos);
  CHECK(events.dump().find("\\u001b") == std::string::npos);
  CHECK_FALSE(has_event("lease_granted"));
}
