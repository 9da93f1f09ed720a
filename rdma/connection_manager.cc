#include "rdma/connection_manager.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "protocol/transport/deadline.h"

namespace gpupool::transport::rdma {
namespace {

#define GPUPOOL_MANAGER(CALL) \
  CALL(create_event_channel)  \
  CALL(destroy_event_channel) \
  CALL(create_id)             \
  CALL(destroy_id)            \
  CALL(bind_addr)             \
  CALL(listen)                \
  CALL(get_src_port)          \
  CALL(resolve_addr)          \
  CALL(resolve_route)         \
  CALL(connect)               \
  CALL(establish)             \
  CALL(accept)                \
  CALL(reject)                \
  CALL(init_qp_attr)          \
  CALL(get_cm_event)          \
  CALL(ack_cm_event)          \
  CALL(event_str)

struct Calls {
#define CALL(name) decltype(&::rdma_##name) name = nullptr;
  GPUPOOL_MANAGER(CALL)
#undef CALL
};

// Returns null if librdmacm is not installed or too old.
const Calls* load_calls() {
  static Calls found;
  void* const library = ::dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
#define CALL(name)                                                                      \
  found.name = reinterpret_cast<decltype(found.name)>(::dlsym(library, "rdma_" #name)); \
  if (!found.name) return nullptr;
  GPUPOOL_MANAGER(CALL)
#undef CALL
  return &found;
}

const Calls* calls() {
  static const Calls* const loaded = load_calls();
  return loaded;
}

// Private data in the client's request for a connection.
struct ConnectRequestData {
  ConnectionManager::Token token;
  uint32_t pair_index;  // index of the queue pair in the list
};

constexpr int kBacklog = 4;

Error failure(const char* call) {
  return {ErrorCode::unavailable, std::string(call) + " failed: " + std::generic_category().message(errno)};
}

rdma_conn_param parameters(const QueuePair& pair, const ConnectRequestData* request_data) {
  rdma_conn_param wish{};
  wish.private_data = request_data;
  wish.private_data_len = request_data ? sizeof *request_data : 0;
  wish.responder_resources = wish.initiator_depth = pair.address().reads;
  wish.retry_count = 6;
  wish.rnr_retry_count = 1;
  wish.srq = 1;
  wish.qp_num = pair.get()->qp_num;
  return wish;
}

Result<void> make_ready(rdma_cm_id* id, const ConnectionManager::Pair& pair, const RdmaOptions& options) {
  return pair.mine->connect(pair.theirs, options, [id](ibv_qp_attr& state, int& mask) {
    return calls()->init_qp_attr(id, &state, &mask) == 0;
  });
}

}  // namespace

std::unique_ptr<ConnectionManager> ConnectionManager::open() {
  if (!calls()) return nullptr;
  std::unique_ptr<ConnectionManager> made(new ConnectionManager);
  made->channel_ = calls()->create_event_channel();
  if (!made->channel_) return nullptr;
  ::fcntl(made->channel_->fd, F_SETFL, ::fcntl(made->channel_->fd, F_GETFL) | O_NONBLOCK);
  return made;
}

ConnectionManager::~ConnectionManager() {
  for (rdma_cm_id* const id : ids_) calls()->destroy_id(id);
  if (channel_) calls()->destroy_event_channel(channel_);
}

Result<rdma_cm_id*> ConnectionManager::make_id() {
  rdma_cm_id* id = nullptr;
  if (calls()->create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0) return failure("rdma_create_id");
  ids_.push_back(id);
  return id;
}

bool ConnectionManager::listen(const sockaddr_storage& local, const Device& device) {
  const auto id = make_id();
  if (!id || ::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size()))
    return false;
  sockaddr_storage any_port = local;
  if (local.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(any_port).sin_port = 0;
  else
    reinterpret_cast<sockaddr_in6&>(any_port).sin6_port = 0;
  if (calls()->bind_addr(*id, reinterpret_cast<sockaddr*>(&any_port)) != 0) return false;
  if (!(*id)->verbs || device.name != (*id)->verbs->device->name || calls()->listen(*id, kBacklog) != 0)
    return false;
  port_ = ntohs(calls()->get_src_port(*id));
  return port_ != 0;
}

Result<rdma_cm_event*> ConnectionManager::next(Deadline deadline, int client) {
  while (true) {
    rdma_cm_event* event = nullptr;
    if (calls()->get_cm_event(channel_, &event) == 0) return event;
    if (errno != EAGAIN && errno != EINTR) return failure("rdma_get_cm_event");
    if (passed(deadline)) {
      return Error{ErrorCode::unavailable, "timed out waiting for the RDMA connection manager"};
    }
    pollfd polled[2] = {{channel_->fd, POLLIN, 0}, {client, POLLIN, 0}};
    ::poll(polled, 2, poll_limit(deadline));
    if (polled[0].revents == 0 && polled[1].revents != 0) {
      return Error{ErrorCode::unavailable,
                   "the client gave up connecting through the RDMA connection manager"};
    }
  }
}

Result<void> ConnectionManager::await(rdma_cm_id* id, int kind, Deadline deadline) {
  while (true) {
    const auto event = next(deadline);
    if (!event) return event.error();
    const bool mine = (*event)->id == id;
    const int came = (*event)->event, status = (*event)->status;
    calls()->ack_cm_event(*event);
    if (!mine) continue;
    if (came == kind && status == 0) return {};
    return Error{ErrorCode::unavailable, std::string("the RDMA connection manager reported ") +
                                             calls()->event_str(static_cast<rdma_cm_event_type>(came)) +
                                             " (" + std::to_string(status) + ")"};
  }
}

Result<void> ConnectionManager::connect(const sockaddr_storage& local, sockaddr_storage server, uint16_t port,
                                        const Token& token, std::span<const Pair> pairs,
                                        const RdmaOptions& options, Deadline deadline) {
  sockaddr_storage here = local;
  if (server.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(server).sin_port = htons(port);
    reinterpret_cast<sockaddr_in&>(here).sin_port = 0;
  } else {
    reinterpret_cast<sockaddr_in6&>(server).sin6_port = htons(port);
    reinterpret_cast<sockaddr_in6&>(here).sin6_port = 0;
  }
  for (uint32_t pair_index = 0; pair_index < pairs.size(); ++pair_index) {
    const auto id = make_id();
    if (!id) return id.error();
    if (calls()->resolve_addr(*id, reinterpret_cast<sockaddr*>(&here), reinterpret_cast<sockaddr*>(&server),
                              poll_limit(deadline)) != 0) {
      return failure("rdma_resolve_addr");
    }
    if (auto done = await(*id, RDMA_CM_EVENT_ADDR_RESOLVED, deadline); !done) return done;
    if (pairs[pair_index].mine->domain().device().name != (*id)->verbs->device->name) {
      return Error{ErrorCode::unavailable, "the route to the server does not use this device"};
    }
    if (calls()->resolve_route(*id, poll_limit(deadline)) != 0) return failure("rdma_resolve_route");
    if (auto done = await(*id, RDMA_CM_EVENT_ROUTE_RESOLVED, deadline); !done) return done;
    if (auto done = connect_one(*id, pairs[pair_index], pair_index, token, options, deadline); !done)
      return done;
  }
  return {};
}

Result<void> ConnectionManager::connect_one(rdma_cm_id* id, const Pair& pair, uint32_t pair_index,
                                            const Token& token, const RdmaOptions& options,
                                            Deadline deadline) {
  const ConnectRequestData request_data{token, pair_index};
  rdma_conn_param wish = parameters(*pair.mine, &request_data);
  if (calls()->connect(id, &wish) != 0) return failure("rdma_connect");
  if (auto done = await(id, RDMA_CM_EVENT_CONNECT_RESPONSE, deadline); !done) return done;
  if (auto ready = make_ready(id, pair, options); !ready) return ready;
  if (calls()->establish(id) != 0) return failure("rdma_establish");
  return {};
}

Result<void> ConnectionManager::accept(std::span<const Pair> pairs, int client, const RdmaOptions& options,
                                       Deadline deadline) {
  std::vector<bool> taken(pairs.size());
  for (size_t established = 0; established < pairs.size();) {
    const bool all_asked = std::find(taken.begin(), taken.end(), false) == taken.end();
    const auto event = next(deadline, all_asked ? -1 : client);
    if (!event) return event.error();
    const rdma_cm_event_type kind = (*event)->event;
    rdma_cm_id* const id = (*event)->id;
    ConnectRequestData request_data{{}, UINT32_MAX};
    const auto& said = (*event)->param.conn;
    if (kind == RDMA_CM_EVENT_CONNECT_REQUEST && said.private_data &&
        said.private_data_len >= sizeof request_data) {
      std::memcpy(&request_data, said.private_data, sizeof request_data);
    }
    calls()->ack_cm_event(*event);
    if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
      ids_.push_back(id);
      if (request_data.token != token_ || request_data.pair_index >= pairs.size() ||
          taken[request_data.pair_index]) {
        calls()->reject(id, nullptr, 0);  // not the client that was given the token
        continue;
      }
      taken[request_data.pair_index] = true;
      if (auto accepted = accept_one(id, pairs[request_data.pair_index], options); !accepted) return accepted;
    } else if (kind == RDMA_CM_EVENT_ESTABLISHED) {
      ++established;
    } else {
      return Error{ErrorCode::unavailable,
                   std::string("the RDMA connection manager reported ") + calls()->event_str(kind)};
    }
  }
  return {};
}

Result<void> ConnectionManager::accept_one(rdma_cm_id* id, const Pair& pair, const RdmaOptions& options) {
  if (auto ready = make_ready(id, pair, options); !ready) return ready;
  rdma_conn_param wish = parameters(*pair.mine, nullptr);
  if (calls()->accept(id, &wish) != 0) return failure("rdma_accept");
  return {};
}

}  // namespace gpupool::transport::rdma
