// One connection that has not introduced itself yet, or that is being told why it is refused.
//
// Lives in FrontDoor's list, and in the handlers of its pending operations; drop() ends both. poold's one
// thread.
#pragma once
#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <string>

#include "protocol/wire/frame.h"
#include "server/front_door.h"

namespace gpupool::server {

class HalfOpen : public std::enable_shared_from_this<HalfOpen> {
 public:
  HalfOpen(FrontDoor& door, int descriptor, std::string transport, std::string address);

  void read_hello(std::chrono::milliseconds timeout);
  void refuse(const Refusal& refusal);
  void drop();

  const std::string& address() const { return address_; }

  std::list<std::shared_ptr<HalfOpen>>::iterator place;  // in the door's list

 private:
  void start_timer(std::chrono::milliseconds timeout, const char* reason);
  void read_body();
  void introduce();
  void linger();
  void reject(const std::string& why);  // without an answer

  FrontDoor& door_;
  asio::posix::stream_descriptor stream_;
  asio::steady_timer timer_;
  const std::string transport_;
  const std::string address_;
  wire::Preamble preamble_;
  std::string bytes_;              // Hello, then the refusal
  std::array<char, 4096> sink_{};  // what a refused client still sends
  size_t discarded_ = 0;
};

}  // namespace gpupool::server
