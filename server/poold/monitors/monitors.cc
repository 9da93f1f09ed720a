#include "server/poold/monitors/monitors.h"

#include <algorithm>
#include <asio/steady_timer.hpp>
#include <iterator>
#include <map>
#include <vector>

#include "protocol/wire/frame.h"
#include "server/sockets/byte_stream.h"

namespace gpupool::server {

// One client's connection. Monitors' list and the handlers of pending operations own it until drop().
class MonitorLink : public std::enable_shared_from_this<MonitorLink> {
 public:
  MonitorLink(Monitors& monitors, Client client)
      : monitors_(monitors),
        stream_(monitors.context_, std::exchange(client.descriptor, -1), client.tls),
        timer_(monitors.context_),
        client_(std::move(client)) {}

  const std::string& tenant() const { return client_.tenant; }
  const Client& client() const { return client_; }

  void welcome(const control::HelloReply& reply) {
    answer(reply, [](MonitorLink& self) { self.await_question(); });
  }

  void drop() {
    const auto self = shared_from_this();
    timer_.cancel();
    stream_.close();
    if (place != monitors_.links_.end()) {
      monitors_.links_.erase(place);
      place = monitors_.links_.end();
    }
  }

  std::list<std::shared_ptr<MonitorLink>>::iterator place;  // in the list

 private:
  void answer(const google::protobuf::MessageLite& message, void (*then)(MonitorLink&)) {
    const std::string body = message.SerializeAsString();
    const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
    answer_.assign(reinterpret_cast<const char*>(&preamble), sizeof preamble);
    answer_ += body;
    drop_after(monitors_.limits_.patience);
    stream_.write(std::as_bytes(std::span(answer_)),
                  [self = shared_from_this(), then](bool written) { written ? then(*self) : self->drop(); });
  }

  void drop_after(std::chrono::milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->drop();
    });
  }

  // Delays reading the next question, so that a flood fills the client's own socket.
  void pause() {
    timer_.expires_after(monitors_.limits_.between_answers);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->await_question();
    });
  }

  void await_question() {
    drop_after(monitors_.limits_.silence);
    stream_.read(std::as_writable_bytes(std::span(&question_, 1)),
                 [self = shared_from_this()](bool asked) { asked ? self->look() : self->drop(); });
  }

  void look() {
    if (question_.magic != wire::kMagic || question_.length != 0) return drop();
    const auto state = monitors_.source_.look(client_);
    if (!state) return drop();
    monitors_.links_.splice(monitors_.links_.end(), monitors_.links_, place);
    answer(*state, [](MonitorLink& self) { self.pause(); });
  }

  Monitors& monitors_;
  ByteStream stream_;
  asio::steady_timer timer_;
  const Client client_;
  wire::Preamble question_;
  std::string answer_;
};

Monitors::Monitors(asio::io_context& context, const Limits& limits, Source source)
    : context_(context), limits_(limits), source_(std::move(source)) {}

Monitors::~Monitors() {
  close();
}

void Monitors::drop_if(const std::function<bool(const Client&)>& clients) {
  std::vector<std::shared_ptr<MonitorLink>> dropped;
  std::copy_if(links_.begin(), links_.end(), std::back_inserter(dropped),
               [&](const auto& link) { return clients(link->client()); });
  for (const auto& link : dropped) link->drop();
}

void Monitors::close() {
  while (!links_.empty()) links_.front()->drop();
}

bool Monitors::admit(Client& client) {
  const auto reply = source_.describe(client);
  if (!reply) return false;
  make_room(client.tenant);
  const auto link = std::make_shared<MonitorLink>(*this, std::move(client));
  link->place = links_.insert(links_.end(), link);
  link->welcome(*reply);
  return true;
}

// Drops a connection if there are too many: the tenant's own that has been silent for longest, or, if all
// tenants together have too many, one of the tenant that has most.
void Monitors::make_room(const std::string& tenant) {
  std::map<std::string, size_t> counts;
  for (const auto& link : links_) ++counts[link->tenant()];
  std::string whose = tenant;
  if (counts[tenant] < limits_.of_tenant) {
    if (links_.size() < limits_.all) return;
    whose = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
              return a.second < b.second;
            })->first;
  }
  (*std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
    return link->tenant() == whose;
  }))->drop();
}

}  // namespace gpupool::server
