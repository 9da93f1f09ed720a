#include "client/session/context.h"

#include <pthread.h>

#include "client/process/log.h"
#include "client/session/call.h"
#include "client/session/session.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {
namespace {

// A plain pointer and a pthread key instead of an object with a destructor: the main thread's exit handlers
// may call the driver after its thread-local objects are destroyed.
thread_local ThreadState* state_of_thread = nullptr;

// Destroys the streams that stood for CU_STREAM_PER_THREAD in an ended thread.
CUresult destroy_streams(const ThreadState& ended) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  for (const auto& known : ended.streams) {
    auto* context = handles().find_as<Context>(Kind::context, known.context);
    if (!context || context->epoch.load() != known.epoch) continue;
    if (!handles().find(Kind::stream, known.stream)) continue;
    handles().retire(known.stream);
    (void)context->session->post(rows::cuStreamDestroy_v2::kId, context,
                                 [&](wire::Writer& writer) { writer.put(known.stream); });
  }
  return CUDA_SUCCESS;
}

pthread_key_t thread_end_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, [](void* state) {
      state_of_thread = nullptr;
      std::unique_ptr<ThreadState> ended(static_cast<ThreadState*>(state));
      (void)guarded([&] { return destroy_streams(*ended); });
    });
    return made;
  }();
  return key;
}

// Sends the command without a context, so that it does not call ensure_on_server() again.
template <class Body>
CUresult make_on_server(Context& context, wire::Command command, const Body& body) {
  Session& session = *context.session;
  if (!session.memory_limited()) {
    (void)session.post(command, nullptr, body);
    return CUDA_SUCCESS;
  }
  wire::Buffer reply;
  const CUresult result = session.call(command, nullptr, body, reply);
  if (result == CUDA_SUCCESS) return result;
  wire::Reader reader(reply);
  // It was created; the error is an earlier command's.
  if (reader.get<uint64_t>() == context.handle && reader.finished()) {
    context.late_error = result;
    return CUDA_SUCCESS;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    log_error(
        "device %d: cannot create a context: the driver needs device memory for it, which counts against the "
        "tenant's memory quota (%llu MiB), and "
        "not enough is left; request a larger quota, or stop other programs of the tenant",
        context.device->ordinal, static_cast<unsigned long long>(context.device->total_bytes >> 20));
  }
  return result;
}

}  // namespace

ThreadState& thread_state() {
  if (!state_of_thread) {
    state_of_thread = new ThreadState;
    pthread_setspecific(thread_end_key(), state_of_thread);
  }
  return *state_of_thread;
}

Context* current_context(CUresult* error) {
  const auto& stack = thread_state().contexts;
  if (error) *error = CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty() || stack.back() == 0) return nullptr;
  auto* context = handles().find_as<Context>(Kind::context, stack.back());
  if (!context && error) *error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context;
}

Session* current_session() {
  const Context* context = current_context();
  return context ? context->session : nullptr;
}

CUresult ensure_on_server(Context& context) {
  std::lock_guard lock(context.mutex);
  if (context.on_server.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const int server_device = context.device->server_ordinal;
  const CUresult result =
      context.primary ? make_on_server(context, wire::Command::retain_primary_context,
                                       wire::PrimaryContext{context.handle, server_device, context.flags})
                      : make_on_server(context, wire::Command::create_context,
                                       wire::CreateContext{context.handle, server_device, context.flags});
  if (result == CUDA_SUCCESS) context.on_server.store(true, std::memory_order_release);
  return result;
}

CUresult per_thread_stream(Context& context, uint64_t* stream) {
  auto& streams = thread_state().streams;
  const uint32_t epoch = context.epoch.load();
  for (const auto& known : streams) {
    if (known.context == context.handle && known.epoch == epoch) {
      *stream = known.stream;
      return CUDA_SUCCESS;
    }
  }
  CUstream made = nullptr;
  const CUresult result = create_stream(context, CU_STREAM_DEFAULT, 0, &made);
  if (result != CUDA_SUCCESS) return result;
  *stream = cuda::handle_bits(made);
  streams.push_back({context.handle, epoch, *stream});
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
