// Tests of the web page's files, its JSON and its events.
#include "scheduler/web/page.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "scheduler/web/assets.h"
#include "scheduler/web/events.h"
#include "tests/support/catch.h"

using namespace gpupool::pool;

namespace {

std::string body_of(const std::string& path) {
  const Asset* const asset = find_asset(path);
  REQUIRE(asset);
  return std::string(asset->body);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// The words between `begin` and `end`, of all occurrences.
std::set<std::string> between(std::string_view text, std::string_view begin, char end) {
  std::set<std::string> found;
  for (size_t at = text.find(begin); at != text.npos; at = text.find(begin, at)) {
    at += begin.size();
    found.emplace(text.substr(at, text.find(end, at) - at));
  }
  return found;
}

}  // namespace

TEST_CASE("the page's files are complete") {
  CHECK(body_of("/").starts_with("<!doctype html>"));
  CHECK(body_of("/").ends_with("</html>\n"));
  CHECK_FALSE(find_asset("/page/index.html"));
  CHECK_FALSE(find_asset("/page/"));
  CHECK_FALSE(find_asset("/page/../page.cc"));
  for (const Asset& asset : assets()) {
    INFO(asset.path);
    CHECK_FALSE(asset.body.empty());
    CHECK(asset.body.back() == '\n');
    CHECK(find_asset(asset.path) == &asset);
  }
}

TEST_CASE("the page names only files that exist and no other site") {
  const std::string index = body_of("/");
  for (const char* const attribute : {"src=\"", "href=\"page"}) {
    for (std::string path : between(index, attribute, '"')) {
      if (attribute[0] == 'h') path = "page" + path;
      INFO(path);
      CHECK(find_asset("/" + path));
    }
  }
  for (const Asset& asset : assets()) {
    INFO(asset.path);
    for (const std::string& name : between(asset.body, " from \"./", '"')) {
      INFO(name);
      CHECK(find_asset("/page/" + name));
    }
    // The namespace of SVG is a name, and is not loaded.
    for (const std::string& url : between(asset.body, "://", '"')) CHECK(url == "www.w3.org/2000/svg");
    CHECK_FALSE(contains(asset.body, "@import"));
    CHECK_FALSE(contains(asset.body, "url("));
  }
}

TEST_CASE("no file turns text into markup or code") {
  for (const Asset& asset : assets()) {
    INFO(asset.path);
    for (const char* const word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                                   "new Function", "DOMParser", "createContextualFragment", "setHTMLUnsafe",
                                   "javascript:", "onclick=", "<style", " style="}) {
      INFO(word);
      CHECK_FALSE(contains(asset.body, word));
    }
  }
  CHECK(between(body_of("/"), "<script", '>') ==
        std::set<std::string>{" type=\"module\" src=\"page/main.js\""});
}

TEST_CASE("the token is in no URL and no cookie") {
  const std::string client = body_of("/page/client.js");
  CHECK(contains(client, "sessionStorage"));
  for (const Asset& asset : assets()) {
    INFO(asset.path);
    CHECK_FALSE(contains(asset.body, "cookie ="));
    CHECK_FALSE(contains(asset.body, ".cookie"));
    CHECK_FALSE(contains(asset.body, "?token"));
  }
}

TEST_CASE("hostile texts of the pool stay texts in its JSON") {
  PoolSnapshot snapshot;
  LeaseState& lease = *snapshot.add_leases();
  lease.set_program("</script><b>\"\n");
  lease.add_labels("\xe2\x80\xae'\"&<img src=x onerror=alert(1)>");
  lease.add_labels(std::string(4096, 'x'));
  snapshot.add_nodes()->set_name("a/../b?c#d%00\xff");  // \xff: not UTF-8
  const auto json = nlohmann::json::parse(page_json(snapshot, {}));
  CHECK(json["leases"][0]["program"] == "</script><b>\"\n");
  CHECK(json["leases"][0]["labels"][0] == lease.labels(0));
  CHECK(json["leases"][0]["labels"][1] == lease.labels(1));
  CHECK(json["nodes"][0]["name"] == "a/../b?c#d%00\xef\xbf\xbd");
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
  const std::string words = body_of("/page/words.js");
  for (const auto& [name, value] : std::map<std::string, uint64_t>{{"sessions", 3},
                                                                   {"sessions_waiting", 1},
                                                                   {"waiting_ms", 2000},
                                                                   {"resumed", 4},
                                                                   {"waited_ms", 5000},
                                                                   {"resent_bytes", 6000}}) {
    INFO(name);
    CHECK(shown[name] == value);
    CHECK(contains(words, '"' + name + '"'));
  }
}

TEST_CASE("events keep moves and suspensions, and leave out grants and ends") {
  Events events;
  events.note(1, "lease_granted", {{"lease", "a1"}});
  events.note(2, "lease_moved", {{"lease", "a1"}, {"from", "n1"}, {"to", "n2"}, {"reason", "<b>"}});
  events.note(3, "lease_ending", {{"lease", "a1"}});
  events.note(4, "node_lost", {{"node", "n1"}, {"event", "pretended"}});
  events.note(5, "policy_set", {{"placement", "spread"}});
  const auto json = nlohmann::json::parse(events.json().dump());
  REQUIRE(json.size() == 2);
  CHECK(json[0] == nlohmann::json{{"at_ms", 2},
                                  {"event", "lease_moved"},
                                  {"lease", "a1"},
                                  {"from", "n1"},
                                  {"to", "n2"},
                                  {"reason", "<b>"}});
  CHECK(json[1]["event"] == "node_lost");
}

TEST_CASE("events are bounded, and nodes' do not displace leases'") {
  Events events;
  events.note(0, "lease_moved", {{"lease", "first"}, {"reason", std::string(100'000, 'x')}});
  for (size_t i = 1; i <= 3 * Events::kMost; ++i)
    events.note(static_cast<int64_t>(i), "node_lost", {{"node", "n"}});
  const auto json = events.json();
  REQUIRE(json.size() == Events::kMost + 1);
  CHECK(json[0]["lease"] == "first");
  CHECK(json[0]["reason"].get<std::string>().size() == Events::kLongestText);
  CHECK(json[1]["at_ms"] == 2 * Events::kMost + 1);
}
