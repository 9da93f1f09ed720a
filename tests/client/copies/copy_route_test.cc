// Tests the choice of a copy's path: each path, and both sides of each border.
#include "client/copies/copy_route.h"

#include <ostream>

#include "tests/support/catch.h"

namespace gpupool::client {

static bool operator==(const CopyRoute& a, const CopyRoute& b) {
  return a.path == b.path && a.contexts_first == b.contexts_first && a.stream_first == b.stream_first &&
         a.side_stream == b.side_stream && a.source_first == b.source_first && a.order == b.order &&
         a.source == b.source && a.wait == b.wait && a.fetch_changes == b.fetch_changes && a.join == b.join &&
         a.legacy_streams == b.legacy_streams;
}
static std::ostream& operator<<(std::ostream& out, const CopyRoute& route) {
  return out << "path " << int(route.path) << " contexts_first " << route.contexts_first << " stream_first "
             << route.stream_first << " side_stream " << route.side_stream << " source_first "
             << route.source_first << " order " << int(route.order) << " source " << int(route.source)
             << " wait " << route.wait << " fetch_changes " << route.fetch_changes << " join " << route.join
             << " legacy_streams " << route.legacy_streams;
}
static std::ostream& operator<<(std::ostream& out, DataPath path) {
  return out << int(path);
}

namespace {

using Path = CopyRoute::Path;
constexpr auto kIn = CopyDirection::in_host, kUp = CopyDirection::to_device,
               kDown = CopyDirection::from_device, kOn = CopyDirection::on_devices;
constexpr uint64_t kSmall = 16 * 1024, kLarge = 16 * 1024 + 1;
constexpr auto kBeforeAll = CopyOrder::before_all, kPasses = CopyOrder::passes_others;
constexpr auto kKept = Source::kept;

struct RouteCase {
  const char* what;
  CopyFacts facts;
  CopyRoute route;
};

template <size_t N>
void check(const RouteCase (&cases)[N]) {
  for (const RouteCase& one : cases) {
    INFO(one.what);
    CHECK(choose_route(one.facts) == one.route);
  }
}

TEST_CASE("records or refuses copies during a capture, whatever else is known") {
  check({
      {"asynchronous", {.direction = kUp, .capturing = true, .pinned = true}, {.path = Path::recorded}},
      {"synchronous", {.direction = kUp, .synchronous = true, .capturing = true}, {.path = Path::refused}},
      {"between servers, asynchronous",
       {.direction = kOn, .capturing = true, .between_servers = true},
       {.path = Path::recorded}},
      {"between servers, synchronous",
       {.direction = kOn, .synchronous = true, .capturing = true, .between_servers = true},
       {.path = Path::refused}},
      {"in host memory", {.direction = kIn, .capturing = true}, {.path = Path::recorded}},
  });
}

TEST_CASE("waits for a copy between servers if it is synchronous or its host memory pageable") {
  check({
      {"asynchronous, pinned",
       {.direction = kUp, .between_servers = true, .pinned = true, .mapped = true},
       {.path = Path::between_servers}},
      {"asynchronous, pageable",
       {.direction = kDown, .between_servers = true},
       {.path = Path::between_servers, .wait = true}},
      {"synchronous, pinned",
       {.direction = kOn, .synchronous = true, .between_servers = true, .pinned = true},
       {.path = Path::between_servers, .wait = true}},
      {"in host memory, in a stream of a server that has one end",
       {.direction = kIn, .between_servers = true, .pinned = true},
       {.path = Path::between_servers}},
  });
}

TEST_CASE("copies within host memory once the stream is done") {
  const CopyRoute route{.path = Path::in_host, .source_first = true, .wait = true};
  check({
      {"synchronous", {.direction = kIn, .synchronous = true}, route},
      {"asynchronous, pinned", {.direction = kIn, .pinned = true, .mapped = true}, route},
  });
}

TEST_CASE("waits on one server only for synchronous copies between devices or of mirrored memory") {
  check({
      {"asynchronous", {.direction = kOn}, {.path = Path::on_server}},
      {"synchronous", {.direction = kOn, .synchronous = true}, {.path = Path::on_server}},
      {"asynchronous, two devices, mirrored",
       {.direction = kOn, .two_devices = true, .reads_mirror = true},
       {.path = Path::on_server}},
      {"synchronous, two devices",
       {.direction = kOn, .synchronous = true, .two_devices = true},
       {.path = Path::on_server, .contexts_first = true, .wait = true}},
      {"synchronous, mirrored source",
       {.direction = kOn, .synchronous = true, .reads_mirror = true},
       {.path = Path::on_server, .wait = true}},
  });
}

TEST_CASE("orders the legacy streams of two devices only for an asynchronous copy between them in one") {
  const CopyFacts facts{.direction = kOn, .two_devices = true, .legacy_stream = true, .pinned = true};
  CopyFacts other_stream = facts, one_device = facts, synchronous = facts, to_host = facts, remote = facts;
  other_stream.legacy_stream = false;
  one_device.two_devices = false;
  synchronous.synchronous = true;
  to_host.direction = kDown;
  remote.between_servers = true;
  CopyFacts remote_synchronous = remote, remote_to_host = remote;
  remote_synchronous.synchronous = true;
  remote_to_host.direction = kDown;
  check({
      {"on one server", facts, {.path = Path::on_server, .legacy_streams = true}},
      {"in another stream", other_stream, {.path = Path::on_server}},
      {"on one device", one_device, {.path = Path::on_server}},
      {"synchronous", synchronous, {.path = Path::on_server, .contexts_first = true, .wait = true}},
      {"to host memory", to_host, {.path = Path::received}},
      {"between servers", remote, {.path = Path::between_servers, .legacy_streams = true}},
      {"between servers, synchronous", remote_synchronous, {.path = Path::between_servers, .wait = true}},
      {"between servers, to host memory", remote_to_host, {.path = Path::between_servers}},
  });
}

TEST_CASE("sends pageable memory to the device before the call returns") {
  check({
      {"asynchronous", {.direction = kUp, .bytes = kLarge}, {.path = Path::sent}},
      {"synchronous: later work of all streams waits",
       {.direction = kUp, .bytes = kLarge, .synchronous = true},
       {.path = Path::sent, .order = kBeforeAll}},
      {"synchronous, must be complete",
       {.direction = kUp, .bytes = kLarge, .synchronous = true, .must_complete = true},
       {.path = Path::sent, .wait = true}},
      {"must_complete concerns synchronous copies only",
       {.direction = kUp, .bytes = kLarge, .must_complete = true},
       {.path = Path::sent}},
      {"asynchronous, source pending: pageable memory is read now",
       {.direction = kUp, .source_pending = true},
       {.path = Path::sent}},
      {"synchronous, source pending",
       {.direction = kUp, .bytes = kLarge, .synchronous = true, .source_pending = true},
       {.path = Path::sent, .source_first = true, .order = kBeforeAll}},
      {"synchronous, source written, must be complete",
       {.direction = kUp, .bytes = kSmall, .synchronous = true, .written = true, .must_complete = true},
       {.path = Path::sent, .source_first = true, .wait = true}},
  });
}

TEST_CASE("keeps pinned memory until the stream has passed the copy") {
  check({
      {"nothing pending",
       {.direction = kUp, .bytes = kSmall, .pinned = true},
       {.path = Path::sent, .source = kKept}},
      {"an earlier copy writes the allocation",
       {.direction = kUp, .pinned = true, .written = true},
       {.path = Path::sent_late, .order = kPasses, .source = kKept}},
      {"other work writes the source",
       {.direction = kUp, .pinned = true, .source_pending = true},
       {.path = Path::sent_late, .order = kPasses, .source = kKept}},
  });
}

TEST_CASE("copies memory that the server maps in place, but defers small synchronous copies") {
  const CopyRoute in_place{.path = Path::mapped}, waits{.path = Path::mapped, .wait = true};
  const CopyFacts up{.direction = kUp, .bytes = kSmall, .synchronous = true, .mapped = true};
  CopyFacts large = up, written = up, completes = up, pending = up;
  large.bytes = kLarge;
  written.written = true;
  completes.must_complete = true;
  pending.source_pending = true;
  check({
      {"to the device, asynchronous", {.direction = kUp, .pinned = true, .mapped = true}, in_place},
      {"to the device, asynchronous, pending",
       {.direction = kUp, .pinned = true, .mapped = true, .written = true, .source_pending = true},
       in_place},
      {"from the device, asynchronous", {.direction = kDown, .pinned = true, .mapped = true}, in_place},
      {"from the device, synchronous, small",
       {.direction = kDown, .bytes = kSmall, .synchronous = true, .mapped = true},
       waits},
      {"synchronous, small", up, {.path = Path::sent, .order = kBeforeAll}},
      {"synchronous, large", large, waits},
      {"synchronous, small, written", written, waits},
      {"synchronous, small, must be complete", completes, waits},
      {"synchronous, small, pending",
       pending,
       {.path = Path::sent, .source_first = true, .order = kBeforeAll}},
  });
}

TEST_CASE("waits for data from the device if the copy is synchronous or the memory pageable") {
  check({
      {"pinned", {.direction = kDown, .pinned = true}, {.path = Path::received}},
      {"pageable", {.direction = kDown}, {.path = Path::received, .wait = true}},
      {"synchronous",
       {.direction = kDown, .synchronous = true},
       {.path = Path::received, .wait = true, .fetch_changes = true}},
      {"what concerns sources only",
       {.direction = kDown, .pinned = true, .written = true, .source_pending = true, .must_complete = true},
       {.path = Path::received}},
  });
}

TEST_CASE("uses a stream of the memory's device if the stream is on another one") {
  check({
      {"to the device, pinned",
       {.direction = kUp, .bytes = kLarge, .other_device = true, .pinned = true},
       {.path = Path::sent, .side_stream = true, .source = kKept, .join = true}},
      {"to the device, pinned, pending",
       {.direction = kUp, .other_device = true, .pinned = true, .source_pending = true},
       {.path = Path::sent_late, .side_stream = true, .order = kPasses, .source = kKept, .join = true}},
      {"to the device, synchronous",
       {.direction = kUp, .synchronous = true, .other_device = true},
       {.path = Path::sent, .side_stream = true, .order = kBeforeAll}},
      {"from the device, pinned",
       {.direction = kDown, .other_device = true, .pinned = true},
       {.path = Path::received, .side_stream = true, .join = true}},
      {"from the device, synchronous",
       {.direction = kDown, .synchronous = true, .other_device = true},
       {.path = Path::received, .side_stream = true, .wait = true, .fetch_changes = true}},
      {"on devices: the server orders the streams",
       {.direction = kOn, .other_device = true},
       {.path = Path::on_server}},
  });
}

TEST_CASE("copies mapped memory of another device as if synchronous") {
  check({
      {"to the device",
       {.direction = kUp, .bytes = kLarge, .other_device = true, .pinned = true, .mapped = true},
       {.path = Path::sent, .stream_first = true, .side_stream = true, .order = kBeforeAll, .join = true}},
      {"to the device, source pending, must be complete",
       {.direction = kUp,
        .other_device = true,
        .pinned = true,
        .mapped = true,
        .source_pending = true,
        .must_complete = true},
       {.path = Path::sent,
        .stream_first = true,
        .side_stream = true,
        .source_first = true,
        .wait = true,
        .join = true}},
      {"from the device",
       {.direction = kDown, .other_device = true, .pinned = true, .mapped = true},
       {.path = Path::received,
        .stream_first = true,
        .side_stream = true,
        .wait = true,
        .fetch_changes = true,
        .join = true}},
      {"from the device, synchronous",
       {.direction = kDown, .synchronous = true, .other_device = true, .mapped = true},
       {.path = Path::received,
        .stream_first = true,
        .side_stream = true,
        .wait = true,
        .fetch_changes = true}},
  });
}

TEST_CASE("sends at most 16 KiB with the commands") {
  CHECK(travels_inline(0));
  CHECK(travels_inline(16 * 1024));
  CHECK_FALSE(travels_inline(16 * 1024 + 1));
}

struct DataCase {
  const char* what;
  DataFacts facts;
  DataPath path;
};

TEST_CASE("chooses RDMA, bulk connections or the command connection by size and means") {
  constexpr uint64_t kFrom = 256 * 1024, kWaits = 1024 * 1024 + 1;
  constexpr DataCase cases[] = {
      {"direct", {.bytes = kFrom, .packed = true, .direct = true, .bulk = true}, DataPath::direct},
      {"direct, waits, passes others",
       {.bytes = kFrom, .waits = true, .passes_others = true, .packed = true, .direct = true},
       DataPath::direct},
      {"too small", {.bytes = kFrom - 1, .packed = true, .direct = true, .bulk = true}, DataPath::commands},
      {"gaps between rows", {.bytes = kFrom, .direct = true, .bulk = true}, DataPath::bulk},
      {"gaps, no bulk connections", {.bytes = kFrom, .direct = true}, DataPath::commands},
      {"no RDMA", {.bytes = kFrom, .packed = true, .bulk = true}, DataPath::bulk},
      {"below the bulk size", {.bytes = kFrom - 1, .bulk = true}, DataPath::commands},
      {"waits", {.bytes = kWaits, .waits = true, .bulk = true}, DataPath::bulk},
      {"waits, below", {.bytes = kWaits - 1, .waits = true, .bulk = true}, DataPath::commands},
      {"passes others", {.bytes = kWaits, .passes_others = true, .bulk = true}, DataPath::commands},
      {"no bulk connections", {.bytes = kWaits, .packed = true}, DataPath::commands},
  };
  for (const DataCase& one : cases) {
    INFO(one.what);
    CHECK(choose_data_path(one.facts) == one.path);
  }
}

}  // namespace
}  // namespace gpupool::client
