// Gives a session another connection to its worker when its own breaks (docs/adr/0036-sessions-resume.md).
// Calls wait in the session's ResumableConnection meanwhile.
//
// One thread, from start() to the end of the process or of the connection. It also watches a connection that
// no other thread uses.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "protocol/control/hello_codec.h"
#include "protocol/transport/resume/resumable_connection.h"

namespace gpupool::client {

class Reconnector {
 public:
  struct Terms {
    transport::Endpoint server;
    transport::Options options;
    hello::Hello hello;  // as for a new session, with the session's id and the bulk connection's number
    std::function<std::string()> token;  // returns hello's present token; called in the reconnector's thread
    std::string resume_key;
    std::chrono::milliseconds timeout{0};  // from a break until the session is given up
    std::string name;                      // of the server, for messages
    unsigned server_index = 0;             // Session::index()
  };
  // `read_rest(true)` is called when the connection has ended and while it is resumed, and has another thread
  // read what arrives until read_rest(false); null if a thread reads all the time.
  Reconnector(transport::ResumableConnection& connection, std::function<void(bool)> read_rest)
      : connection_(connection), read_rest_(std::move(read_rest)) {}

  // Starts the thread, which is never joined: sessions are never destroyed once connected.
  void start(Terms terms);
  // The session is about to move to another peer: if the connection ends now, or is broken, waits for
  // switch_to().
  void expect_switch();
  // Continues with the other peer, where `next` has the carrier, and returns then. From now on breaks are
  // mended with these terms.
  void switch_to(Terms terms, std::unique_ptr<transport::ResumableConnection> next);
  // Instead of switch_to(): the session has nowhere to go on.
  void give_up(const Error& why);

 private:
  void run();
  void reconnect(const Error& why);
  // Waits up to `pause` for a switch to begin, and then for its end. True: the connection is the other
  // peer's, or over.
  bool switched(std::chrono::milliseconds pause);
  void leave_if_switched();
  // ErrorCode::refused: the server will not resume the session.
  Result<void> try_once();

  transport::ResumableConnection& connection_;
  const std::function<void(bool)> read_rest_;
  std::mutex mutex_;  // guards switching_, next_terms_ and next_
  std::condition_variable changed_;
  bool switching_ = false;
  Terms next_terms_;
  std::unique_ptr<transport::ResumableConnection> next_;
  Terms terms_;
  uint64_t attempts_ = 0;
};

}  // namespace gpupool::client
