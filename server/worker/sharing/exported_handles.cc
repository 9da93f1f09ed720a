#include "server/worker/sharing/exported_handles.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace gpupool::worker {

using server::ControlKind;
using server::packet::ShareFound;
using server::packet::ShareMissing;
using server::packet::ShareWanted;

ExportedHandles::ExportedHandles(const DeviceApi& api, Control* control, uint64_t server, uint64_t session,
                                 std::chrono::milliseconds patience)
    : api_(api), control_(control), server_(server), session_(session), patience_(patience) {
  if (!control_) return;
  control_->handle(ControlKind::share_wanted, [this](server::ControlMessage message) {
    answer(message);
    if (message.descriptor >= 0) ::close(message.descriptor);
  });
  for (const ControlKind kind : {ControlKind::share_found, ControlKind::share_missing}) {
    control_->handle(kind, [this](server::ControlMessage message) { answered(std::move(message)); });
  }
}

ExportedHandles::~ExportedHandles() {
  if (!control_) return;
  for (const ControlKind kind :
       {ControlKind::share_wanted, ControlKind::share_found, ControlKind::share_missing}) {
    control_->handle(kind, nullptr);
  }
  if (answer_ && answer_->descriptor >= 0) ::close(answer_->descriptor);
}

ExportedHandles::Fetched::~Fetched() {
  if (descriptor >= 0) ::close(descriptor);
}

CUresult ExportedHandles::add(const Exported& exported, std::map<uint64_t, Secret>& by_object,
                              uint64_t object, wire::SharedName* name) {
  *name = {.magic = wire::kSharedName, .server = server_, .session = session_};
  const std::lock_guard lock(exported_mutex_);
  if (const auto known = by_object.find(object); known != by_object.end()) {
    name->secret = known->second;
    return CUDA_SUCCESS;
  }
  if (exported_.size() >= kMost) return CUDA_ERROR_OUT_OF_MEMORY;
  if (::getrandom(name->secret.data(), name->secret.size(), 0) != static_cast<ssize_t>(name->secret.size()))
    return CUDA_ERROR_OUT_OF_MEMORY;
  exported_[name->secret] = exported;
  by_object[object] = name->secret;
  return CUDA_SUCCESS;
}

CUresult ExportedHandles::export_handle(const Memory& memory, wire::SharedName* name) {
  return add({.memory = memory}, by_memory_, memory.handle, name);
}
CUresult ExportedHandles::export_handle(const Event& event, wire::SharedName* name) {
  return add({.event = event}, by_event_, reinterpret_cast<uintptr_t>(event.event), name);
}

bool ExportedHandles::withdraw(std::map<uint64_t, Secret>& by_object, uint64_t object) {
  const std::lock_guard lock(exported_mutex_);
  const auto known = by_object.extract(object);
  return known && exported_.extract(known.mapped()).mapped().fetched;
}
bool ExportedHandles::withdraw(CUmemGenericAllocationHandle memory) {
  return withdraw(by_memory_, memory);
}
void ExportedHandles::withdraw(CUevent event) {
  (void)withdraw(by_event_, reinterpret_cast<uintptr_t>(event));
}

void ExportedHandles::withdraw_events(const ContextState& context) {
  const std::lock_guard lock(exported_mutex_);
  std::erase_if(by_event_, [&](const auto& known) {
    const auto found = exported_.find(known.second);
    if (found->second.event->context != &context) return false;
    exported_.erase(found);
    return true;
  });
}

std::optional<ExportedHandles::Suspended> ExportedHandles::suspend(CUmemGenericAllocationHandle memory) {
  const std::lock_guard lock(exported_mutex_);
  const auto known = by_memory_.find(memory);
  if (known == by_memory_.end()) return Suspended();
  Exported& exported = exported_.at(known->second);
  if (exported.fetched) return std::nullopt;
  exported.suspended = true;
  return by_memory_.extract(known);
}

void ExportedHandles::resume(Suspended suspended, CUmemGenericAllocationHandle now) {
  if (!suspended) return;
  const std::lock_guard lock(exported_mutex_);
  Exported& exported = exported_.at(suspended.mapped());
  exported.memory->handle = suspended.key() = now;
  exported.suspended = false;
  by_memory_.insert(std::move(suspended));
}

void ExportedHandles::forget(Suspended suspended) {
  if (!suspended) return;
  const std::lock_guard lock(exported_mutex_);
  exported_.erase(suspended.mapped());
}

CUresult ExportedHandles::take(const Secret& secret, ShareFound* found, int* descriptor) {
  const std::lock_guard lock(exported_mutex_);
  const auto known = exported_.find(secret);
  if (known == exported_.end() || known->second.suspended) return CUDA_ERROR_INVALID_VALUE;
  if (const auto& event = known->second.event) {
    static_assert(sizeof found->event == sizeof event->handle);
    std::memcpy(found->event.data(), &event->handle, sizeof event->handle);
    return CUDA_SUCCESS;
  }
  const Memory& memory = *known->second.memory;
  if (!api_.cuMemExportToShareableHandle) return CUDA_ERROR_NOT_SUPPORTED;
  found->bytes = memory.size;
  found->gpu = memory.device;
  found->handle_types = memory.handle_types;
  found->charge = memory.charge;
  known->second.fetched = true;
  return api_.cuMemExportToShareableHandle(descriptor, memory.handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

// poold has verified that the asking session belongs to the same tenant. Sends the descriptor before the
// answer.
void ExportedHandles::answer(const server::ControlMessage& message) {
  const auto wanted = message.body<ShareWanted>();
  ShareFound found{.requester = wanted.requester, .request = wanted.request};
  int descriptor = -1;
  bool there = take(wanted.secret, &found, &descriptor) == CUDA_SUCCESS;
  if (descriptor >= 0) {
    found.is_memory = 1;
    if (!server::send_control<ControlKind::share_found>(message.descriptor, {}, "", descriptor))
      there = false;
    ::close(descriptor);
  }
  // Fails if poold does not read; the asking worker then times out.
  if (there)
    (void)control_->send<ControlKind::share_found>(found);
  else
    (void)control_->send<ControlKind::share_missing>(
        {.requester = wanted.requester, .request = wanted.request});
}

void ExportedHandles::answered(server::ControlMessage message) {
  const uint64_t request = message.kind == ControlKind::share_found ? message.body<ShareFound>().request
                                                                    : message.body<ShareMissing>().request;
  const std::lock_guard lock(mutex_);
  if (request != request_ || answer_) {  // the request has timed out
    if (message.descriptor >= 0) ::close(message.descriptor);
    return;
  }
  answer_ = std::move(message);
  changed_.notify_one();
}

// Receives the descriptor that the other worker has sent, and closes the socket. Returns -1 if there is none.
int ExportedHandles::take_descriptor(int socket) {
  if (socket < 0) return -1;
  const auto message = server::receive_control(socket);
  ::close(socket);
  return message ? message->descriptor : -1;
}

CUresult ExportedHandles::fetch(const wire::SharedName& name, Fetched* to) {
  if (name.magic != wire::kSharedName || name.server != server_) return CUDA_ERROR_INVALID_VALUE;
  ShareFound found;
  to->own = name.session == session_;
  if (to->own) {
    const CUresult result = take(name.secret, &found, &to->descriptor);
    if (result != CUDA_SUCCESS) return result;
  } else {
    if (!control_) return CUDA_ERROR_INVALID_VALUE;
    std::unique_lock lock(mutex_);
    answer_.reset();
    const auto sent = control_->send<ControlKind::share_wanted>(
        {.secret = name.secret, .session = name.session, .request = ++request_});
    const Waiting waiting("another session's worker");
    if (sent) changed_.wait_for(lock, patience_, [this] { return answer_.has_value(); });
    ++request_;  // ignores late answers
    const auto message = std::exchange(answer_, std::nullopt);
    if (!message) return CUDA_ERROR_MAP_FAILED;
    to->descriptor = take_descriptor(message->descriptor);
    if (message->kind != ControlKind::share_found) return CUDA_ERROR_INVALID_VALUE;
    found = message->body<ShareFound>();
    if ((found.is_memory != 0) != (to->descriptor >= 0)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (to->descriptor >= 0) {
    const Memory told{0, found.bytes, found.gpu, found.handle_types, found.charge};
    if (told.size == 0 || (told.charge == 0) != told.is_multicast()) return CUDA_ERROR_INVALID_VALUE;
    to->memory = told;
  } else {
    std::memcpy(&to->event.emplace(), found.event.data(), sizeof(CUipcEventHandle));
  }
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
