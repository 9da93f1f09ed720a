// Sessions over rdma whose connections break: what becomes of transfers and messages, and who may go on
// (docs/adr/0036-sessions-resume.md).
#include "tests/rdma/played_session.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;

TEST_CASE("a direct transfer that finds its queue pair broken breaks the connection and completes later") {
  const Fate fate = GENERATE(from_range(std::begin(kFates), std::end(kFates)));
  Line line;
  Memory memory(line, 4096);
  const auto bytes = pattern(4096, 5);
  fill(memory.worker, 5);
  {
    const Reader client_reads(*line.client), server_reads(*line.server);
    played::cut_after(1, fate);
    REQUIRE(line.direct().write(memory.transfer(0, 4096, 77)));
    CHECK(next_completion(line.direct(), milliseconds(200)).error().message == "nothing has completed");
    // Messages have not failed: nobody has sent any.
    const auto why = line.server->wait_for_break(in(kLong));
    REQUIRE(why);
    CHECK(why->code == ErrorCode::lost);
    CHECK(why->message.find("a direct transfer failed") != std::string::npos);
    CHECK(line.client->wait_for_break(in(kLong)));
    played::mend();
    REQUIRE(line.repair());
    const auto done = next_completion(line.direct());
    REQUIRE(done);
    CHECK(*done == 77);
    CHECK((memory.program == bytes));
    std::fill(memory.program.begin(), memory.program.end(), std::byte{9});
    CHECK(played::deliver_late() == 0);
    CHECK(memory.program.front() == std::byte{9});
    CHECK(next_completion(line.direct(), milliseconds(20)).error().message == "nothing has completed");
    REQUIRE(send_text(*line.client, "x"));
    REQUIRE(send_text(*line.server, "x"));
  }
}

TEST_CASE("transfers that are posted while the connection is broken wait for the next one") {
  Line line;
  Memory memory(line, 64 * 64);
  fill(memory.program, 6);
  line.client->break_carrier({ErrorCode::lost, "cut"});
  line.server->break_carrier({ErrorCode::lost, "cut"});
  for (size_t i = 0; i < DirectMemory::kMaxPendingTransfers; ++i)
    REQUIRE(line.direct().read(memory.transfer(i * 64, 64, i)));
  REQUIRE(line.repair());
  for (size_t i = 0; i < DirectMemory::kMaxPendingTransfers; ++i) {
    const auto done = next_completion(line.direct());
    REQUIRE(done);
    CHECK(*done == i);
  }
  CHECK((memory.worker == memory.program));
}

TEST_CASE("a sleeping thread that waits for a transfer sees it complete on the next connection") {
  Line line;
  Memory memory(line, 4096);
  fill(memory.worker, 8);
  played::hold();
  REQUIRE(line.direct().write(memory.transfer(0, 4096)));
  Result<uint64_t> done = uint64_t{0};
  std::thread waiter([&] { done = next_completion(line.direct()); });
  std::this_thread::sleep_for(milliseconds(50));
  played::release();
  waiter.join();
  CHECK(done.ok());
  played::cut_after(1, Fate::nothing);
  REQUIRE(line.direct().write(memory.transfer(0, 4096, 5)));
  std::thread sleeper([&] { done = next_completion(line.direct()); });
  std::this_thread::sleep_for(milliseconds(50));
  played::mend();
  REQUIRE(line.repair());
  sleeper.join();
  REQUIRE(done);
  CHECK(*done == 5);
}

TEST_CASE("a break does not wait for the peer's device") {
  Line line;
  REQUIRE(send_text(*line.client, "unread"));
  played::hold();
  for (auto* const side : {line.client.get(), line.server.get()}) {
    const auto start = Clock::now();
    side->break_carrier({ErrorCode::lost, "cut"});
    CHECK(Clock::now() - start < milliseconds(250));
  }
  played::release();
  REQUIRE(line.repair());
  CHECK(receive_text(*line.server, 6) == "unread");
}

TEST_CASE("messages that have arrived and were not taken are received once") {
  Line line;
  REQUIRE(send_text(*line.client, std::string(100'000, 'a') + "end"));
  REQUIRE(receive_text(*line.server, 1000) == std::string(1000, 'a'));
  for (int times = 0; times < 3; ++times) REQUIRE(line.repair());
  REQUIRE(send_text(*line.client, "!"));
  CHECK(receive_text(*line.server, 99'004) == std::string(99'000, 'a') + "end!");
}

TEST_CASE("if the session cannot go on with another connection transfers fail at a break") {
  Line line(false);
  Memory memory(line, 4096);
  played::cut_after(1, Fate::nothing);
  REQUIRE(line.direct().write(memory.transfer(0, 4096)));
  const auto done = next_completion(line.direct());
  REQUIRE_FALSE(done);
  CHECK(done.error().code == ErrorCode::lost);
}

TEST_CASE("transfers fail when a session that was broken ends") {
  Line line;
  Memory memory(line, 4096);
  played::hold();
  REQUIRE(line.direct().write(memory.transfer(0, 4096)));
  line.server->break_carrier({ErrorCode::lost, "cut"});
  Result<uint64_t> done = uint64_t{0};
  std::thread waiter([&] { done = next_completion(line.direct()); });
  line.server->give_up({ErrorCode::lost, "its client did not come"});
  waiter.join();
  CHECK(done.error().code == ErrorCode::closed);
  CHECK_FALSE(line.direct().write(memory.transfer(0, 4096)));
  played::release();
}

TEST_CASE("memory that is not registered ends the transfers for good") {
  Line line;
  Memory memory(line, 4096);
  auto bad = memory.transfer(0, 4096);
  bad.remote_key += 1;
  REQUIRE(line.direct().write(bad));
  const auto done = next_completion(line.direct());
  REQUIRE_FALSE(done);
  CHECK(done.error().code == ErrorCode::malformed);
  CHECK(done.error().message == "a direct transfer used memory that is not registered");
}

TEST_CASE("a client that returns with other keys is refused and the true one is not") {
  Line line;
  Memory memory(line, 4096);
  line.client->break_carrier({ErrorCode::lost, "cut"});
  line.server->break_carrier({ErrorCode::lost, "cut"});
  REQUIRE(line.direct().read(memory.transfer(0, 4096)));
  Options server_options = rdma_options();
  server_options.session = line.server->session_resources();
  const Ends other = connect_ends(rdma_options(), server_options);  // a protection domain of its own
  REQUIRE_FALSE(other.server_result);
  REQUIRE_FALSE(other.client_result);
  INFO(other.reasons());
  for (const auto* const result : {&other.client_result, &other.server_result})
    CHECK(result->error().message.find("uses another RDMA device, or other keys") != std::string::npos);
  CHECK_FALSE(line.server->over());
  REQUIRE(line.repair());
  CHECK(next_completion(line.direct()));
}

TEST_CASE("a port without link delays the return and never leads to tcp") {
  Line line;
  Options client_options = rdma_options(), server_options = rdma_options();
  client_options.rdma.use = server_options.rdma.use = RdmaOptions::Use::if_possible;
  client_options.session = line.client->session_resources();
  server_options.session = line.server->session_resources();
  line.client->break_carrier({ErrorCode::lost, "cut"});
  line.server->break_carrier({ErrorCode::lost, "cut"});
  played::set_port(false);
  const Ends down = connect_ends(client_options, server_options);
  played::set_port(true);
  for (const auto* const result : {&down.client_result, &down.server_result}) {
    REQUIRE_FALSE(*result);
    CHECK(result->error().code == ErrorCode::unavailable);
    CHECK(result->error().message.find("port 1 is down") != std::string::npos);
  }
  REQUIRE(line.repair());
  REQUIRE(send_text(*line.client, "here"));
  CHECK(receive_text(*line.server, 4) == "here");
}

TEST_CASE("the loss of the device ends the session and says so") {
  Line line;
  Memory memory(line, 4096);
  {
    const Reader client_reads(*line.client), server_reads(*line.server);
    played::lose_device();
    CHECK(comes_true([&] { return line.client->over() && line.server->over(); }));
    played::bring_back_device();
    line.client->close();
    line.server->close();
  }
  std::byte byte{};
  for (auto* const side : {line.client.get(), line.server.get()}) {
    const auto received = side->receive_some({&byte, 1});
    REQUIRE_FALSE(received);
    INFO(received.error().message);
    CHECK(received.error().message.find("the RDMA device failed") != std::string::npos);
  }
  CHECK_FALSE(line.direct().write(memory.transfer(0, 4096)));
}

TEST_CASE("a client that noticed the loss of its device only when it returns gives up") {
  Line line;
  line.client->break_carrier({ErrorCode::lost, "cut"});
  line.server->break_carrier({ErrorCode::lost, "cut"});
  played::lose_device();
  played::bring_back_device();
  Options client_options = rdma_options(), server_options = rdma_options();
  client_options.session = line.client->session_resources();
  server_options.session = line.server->session_resources();
  const Ends ends = connect_ends(client_options, server_options);
  REQUIRE_FALSE(ends.client_result);
  CHECK(ends.client_result.error().code == ErrorCode::refused);
  CHECK(ends.client_result.error().message.find("the RDMA device failed") != std::string::npos);
}

TEST_CASE("after a session has ended no connection that is being set up gives the server access") {
  Line line;
  Memory memory(line, 4096);
  fill(memory.worker, 8);
  line.client->break_carrier({ErrorCode::lost, "cut"});
  line.server->break_carrier({ErrorCode::lost, "cut"});
  REQUIRE(line.direct().write(memory.transfer(0, 4096)));
  Options client_options = rdma_options(), server_options = rdma_options();
  client_options.session = line.client->session_resources();
  server_options.session = line.server->session_resources();
  played::hold();  // both sides wait for the test message, their queue pairs are connected
  std::thread ender([&] {
    CHECK(comes_true([] { return played::queue_pairs() == 6; }));  // 2 of the broken streams
    std::this_thread::sleep_for(milliseconds(100));
    line.client->give_up({ErrorCode::lost, "the program has given up"});
    played::release();
  });
  const Ends ends = connect_ends(client_options, server_options);
  ender.join();
  CHECK_FALSE(ends.client_result);
  (void)next_completion(line.direct(), milliseconds(100));
  CHECK((memory.program == std::vector<std::byte>(4096)));
}
