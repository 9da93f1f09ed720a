// The path of a table row (protocol/calls/calls.def) from the exported function to the wire. Any thread of
// the program.
//
// rows::cuX::forward has the type of cuX. exports.cc makes it the exported symbol; the hand-written calls
// (client/api/) use it as a function. Nothing here throws across forward() and forward_per_thread().
#pragma once
#include <new>
#include <type_traits>
#include <utility>

#include "client/process/process.h"
#include "client/session/quota_refusals.h"
#include "client/timeline/timeline.h"
#include "protocol/calls/codec.h"
#include "protocol/calls/row_ids.h"
#include "protocol/driver/exports.h"

namespace gpupool::client {

using cuda::Kind;
using cuda::Mode;

// The session and context of a call. A row's codec (codec.h) uses it to create and look up handles, and to
// translate them to the server's numbers.
struct Ends {
  Session& session;
  Context* context;
  uint64_t mint(Kind kind) const {
    auto object = std::make_unique<Object>();
    object->context = context ? context->owner().handle : 0;
    return session.mint(kind, std::move(object));
  }
  void retire(uint64_t handle) const { handles().retire(handle); }
  bool live(Kind kind, uint64_t handle) const {
    Object* object = handles().find(kind, handle);
    return object && object->ensure_loaded(session) == CUDA_SUCCESS;
  }
  uint64_t stream(uint64_t handle) const { return handle; }
  CUdevice device(CUdevice ordinal) const {
    const Device* device = find_device(ordinal);
    return device && device->session == &session ? device->server_ordinal : -1;
  }
};

// Replaces CU_STREAM_PER_THREAD by the calling thread's own stream and CU_STREAM_LEGACY by null.
CUresult resolve_stream(Context& context, CUstream& stream);
CUresult create_stream(Context& context, unsigned flags, int priority, CUstream* stream);
// Returns the context that the stream was made in; for special streams, the current context.
CUresult context_of_stream(CUstream stream, Context** context);
// Notes that the (resolved) stream has work that may write the program's memory.
void note_host_memory_write(Context& context, CUstream stream);
// Returns a non-blocking stream of the client's own in the context.
CUresult internal_stream(Context& context, CUstream* stream);

// The destination of a call: a session, and a context of that session.
struct CallTarget {
  Session* session = nullptr;
  Context* context = nullptr;  // null: no context of this session is current
};
// If the named object or device belongs to another server, redirects the call there: its context replaces the
// current one (null if that context is gone).
void redirect(const Object& named, CallTarget& target);
void redirect(const Device& named, CallTarget& target);

// Returns the calling thread's context and its session, or the error code to return to the program.
CUresult require_context(Session** session, Context** context);
// The same for a context that a call names; null: the calling thread's.
CUresult find_context(CUcontext given, Session** session, Context** context);
// require_context(), and resolves the stream and checks that it is alive. A stream of another server
// redirects the call: redirect().
CUresult require_stream(Session** session, Context** context, CUstream& stream);
// While the server reports a long backlog (wire::kSendAwaitRoom), blocks until the (resolved) stream may get
// more commands. The caller must hold no lock that the program's host functions need.
CUresult await_room(Session& session, Context& context, CUstream stream);
// require_stream() and await_room(): for calls that give the stream work.
CUresult require_stream_for_work(Session** session, Context** context, CUstream& stream);

// Runs a call. Turns exceptions into CUDA error codes, so that none crosses the C boundary. Prints which
// quota has refused memory. `function`: the caller's name, for the timeline.
template <class Body>
CUresult guarded(const char* function, Body&& body) noexcept {
  const timeline::Call call(function);
  try {
    const CUresult result = body();
    if (result == CUDA_ERROR_OUT_OF_MEMORY) [[unlikely]]
      quota_refusals().print();
    return result;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

template <class Body>
CUresult guarded(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return guarded(function, body);
}

// The kind of object that a parameter of this role names, for routing. A context as an argument is what the
// call is about and does not route it.
template <class Role>
constexpr Kind kNamed = Kind::none;
template <Kind K>
constexpr Kind kNamed<cuda::role::handle<K>> = K == Kind::context ? Kind::none : K;
template <Kind K>
constexpr Kind kNamed<cuda::role::handle_in_use<K>> = K;
template <Kind K>
constexpr Kind kNamed<cuda::role::destroyed_handle<K>> = K;
template <>
inline constexpr Kind kNamed<cuda::role::stream> = Kind::stream;

template <Kind K>
constexpr bool kNamesCode =
    K == Kind::function || K == Kind::kernel || K == Kind::module || K == Kind::library;

template <uint16_t Id, Mode M, class Function, class... Roles>
struct Call;

template <uint16_t Id, Mode M, class... A, class... Roles>
struct Call<Id, M, CUresult (*)(A...), Roles...> {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  static constexpr uint16_t kId = Id;
  static constexpr bool kNeedsContext = M == Mode::async || M == Mode::sync || M == Mode::once;
  static constexpr bool kWaits = M != Mode::async && M != Mode::async_without_context;
  static constexpr bool kOnce = M == Mode::once || M == Mode::once_without_context;
  // Cached replies about kernels depend on calls that name a kernel or its module, and on two settings of the
  // context.
  static constexpr bool kSetsKernels =
      !kOnce && ((kNamesCode<kNamed<Roles>> || ...) || Id == cuda::row_id::cuCtxSetCacheConfig ||
                 Id == cuda::row_id::cuCtxSetSharedMemConfig);

  static CUresult forward(A... arguments) noexcept { return run(typename Row::Args(arguments...)); }

 private:
  template <class T>
  static CUresult resolve(Context* context, T& argument) {
    if constexpr (std::is_same_v<T, CUstream> && kNeedsContext)
      return resolve_stream(*context, argument);
    else
      return CUDA_SUCCESS;
  }
  template <class Write>
  static CUresult ask_once(Session& session, Context* context, const Write& write, wire::Buffer& reply) {
    if (const CUresult early = session.before_call(context); early != CUDA_SUCCESS) return early;
    wire::Buffer request;
    wire::Writer writer(request);
    write(writer);
    std::string key = ReplyCache::key(Id, Session::handle_of(context), request);
    if (auto known = session.reply_cache().find(key)) {
      reply = std::move(*known);
      return CUDA_SUCCESS;
    }
    const CUresult result = session.call(Id, context, write, reply);
    if (result == CUDA_SUCCESS) session.reply_cache().keep(std::move(key), reply);
    return result;
  }
  static constexpr bool kHasStream = (std::is_same_v<Roles, cuda::role::stream> || ...);
  static constexpr bool kHasDevice = (std::is_same_v<Roles, cuda::role::device> || ...);
  // Routes a call: by its stream if the row has one (a special stream belongs to the current context), else
  // by the first device that it names, else by the first handle.
  template <class Role, class T>
  static bool find_target(T argument, CallTarget& target) {
    if constexpr (std::is_same_v<Role, cuda::role::device>) {
      if (const Device* device = find_device(argument)) return redirect(*device, target), true;
    } else if constexpr (kNamed<Role> != Kind::none && !kHasDevice &&
                         (!kHasStream || kNamed<Role> == Kind::stream)) {
      if (const Object* object = handles().find(kNamed<Role>, cuda::handle_bits(argument)))
        return redirect(*object, target), true;
    }
    return false;
  }
  static CUresult run(typename Row::Args arguments) noexcept {
    return guarded([&]() -> CUresult {
      if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
      CUresult result = CUDA_SUCCESS;
      Context* current = current_context(&result);
      if (!current && kNeedsContext) return result;
      CallTarget target{current ? current->session : sessions().front().get(), current};
      result = CUDA_SUCCESS;
      std::apply(
          [&](auto&... argument) {
            ((result = result == CUDA_SUCCESS ? resolve(current, argument) : result), ...);
            (void)(find_target<Roles>(argument, target) || ...);
          },
          arguments);
      if (result != CUDA_SUCCESS) return result;
      return at(target, arguments);
    });
  }

 public:
  // Makes the call at a target that the caller has chosen.
  static CUresult at(const CallTarget& target, typename Row::Args arguments) {
    auto [session, context] = target;
    if (kNeedsContext && !context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    Ends ends{*session, context};
    if (const CUresult result = Row::check(arguments, ends); result != CUDA_SUCCESS) return result;
    const auto write = [&](wire::Writer& writer) { Row::write_request(writer, arguments, ends); };
    if constexpr (kSetsKernels) session->reply_cache().forget();
    if constexpr (!kWaits) {
      return session->post(Id, context, write);
    } else {
      wire::Buffer reply;
      const CUresult result =
          kOnce ? ask_once(*session, context, write, reply) : session->call(Id, context, write, reply);
      if (result != CUDA_SUCCESS) return result;
      wire::Reader reader(reply);
      if (Row::read_reply(reader, arguments)) return CUDA_SUCCESS;
      session->fail({ErrorCode::malformed, "protocol error: the reply does not match the call"});
      return Session::failure();
    }
  }
};

namespace rows {
using namespace cuda::role;
#define CUDA_CALL(id, name, mode, ...) \
  using name = Call<id, Mode::mode, decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>;
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
}  // namespace rows

}  // namespace gpupool::client
