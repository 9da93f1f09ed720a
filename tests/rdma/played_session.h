// A session over rdma within one process, on the played card (played_verbs.h), and how its connection is
// replaced.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/direct_memory.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "tests/protocol/transport/contract.h"
#include "tests/rdma/played_verbs.h"

namespace gpupool::transport::contract {

namespace played = testing::played;
using played::Fate;

inline constexpr Fate kFates[] = {Fate::nothing, Fate::half, Fate::executed, Fate::late};

inline Options rdma_options() {
  Options options;
  options.rdma.use = RdmaOptions::Use::always;
  options.rdma.setup = RdmaOptions::Setup::addresses;
  return options;
}

struct Ends {
  std::unique_ptr<Connection> client, server;
  Result<void> client_result, server_result;
  std::string reasons() const {
    return (client_result ? "" : client_result.error().message) + "; " +
           (server_result ? "" : server_result.error().message);
  }
  bool good() const { return client_result && server_result; }
};

inline Ends connect_ends(const Options& client_options, const Options& server_options) {
  auto listener = listen({"rdma", "127.0.0.1", 0}, server_options);
  auto client = connect((*listener)->endpoint(), client_options);
  auto server = (*listener)->accept(in(kLong));
  Ends ends{std::move(*client), std::move(*server), {}, {}};
  std::thread other([&] {
    ends.server_result = ends.server->upgrade(Side::server, in(kLong));
    if (!ends.server_result) ends.server.reset();  // the peer sees the end
  });
  ends.client_result = ends.client->upgrade(Side::client, in(kLong));
  if (!ends.client_result) ends.client.reset();
  other.join();
  return ends;
}

// Both sides of a session over rdma.
struct Line {
  explicit Line(bool starts = true) {
    Ends ends = connect_ends(rdma_options(), rdma_options());
    REQUIRE(ends.good());
    client = std::make_unique<ResumableConnection>(std::move(ends.client));
    server = std::make_unique<ResumableConnection>(std::move(ends.server));
    if (!starts) return;
    client->start();
    server->start();
  }
  ~Line() {
    played::release();
    played::mend();
    client->close();
    server->close();
  }
  // What Reconnector and Resumption do: the client first.
  Result<void> repair() {
    Options client_options = rdma_options(), server_options = rdma_options();
    client_options.session = client->session_resources();
    server_options.session = server->session_resources();
    client->break_carrier({ErrorCode::lost, "test"});
    const uint64_t at_client = client->retire_carrier();
    server->break_carrier({ErrorCode::lost, "test"});
    const uint64_t at_server = server->retire_carrier();
    Ends ends = connect_ends(client_options, server_options);
    if (!ends.good()) return Error{ErrorCode::lost, ends.reasons()};
    Result<void> there;
    std::thread other([&] { there = server->resume(std::move(ends.server), at_client); });
    const auto here = client->resume(std::move(ends.client), at_server);
    other.join();
    return here ? there : here;
  }
  DirectMemory& direct() { return *server->direct_memory(); }

  std::unique_ptr<ResumableConnection> client, server;
};

// Memory of both sides, registered.
struct Memory {
  Memory(Line& line, size_t bytes) : line(line), program(bytes), worker(bytes) {
    const auto far = line.client->direct_memory()->add(program.data(), bytes, DirectMemory::Access::remote);
    const auto near = line.direct().add(worker.data(), bytes, DirectMemory::Access::local);
    REQUIRE(far);
    REQUIRE(near);
    at_client = *far;
    at_server = *near;
  }
  ~Memory() {
    line.direct().remove(at_server);
    line.client->direct_memory()->remove(at_client);
  }
  DirectMemory::Transfer transfer(size_t offset, size_t bytes, uint64_t cookie = 1) {
    return {.local = worker.data() + offset,
            .local_key = at_server.local_key,
            .remote_key = at_client.remote_key,
            .remote = reinterpret_cast<uintptr_t>(program.data() + offset),
            .bytes = static_cast<uint32_t>(bytes),
            .cookie = cookie};
  }
  Line& line;
  std::vector<std::byte> program, worker;
  DirectMemory::Region at_client, at_server;
};

// Writes a pattern to memory that stays where it is, because it is registered.
inline void fill(std::span<std::byte> memory, uint32_t seed) {
  const auto bytes = pattern(memory.size(), seed);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
}

// Waits until a transfer completes, and returns its cookie.
inline Result<uint64_t> next_completion(DirectMemory& memory, milliseconds longest = kLong) {
  const Deadline deadline = in(longest);
  for (uint64_t cookie = 0; Clock::now() < *deadline;) {
    const auto done = memory.completed({&cookie, 1});
    if (!done) return done.error();
    if (*done != 0) return cookie;
    if (const auto waited = memory.wait(deadline); !waited) return waited.error();
  }
  return Error{ErrorCode::unavailable, "nothing has completed"};
}

template <class Condition>
bool comes_true(Condition condition) {
  for (const auto deadline = in(kLong); Clock::now() < *deadline;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

// A thread that reads a connection, as each side has one.
class Reader {
 public:
  explicit Reader(Connection& connection)
      : thread_([this, &connection] {
          std::byte byte{};
          result = receive_exact(connection, {&byte, 1}, std::nullopt);
        }) {}
  ~Reader() { thread_.join(); }
  Result<void> result;

 private:
  std::thread thread_;
};

}  // namespace gpupool::transport::contract
