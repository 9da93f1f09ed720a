// Runs the steps of TLS handshakes, and of reading hellos over TLS, on a thread of their own, one at a time
// and at a lower priority. A step takes milliseconds of CPU time, too long for poold's thread, which
// schedules turns on the GPUs. Used by Acceptor.
//
// The peer with the fewest waiting steps goes first, and one of its steps is chosen at random. With a
// first-come order, a flood from one address would starve other programs at that address, because Acceptor
// drops the oldest connections; last-come-first-served would serve them little better. Acceptor's limit on
// connections bounds the queue. All functions are called on poold's thread.
#pragma once
#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <functional>
#include <list>
#include <random>
#include <string>

namespace gpupool::server {

class TlsHandshakeQueue {
 public:
  struct Step {
    const void* owner;  // has at most one step
    std::string peer;
    std::function<void()> work;  // runs on the handshake thread
    std::function<void()> done;  // runs on poold's thread after `work`
  };

  explicit TlsHandshakeQueue(asio::io_context& context);
  ~TlsHandshakeQueue() { thread_.join(); }  // waits for the running step
  TlsHandshakeQueue(const TlsHandshakeQueue&) = delete;
  TlsHandshakeQueue& operator=(const TlsHandshakeQueue&) = delete;

  void post(Step step);
  // Removes the owner's waiting step. Returns false if none is waiting; a running step finishes.
  bool cancel(const void* owner);

 private:
  void start_next();
  std::list<Step>::iterator next();

  asio::io_context& context_;
  std::list<Step> waiting_;
  std::minstd_rand random_{std::random_device{}()};
  bool busy_ = false;
  asio::thread_pool thread_;
};

}  // namespace gpupool::server
