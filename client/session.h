// One connection of this process to a worker: the one ordered command stream, its replies, and what the client keeps
// for it (addresses). A process has one for each server.
//
// Made by Process and never destroyed, since programs call the driver from exit handlers and detached threads. When
// the connection is lost the session stays as a failed one: every further call returns failure(). Any thread.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/address_space.h"
#include "client/answers.h"
#include "client/bulk_links.h"
#include "client/command_queue.h"
#include "client/context.h"
#include "client/devices.h"
#include "client/receiver.h"
#include "client/registered_memory.h"
#include "client/settings.h"
#include "protocol/image/name.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"

namespace gpupool::client {

constexpr unsigned kMaxServers = 64;

class Session {
 public:
  // Connects and says hello. Before anything else take_addresses() has to succeed.
  static Result<std::unique_ptr<Session>> open(const Settings& settings, const transport::Endpoint& endpoint);
  // The server's range must be free here too; when it is not, asks for others until one is free on both sides.
  Result<void> take_addresses();

  const std::string& server() const { return settings_.server; }
  unsigned index() const { return settings_.index; }  // below kMaxServers
  // The server's devices, as it numbers them.
  const std::vector<hello::Device>& offered() const { return offered_; }
  bool launch_blocking() const { return settings_.launch_blocking; }
  bool memory_limited() const { return receiver_.memory_limited(); }
  AddressSpace& addresses() { return addresses_; }
  Answers& answers() { return answers_; }
  // A handle of this session: HandleTable::mint().
  uint64_t mint(Kind kind, std::unique_ptr<Object> object);
  // How to name an image to the server; null: it would have to be uploaded anyway.
  const image::Nonce* image_nonce(uint64_t image_bytes) const {
    return image_bytes <= largest_image_ ? &image_nonce_ : nullptr;
  }
  int driver_version() const { return driver_version_; }
  uint64_t server_id() const { return server_id_; }  // 0: a server that shares nothing
  Receiver& receiver() { return receiver_; }
  CommandQueue& queue() { return queue_; }
  BulkLinks& links() { return links_; }
  RegisteredMemory& registered() { return registered_; }

  // Can the server map this program's memory?
  bool shares_memory() const { return connection_->shares_memory(); }
  // Gives the server a descriptor and the command that is about it. *taken: it has the memory now, whatever the result
  // (which may be an earlier command's). *device: where kernels find it; 0: nowhere.
  CUresult share_host_memory(Context& context, int descriptor, const wire::ShareHostMemory& memory, bool* taken,
                             uint64_t* device);
  // Is host memory that the program gave to an asynchronous copy still being read or written?
  bool copies_pending() const { return receiver_.transfers_pending() || links_.reading(); }
  // Held while its server sends to another one or receives from it: a copy each way at a time, on one stream of each, would wait
  // for each other.
  std::mutex& peer_copy() { return peer_copy_; }
  // Can its server connect to others? Until one time that it could not.
  bool may_reach_peers() const { return reaches_peers_.load(std::memory_order_relaxed); }
  void reaches_no_peers() { reaches_peers_.store(false, std::memory_order_relaxed); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // What calls return once the connection is lost.
  static constexpr CUresult failure() { return CUDA_ERROR_DEVICE_UNAVAILABLE; }

  // Queues a command; its errors surface at a later call that waits. *sequence, when asked for, names it.
  template <class WriteBody>
  CUresult post(uint16_t id, Context* context, WriteBody&& write_body, uint64_t* sequence = nullptr) {
    if (const CUresult early = before_call(context); early != CUDA_SUCCESS) return early;
    if (settings_.every_call_waits && !sequence) {
      wire::Buffer reply;
      return call(id, context, write_body, reply);
    }
    queue_.append(id, 0, handle_of(context), write_body, [&](uint64_t number) {
      if (sequence) *sequence = number;
    });
    return CUDA_SUCCESS;
  }
  // Sends everything queued and waits for the reply.
  template <class WriteBody>
  CUresult call(uint16_t id, Context* context, WriteBody&& write_body, wire::Buffer& reply) {
    if (const CUresult early = before_call(context); early != CUDA_SUCCESS) return early;
    Waiter waiter{.id = id};
    queue_.append(id, wire::kWantsReply, handle_of(context), write_body, [&](uint64_t number) {
      waiter.sequence = number;
      receiver_.expect(waiter);
    });
    queue_.flush();
    return finish_call(context, waiter, reply);
  }
  // The same for commands of protocol/wire/commands.h whose body is one struct.
  template <class Body>
  CUresult post(wire::Command command, Context* context, const Body& body, uint64_t* sequence = nullptr) {
    return post(static_cast<uint16_t>(command), context, [&](wire::Writer& writer) { writer.put(body); }, sequence);
  }
  template <class Body>
  CUresult call(wire::Command command, Context* context, const Body& body, wire::Buffer& reply) {
    return call(static_cast<uint16_t>(command), context, [&](wire::Writer& writer) { writer.put(body); }, reply);
  }
  CUresult call(wire::Command command, Context* context, std::string_view name, wire::Buffer& reply, auto body) {
    return call(static_cast<uint16_t>(command), context,
                [&](wire::Writer& writer) {
                  writer.put(body);
                  writer.put_text(name);
                },
                reply);
  }
  // Queues a command whose reply nobody waits for here: `then` gets its result (Receiver::expect).
  template <class WriteBody>
  CUresult call_later(wire::Command command, Context& context, WriteBody&& write_body, std::function<void(CUresult)> then) {
    if (const CUresult early = before_call(&context); early != CUDA_SUCCESS) return early;
    queue_.append(static_cast<uint16_t>(command), wire::kWantsReply, context.handle, write_body,
                  [&](uint64_t number) { receiver_.expect(number, std::move(then)); });
    queue_.wake_flusher();
    return CUDA_SUCCESS;
  }
  // Queues a command. Calls `sent_as` with its sequence number before it can reach the server; if it does not call that, nothing was sent.
  template <class Body, class SentAs>
  CUresult post_known(wire::Command command, Context& context, const Body& body, SentAs&& sent_as) {
    if (const CUresult early = before_call(&context); early != CUDA_SUCCESS) return early;
    const bool waits = settings_.every_call_waits;
    Waiter waiter{.id = static_cast<uint16_t>(command)};
    queue_.append(waiter.id, waits ? wire::kWantsReply : uint16_t{0}, context.handle, [&](wire::Writer& writer) { writer.put(body); },
                  [&](uint64_t number) {
                    sent_as(waiter.sequence = number);
                    if (waits) receiver_.expect(waiter);
                  });
    if (!waits) return CUDA_SUCCESS;
    queue_.flush();
    wire::Buffer reply;
    return finish_call(&context, waiter, reply);
  }
  CUresult finish_call(Context* context, Waiter& waiter, wire::Buffer& reply);
  // CUDA_SUCCESS, or what every call returns now; makes sure the server knows the context.
  CUresult before_call(Context* context);
  static uint64_t handle_of(const Context* context) { return context ? context->handle : 0; }

  void fail(const Error& error);
  // In a forked child: closes its copy of the connection, which stays open in the parent. Takes no lock.
  void abandon();
  // `handler` is called as Receiver::Hooks::host_callback, and with 0 as the command once the session has failed.
  void on_host_callback(void (*handler)(Session&, uint64_t callback, uint64_t command, CUresult result)) { host_callback_ = handler; }

 private:
  Session(const Settings& settings, std::unique_ptr<transport::Connection> connection);
  Result<void> say_hello(const transport::Endpoint& server, const transport::Options& options);
  void ping();

  const Settings settings_;
  std::unique_ptr<transport::Connection> connection_;
  Receiver receiver_;
  CommandQueue queue_;
  BulkLinks links_;
  RegisteredMemory registered_;
  std::mutex share_mutex_;  // descriptors are sent in the order of their commands
  AddressSpace addresses_;
  Answers answers_;
  std::vector<hello::Device> offered_;
  wire::AddressRange proposed_{};  // by the server, in its hello
  int driver_version_ = 0;
  image::Nonce image_nonce_{};
  uint64_t largest_image_ = 0;
  uint64_t server_id_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex closing_;
  std::optional<std::string> why_;  // it failed; set under closing_, once
  std::mutex peer_copy_;
  std::atomic<bool> reaches_peers_{true};
  void (*host_callback_)(Session&, uint64_t, uint64_t, CUresult) = nullptr;
};

}  // namespace gpupool::client
