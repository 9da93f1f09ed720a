// Steps of TLS handshakes, on a thread of their own: a handshake is the one part of a new connection that takes milliseconds of a processor,
// and poold's thread hands out turns on the GPU. One step at a time, with a lower priority than poold's other threads.
//
// Where there are more than the thread can do, the peer that waits with fewest goes first. Its steps are taken at random: a flood of one
// address would leave its other programs nothing in order of arrival, where the front door drops the oldest, and little in reverse order.
// Bounded in number by the front door's connections. poold's thread calls all of it.
#pragma once
#include <asio/io_context.hpp>
#include <asio/thread_pool.hpp>
#include <functional>
#include <list>
#include <random>
#include <string>

namespace gpupool::server {

class Handshakes {
 public:
  struct Step {
    const void* owner;  // has one step at most
    std::string peer;
    std::function<void()> work;  // on the other thread
    std::function<void()> done;  // on poold's thread, afterwards
  };

  explicit Handshakes(asio::io_context& context);
  ~Handshakes() { thread_.join(); }  // after the step that is under way
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  void post(Step step);
  // Forgets the owner's step. False: it has none that waits; one that is under way is finished.
  bool withdraw(const void* owner);

 private:
  void begin_next();
  std::list<Step>::iterator next();

  asio::io_context& context_;
  std::list<Step> waiting_;
  std::minstd_rand random_{std::random_device{}()};
  bool busy_ = false;
  asio::thread_pool thread_;
};

}  // namespace gpupool::server
