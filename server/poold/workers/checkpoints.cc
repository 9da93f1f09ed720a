#include "server/poold/workers/checkpoints.h"

#include <algorithm>
#include <array>
#include <asio/steady_timer.hpp>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "common/version.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/frame.h"
#include "server/sockets/byte_stream.h"

namespace gpupool::server {

// One client's connection. Checkpoints' list and the handlers of pending operations own it until drop().
// Reads the next question when the answer has been written. While a question is open, waits for the socket to
// become readable, so that a disconnect is noticed at once.
class CheckpointLink : public std::enable_shared_from_this<CheckpointLink> {
 public:
  CheckpointLink(Checkpoints& owner, Client client)
      : owner_(owner),
        stream_(owner.context_, std::exchange(client.descriptor, -1), client.tls),
        timer_(owner.context_),
        time_out_(owner.context_),
        client_(std::move(client)) {}

  const std::string& tenant() const { return client_.tenant; }
  const Client& client() const { return client_; }

  void welcome() {
    control::HelloReply reply;
    reply.set_protocol_version(wire::kProtocolVersion);
    reply.set_server_version(kVersion);
    answer(reply.SerializeAsString());
  }

  void drop() {
    const auto self = shared_from_this();
    timer_.cancel();
    time_out_.cancel();
    waits_ = false;
    stream_.close();
    owner_.states_.cancel(std::exchange(question_, 0), true);
    if (place != owner_.links_.end()) {
      owner_.links_.erase(place);
      place = owner_.links_.end();
    }
  }

  std::list<std::shared_ptr<CheckpointLink>>::iterator place;  // in the list

 private:
  void await_question() {
    drop_after(Checkpoints::kSilence);
    stream_.read(std::span(asked_),
                 [self = shared_from_this()](bool asked) { asked ? self->take_question() : self->drop(); });
  }

  // A client sends nothing while its question is open. If the socket becomes readable, the client has
  // disconnected or broken the protocol.
  void watch(uint64_t asked) {
    stream_.await_readable([weak = weak_from_this(), asked] {
      if (const auto self = weak.lock(); self && self->question_ == asked) self->drop();
    });
  }

  // Delays reading the next question, so that a flood fills the client's own socket. The delay grows with the
  // number of the tenant's connections.
  void pause() {
    timer_.expires_after(Checkpoints::kPause * owner_.links_of(tenant()));
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->await_question();
    });
  }

  void take_question() {
    wire::Preamble preamble;
    wire::CheckpointQuestion question;
    std::memcpy(&preamble, asked_.data(), sizeof preamble);
    std::memcpy(&question, asked_.data() + sizeof preamble, sizeof question);
    if (preamble.magic != wire::kMagic || preamble.length != sizeof question ||
        static_cast<uint32_t>(question.action) >= wire::kCheckpointActions) {
      return drop();
    }
    waits_ = true;
    if (question.action == wire::CheckpointAction::find)
      return tell(CUDA_SUCCESS, owner_.states_.sessions_of_process(client_, question.pid));
    show_life();
    const uint64_t asked =
        owner_.states_.change(client_, question, [weak = weak_from_this()](int32_t result) {
          if (const auto self = weak.lock()) self->tell(result, {});
        });
    if (!waits_) return;  // answered at once
    question_ = asked;
    if (question.action == wire::CheckpointAction::lock && question.timeout_ms != 0)
      give_up_after(std::chrono::milliseconds(question.timeout_ms));
    watch(asked);
  }

  void give_up_after(std::chrono::milliseconds time) {
    time_out_.expires_after(time);
    time_out_.async_wait([self = shared_from_this(), asked = question_](const asio::error_code& status) {
      if (!status && self->question_ == asked) self->owner_.states_.cancel(asked, false);
    });
  }

  void tell(int32_t result, const std::vector<wire::ProcessSession>& sessions) {
    question_ = 0;
    waits_ = false;
    time_out_.cancel();
    const wire::CheckpointAnswer head{.result = result, .sessions = static_cast<uint32_t>(sessions.size())};
    std::string body(reinterpret_cast<const char*>(&head), sizeof head);
    body.append(reinterpret_cast<const char*>(sessions.data()), sessions.size() * sizeof sessions[0]);
    answer(body);
  }

  // May follow an empty frame that is still being sent. No other answer is pending: the next question has not
  // been read.
  void answer(const std::string& body) {
    const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
    unsent_.append(reinterpret_cast<const char*>(&preamble), sizeof preamble);
    unsent_ += body;
    drop_after(Checkpoints::kPatience);
    send();
  }

  void send() {
    if (!sending_.empty()) return;
    std::swap(sending_, unsent_);
    stream_.write(std::as_bytes(std::span(sending_)), [self = shared_from_this()](bool written) {
      self->sending_.clear();
      if (!written) return self->drop();
      if (!self->unsent_.empty()) return self->send();
      if (!self->waits_) self->pause();
    });
  }

  void show_life() {
    timer_.expires_after(Checkpoints::kLifeSign);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (status || !self->waits_) return;
      const wire::Preamble preamble;
      // Queues at most one empty frame for a client that does not read.
      if (self->unsent_.empty())
        self->unsent_.assign(reinterpret_cast<const char*>(&preamble), sizeof preamble);
      self->send();
      self->show_life();
    });
  }

  void drop_after(std::chrono::milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (!status) self->drop();
    });
  }

  Checkpoints& owner_;
  ByteStream stream_;
  asio::steady_timer timer_;     // of the connection: limits, pauses and empty frames
  asio::steady_timer time_out_;  // of a pending lock
  const Client client_;
  std::array<std::byte, sizeof(wire::Preamble) + sizeof(wire::CheckpointQuestion)> asked_;
  std::string sending_, unsent_;
  uint64_t question_ = 0;  // number of the open question in WorkerPool; 0: none
  bool waits_ = false;     // a question is being answered
};

Checkpoints::Checkpoints(asio::io_context& context, StateChanges& states, Refuse refuse)
    : context_(context), states_(states), refuse_(std::move(refuse)) {}

Checkpoints::~Checkpoints() {
  close();
}

void Checkpoints::drop_if(const std::function<bool(const Client&)>& clients) {
  std::vector<std::shared_ptr<CheckpointLink>> dropped;
  std::copy_if(links_.begin(), links_.end(), std::back_inserter(dropped),
               [&](const auto& link) { return clients(link->client()); });
  for (const auto& link : dropped) link->drop();
}

size_t Checkpoints::links_of(const std::string& tenant) const {
  return static_cast<size_t>(std::count_if(links_.begin(), links_.end(),
                                           [&](const auto& link) { return link->tenant() == tenant; }));
}

void Checkpoints::close() {
  while (!links_.empty()) links_.front()->drop();
}

void Checkpoints::admit(Client client) {
  if (links_of(client.tenant) >= kMostOfTenant || links_.size() >= kMost) {
    return refuse_(std::move(client),
                   {control::HelloReply::BUSY, "too many checkpoint clients; try again later"});
  }
  const auto link = std::make_shared<CheckpointLink>(*this, std::move(client));
  link->place = links_.insert(links_.end(), link);
  link->welcome();
}

}  // namespace gpupool::server
