// Tests of the web page, its JSON and its history.
#include "scheduler/web/page.h"

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace gpupool::pool;

TEST_CASE("the page is complete and loads no external resource") {
  const std::string page = page_html();
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page.ends_with("</html>\n"));
  CHECK(page.find("//cdn") == std::string::npos);
  CHECK(page.find("src=") == std::string::npos);
  CHECK(page.find("innerHTML") == std::string::npos);
}

TEST_CASE("program names are inserted as text") {
  PoolSnapshot snapshot;
  snapshot.add_leases()->set_program("</script><b>\"\n");
  const auto json = nlohmann::json::parse(page_json(snapshot, {}));
  CHECK(json["leases"][0]["program"] == "</script><b>\"\n");
  CHECK(json["history"].empty());
}

TEST_CASE("the page shows sessions that wait for their client and that were resumed") {
  PoolSnapshot snapshot;
  LeasePart& part = *snapshot.add_leases()->add_parts();
  part.set_sessions(3);
  SessionBreaks& breaks = *part.mutable_breaks();
  breaks.set_waiting(1);
  breaks.set_waiting_ms(2000);
  breaks.set_resumed(4);
  breaks.set_waited_ms(5000);
  breaks.set_resent_bytes(6000);
  const auto shown = nlohmann::json::parse(page_json(snapshot, {}))["leases"][0]["parts"][0];
  const std::string page = page_html();
  for (const auto& [name, value] : std::map<std::string, uint64_t>{{"sessions", 3},
                                                                   {"sessions_waiting", 1},
                                                                   {"waiting_ms", 2000},
                                                                   {"resumed", 4},
                                                                   {"waited_ms", 5000},
                                                                   {"resent_bytes", 6000}}) {
    CHECK(shown[name] == value);
    const bool used =
        page.find('"' + name + '"') != std::string::npos || page.find("part." + name) != std::string::npos;
    CHECK(used);
  }
}

TEST_CASE("the history has a point per ten seconds of the last hour") {
  History history;
  for (int64_t at = 0; at <= 2 * History::kKeptMs; at += 2'500)
    history.note({at, static_cast<uint64_t>(at), 1000, 3});
  REQUIRE(history.points().size() == 361);
  CHECK(history.points().front().at_ms == History::kKeptMs);
  const auto json = nlohmann::json::parse(page_json({}, history));
  CHECK(json["history"][360] == nlohmann::json({2 * History::kKeptMs, 2 * History::kKeptMs, 1000, 3}));
}
