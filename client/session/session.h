// A connection of this process to a worker: the ordered command stream, its replies, and the client's state
// for it (addresses, handles, cached replies). A process has one per server.
//
// Created by Process. Once connected, never destroyed, because programs call the driver from exit handlers
// and detached threads. If the connection is lost the session stays in the failed state: every further call
// returns failure(). Thread-safe.
#pragma once
#include <atomic>
#include <forward_list>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "client/copies/bulk_connections.h"
#include "client/copies/registered_memory.h"
#include "client/memory/address_space.h"
#include "client/process/settings.h"
#include "client/session/command_queue.h"
#include "client/session/context.h"
#include "client/session/devices.h"
#include "client/session/receiver.h"
#include "client/session/reconnector.h"
#include "client/session/reply_cache.h"
#include "protocol/images/name.h"
#include "protocol/transport/resume/resumable_connection.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/peers.h"

namespace gpupool::client {

constexpr unsigned kMaxServers = 64;

class Migrator;

class Session {
 public:
  // Connects and exchanges hellos. take_addresses() must succeed before any other call.
  static Result<std::unique_ptr<Session>> open(const Settings& settings, const transport::Endpoint& endpoint);
  // Reserves the server's address range in this process; if it is not free here, asks for other ranges until
  // one is free on both sides.
  Result<void> take_addresses();

  // The server's address; another one after a migration. Valid for good.
  const std::string& server() const { return *server_.load(std::memory_order_acquire); }
  unsigned index() const { return settings_.index; }  // less than kMaxServers
  // The server's devices, in its own numbering.
  const std::vector<hello::Device>& offered() const { return offered_; }
  bool launch_blocking() const { return settings_.launch_blocking; }
  bool memory_limited() const { return receiver_.memory_limited(); }
  AddressSpace& addresses() { return addresses_; }
  ReplyCache& reply_cache() { return reply_cache_; }
  // Creates a handle of this session; see HandleTable::mint().
  uint64_t mint(Kind kind, std::unique_ptr<Object> object);
  // The nonce for naming an image to the server; nullopt: the server does not keep images of this size, so it
  // must be uploaded.
  std::optional<image::Nonce> image_nonce(uint64_t image_bytes) const {
    const std::lock_guard lock(server_mutex_);
    return image_bytes <= largest_image_ ? std::optional(image_nonce_) : std::nullopt;
  }
  int driver_version() const { return driver_version_; }
  uint64_t server_id() const {
    return server_id_.load(std::memory_order_relaxed);
  }  // 0: the server does not support sharing
  Receiver& receiver() { return receiver_; }
  CommandQueue& queue() { return queue_; }
  BulkConnections& links() { return links_; }
  RegisteredMemory& registered() { return registered_; }

  // True if the server can map this process's memory.
  bool shares_memory() const { return connection_->shares_memory(); }
  // Sends the server a descriptor and the command about it. *taken: the server has mapped the memory, even if
  // the result is an error (an earlier command's). *device: kernels' address; 0: none.
  CUresult share_host_memory(Context& context, int descriptor, const wire::ShareHostMemory& memory,
                             bool* taken, uint64_t* device);
  // True while an asynchronous copy reads or writes host memory of the program.
  bool copies_pending() const { return receiver_.transfers_pending() || links_.reading(); }
  // Held by a copy from server to server, for both sessions: two copies in opposite directions, on one stream
  // of each server, would wait for each other.
  std::mutex& peer_copy() { return peer_copy_; }
  // False once a direct copy to the server with this address (server()) was refused, for whatever reason.
  // True again when this session has moved.
  bool reaches_peer(const std::string& server) const {
    const std::lock_guard lock(server_mutex_);
    return !unreachable_peers_.contains(server);
  }
  void set_peer_unreachable(const std::string& server) {
    const std::lock_guard lock(server_mutex_);
    unreachable_peers_.insert(server);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Returned by all calls once the connection is lost.
  static constexpr CUresult failure() { return CUDA_ERROR_DEVICE_UNAVAILABLE; }

  // Queues a command; errors surface at a later call that waits. *sequence, if not null, receives its number.
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
  // Overloads for commands of protocol/wire/commands.h whose body is one struct.
  template <class Body>
  CUresult post(wire::Command command, Context* context, const Body& body, uint64_t* sequence = nullptr) {
    return post(
        static_cast<uint16_t>(command), context, [&](wire::Writer& writer) { writer.put(body); }, sequence);
  }
  template <class Body>
  CUresult call(wire::Command command, Context* context, const Body& body, wire::Buffer& reply) {
    return call(
        static_cast<uint16_t>(command), context, [&](wire::Writer& writer) { writer.put(body); }, reply);
  }
  CUresult call(wire::Command command, Context* context, std::string_view name, wire::Buffer& reply,
                auto body) {
    return call(
        static_cast<uint16_t>(command), context,
        [&](wire::Writer& writer) {
          writer.put(body);
          writer.put_text(name);
        },
        reply);
  }
  // Queues a command and passes its result to `then` (Receiver::expect) without waiting.
  template <class WriteBody>
  CUresult call_later(wire::Command command, Context& context, WriteBody&& write_body,
                      std::function<void(CUresult)> then) {
    if (const CUresult early = before_call(&context); early != CUDA_SUCCESS) return early;
    queue_.append(static_cast<uint16_t>(command), wire::kWantsReply, context.handle, write_body,
                  [&](uint64_t number) { receiver_.expect(number, std::move(then)); });
    queue_.wake_flusher();
    return CUDA_SUCCESS;
  }
  // Queues a command. Calls `sent_as` with its sequence number before it can reach the server. If `sent_as`
  // was not called, nothing was sent.
  template <class Body, class SentAs>
  CUresult post_known(wire::Command command, Context& context, const Body& body, SentAs&& sent_as) {
    if (const CUresult early = before_call(&context); early != CUDA_SUCCESS) return early;
    const bool waits = settings_.every_call_waits;
    Waiter waiter{.id = static_cast<uint16_t>(command)};
    queue_.append(
        waiter.id, waits ? wire::kWantsReply : uint16_t{0}, context.handle,
        [&](wire::Writer& writer) { writer.put(body); },
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
  // Returns CUDA_SUCCESS, or the error that every call returns now. Creates the context on the server if
  // necessary.
  CUresult before_call(Context* context);
  static uint64_t handle_of(const Context* context) { return context ? context->handle : 0; }

  // Moves the session to another server (migrator.h). Returns why it stays where it is. One call at a time,
  // also of suspend(); blocks.
  Result<void> migrate(const std::string& address, uint64_t wish);
  // Suspends the session, and returns when it was resumed. Calls wait until then.
  Result<void> suspend(uint64_t wish);

  void fail(const Error& error);
  // The program is ending: if the connection ends now, the server does not wait for another one. Later calls
  // still work.
  void say_leaving();
  // Ends a session that has no work. The object must stay: its threads end by themselves, and refer to it.
  void leave();
  // For the timeline, if there is one: asks the server for what it has recorded, and waits for it.
  void ask_for_last_records();
  void await_last_records(transport::Clock::time_point deadline);
  // In a forked child: closes its copy of the connection, which stays open in the parent. Takes no lock.
  void abandon();
  // `handler` is called as Receiver::Hooks::host_callback, and with command 0 when the session has failed.
  void on_host_callback(void (*handler)(Session&, uint64_t callback, uint64_t command, CUresult result)) {
    host_callback_ = handler;
  }

 private:
  Session(const Settings& settings, std::unique_ptr<transport::Connection> connection);
  Result<void> say_hello(const transport::Endpoint& server, const transport::Options& options);
  void start_resuming(const hello::HelloReply& reply, const transport::Endpoint& server,
                      const transport::Options& options);
  void ping();
  std::optional<wire::Acknowledge> acknowledgement();
  void read_acknowledgements();
  bool on_migration_wish(std::span<const std::byte> wish);
  void take_image_terms(const hello::HelloReply& reply);
  Result<void> migrate_to(Migrator& target, const wire::PeerTarget& peer,
                          const std::shared_ptr<BulkConnections::Prepared>& links, uint64_t wish);
  Result<void> begin_migration(const wire::PeerTarget& peer);
  Result<bool> try_to_begin(const wire::PeerTarget& peer);
  // Called when the server has sent everything, and no command is underway. An error: the session stays.
  using GoOn = std::function<Result<void>()>;
  Result<void> leave_when_ready(const GoOn& go_on_elsewhere);
  Result<bool> try_to_leave(std::chrono::milliseconds patience, std::string* why_not_ready,
                            const GoOn& go_on_elsewhere);
  Result<void> check_adopted(Migrator& target, std::chrono::seconds longest);
  void say_farewell(uint64_t wish);
  void continue_on(Migrator& target, const std::shared_ptr<BulkConnections::Prepared>& links);
  // session_timeline.cc
  void begin_timeline(const hello::HelloReply& reply);
  uint64_t ask_for_clock(uint32_t flags);
  bool await_clock(uint64_t number, transport::Clock::time_point deadline);
  bool take_timeline_message(std::span<const std::byte> body);
  void look_at_timeline();
  // session_suspension.cc
  struct Absence;
  Result<void> stay_away(Absence& absence, uint64_t wish);
  Result<void> await_resumption(Absence& absence);
  Result<void> ask_until_resumed(Absence& absence);
  Result<bool> try_to_come_back(Absence& absence);
  Result<void> adopt_again(Migrator& target);
  // Keeps the session's number and resume key, which the client shows when it connects again.
  void remember_home(const hello::HelloReply& reply);
  Reconnector::Terms resume_terms(const hello::HelloReply& reply, const transport::Endpoint& server,
                                  const transport::Options& options, const Settings& settings) const;
  BulkConnections::Parameters bulk_parameters(const hello::HelloReply& reply,
                                              const transport::Endpoint& server,
                                              const transport::Connection& connection, bool over_rdma) const;

  const Settings settings_;
  std::unique_ptr<transport::ResumableConnection> connection_;
  Receiver receiver_;
  CommandQueue queue_;
  Reconnector reconnector_;
  std::atomic<bool> leaving_{false};
  BulkConnections links_;
  RegisteredMemory registered_;
  std::mutex share_mutex_;  // keeps descriptors in the order of their commands
  AddressSpace addresses_;
  ReplyCache reply_cache_;
  std::vector<hello::Device> offered_;
  wire::AddressRange proposed_{};  // proposed by the server in its hello
  int driver_version_ = 0;
  std::atomic<const std::string*> server_;
  std::forward_list<std::string> server_names_;  // that server_ had after migrations; one thread migrates
  mutable std::mutex server_mutex_;              // guards session_id_ to unreachable_peers_
  std::string session_id_, resume_key_;
  std::chrono::milliseconds resume_timeout_{0};
  image::Nonce image_nonce_{};
  uint64_t largest_image_ = 0;
  std::set<std::string> unreachable_peers_;  // addresses of servers to which the present one cannot connect
  std::atomic<uint64_t> server_id_{0};
  std::atomic<bool> migrating_{false};
  // The migration_wish that a new server sent before the session had arrived there; empty: none. Belongs to
  // the thread that has set migrating_, which passes it on at its end.
  std::vector<std::byte> wish_on_arrival_;
  std::atomic<bool> makes_timeline_{false};    // the server takes read_clock
  transport::Clock::time_point next_clock_{};  // of the timeline's thread
  uint64_t last_clock_ = 0;                    // likewise: the last command when it asked for the clock
  uint64_t last_records_ = 0;                  // the question of ask_for_last_records(); 0: none
  std::atomic<bool> failed_{false};
  std::mutex closing_;
  std::optional<std::string> why_;  // the first error; guarded by closing_
  std::mutex peer_copy_;
  void (*host_callback_)(Session&, uint64_t, uint64_t, CUresult) = nullptr;
};

}  // namespace gpupool::client
