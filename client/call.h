// From an exported function to the wire: what every row of protocol/cuda/calls.def does on the client.
//
// rows::cuX::forward has cuX's own type. exports.cc makes it the exported symbol; hand-written calls (client/calls/) use it
// as a function. Nothing is thrown out of here.
#pragma once
#include <new>
#include <type_traits>
#include <utility>

#include "client/process.h"
#include "protocol/cuda/codec.h"
#include "protocol/cuda/exports.h"

namespace gpupool::client {

using cuda::Kind;
using cuda::Mode;

// What a row's parameters need of the session (codec.h calls this `Ends`).
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
    return object && object->come_to(session) == CUDA_SUCCESS;
  }
  uint64_t stream(uint64_t handle) const { return handle; }
  CUdevice device(CUdevice ordinal) const {
    const Device* device = find_device(ordinal);
    return device && device->session == &session ? device->server_ordinal : -1;
  }
};

// CU_STREAM_PER_THREAD becomes the calling thread's own stream; CU_STREAM_LEGACY becomes null.
CUresult resolve_stream(Context& context, CUstream& stream);
CUresult create_stream(Context& context, unsigned flags, int priority, CUstream* stream);
// What a stream is of; the special ones are the current context's.
CUresult context_of_stream(CUstream stream, Context** context);
// The (resolved) stream has got work that may write the program's memory.
void note_host_writer(Context& context, CUstream stream);
// A stream of the client's own in the context, that waits for no other.
CUresult own_stream(Context& context, CUstream* stream);

// Where a call goes: to a session, and there to a context.
struct Place {
  Session* session = nullptr;
  Context* context = nullptr;  // null: none of this session is current
};
// Of what the calling thread's context says and what the call names, the latter decides, if it belongs to another server:
// then its own context (null: it is gone) takes the place of the current one.
void go_to(const Object& named, Place& place);
void go_to(const Device& named, Place& place);

// The calling thread's context and its session, or the code to return.
CUresult ready_with_context(Session** session, Context** context);
// The same, and the stream resolved and found alive; a stream of another server than the context's: go_to().
CUresult ready_with_stream(Session** session, Context** context, CUstream& stream);
// While many commands wait for their streams (wire::kBacklogLong): until the (resolved) stream may have more. The caller holds no lock that the
// program's host functions need.
CUresult await_room(Session& session, Context& context, CUstream stream);
// Both: for calls that give the stream work.
CUresult ready_for_work(Session** session, Context** context, CUstream& stream);

// Runs a hand-written call; nothing gets past the C boundary.
template <class Body>
CUresult guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// What a parameter of a role names. A context that is an argument says what a call is about, not where it goes.
template <class Role>
constexpr Kind kNamed = Kind::none;
template <Kind K>
constexpr Kind kNamed<cuda::role::handle<K>> = K == Kind::context ? Kind::none : K;
template <Kind K>
constexpr Kind kNamed<cuda::role::handle_in_use<K>> = K;
template <Kind K>
constexpr Kind kNamed<cuda::role::dead_handle<K>> = K;
template <>
inline constexpr Kind kNamed<cuda::role::stream> = Kind::stream;

template <uint16_t Id, Mode M, class Function, class... Roles>
struct Call;

template <uint16_t Id, Mode M, class... A, class... Roles>
struct Call<Id, M, CUresult (*)(A...), Roles...> {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  static constexpr uint16_t kId = Id;
  static constexpr bool kNeedsContext = M == Mode::async || M == Mode::sync || M == Mode::once;
  static constexpr bool kWaits = M != Mode::async && M != Mode::async_without_context;
  static constexpr bool kOnce = M == Mode::once || M == Mode::once_without_context;
  // Answers about kernels depend on what is set of them (rows of module.def), or of their context.
  static constexpr bool kSetsKernels = !kOnce && (Id >> 8 == 0x05 || Id == 0x0103 || Id == 0x0105);

  static CUresult forward(A... arguments) noexcept { return run(typename Row::Args(arguments...)); }
  // The _ptsz twin: the null stream is the calling thread's.
  static CUresult forward_per_thread(A... arguments) noexcept {
    (null_to_per_thread(arguments), ...);
    return run(typename Row::Args(arguments...));
  }

 private:
  template <class T>
  static void null_to_per_thread(T& argument) {
    if constexpr (std::is_same_v<T, CUstream>) {
      argument = or_per_thread(argument);
    }
  }
  template <class T>
  static CUresult resolve(Context* context, T& argument) {
    if constexpr (std::is_same_v<T, CUstream> && kNeedsContext) return resolve_stream(*context, argument);
    else return CUDA_SUCCESS;
  }
  template <class Write>
  static CUresult ask_once(Session& session, Context* context, const Write& write, wire::Buffer& reply) {
    if (const CUresult early = session.before_call(context); early != CUDA_SUCCESS) return early;
    wire::Buffer request;
    wire::Writer writer(request);
    write(writer);
    std::string key = Answers::key(Id, Session::handle_of(context), request);
    if (auto known = session.answers().find(key)) {
      reply = std::move(*known);
      return CUDA_SUCCESS;
    }
    const CUresult result = session.call(Id, context, write, reply);
    if (result == CUDA_SUCCESS) session.answers().keep(std::move(key), reply);
    return result;
  }
  static constexpr bool kHasStream = (std::is_same_v<Roles, cuda::role::stream> || ...);
  static constexpr bool kHasDevice = (std::is_same_v<Roles, cuda::role::device> || ...);
  // A row with a stream goes where the stream is, a special one being the current context's; else where a device is that it
  // names, else where the first of its handles is.
  template <class Role, class T>
  static bool find_place(T argument, Place& place) {
    if constexpr (std::is_same_v<Role, cuda::role::device>) {
      if (const Device* device = find_device(argument)) return go_to(*device, place), true;
    } else if constexpr (kNamed<Role> != Kind::none && !kHasDevice && (!kHasStream || kNamed<Role> == Kind::stream)) {
      if (const Object* object = handles().find(kNamed<Role>, cuda::handle_bits(argument))) return go_to(*object, place), true;
    }
    return false;
  }
  static CUresult run(typename Row::Args arguments) noexcept {
    return guarded([&]() -> CUresult {
      if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
      CUresult result = CUDA_SUCCESS;
      Context* current = current_context(&result);
      if (!current && kNeedsContext) return result;
      Place place{current ? current->session : sessions().front().get(), current};
      result = CUDA_SUCCESS;
      std::apply([&](auto&... argument) {
        ((result = result == CUDA_SUCCESS ? resolve(current, argument) : result), ...);
        (void)(find_place<Roles>(argument, place) || ...);
      }, arguments);
      if (result != CUDA_SUCCESS) return result;
      return at(place, arguments);
    });
  }

 public:
  // The call, sent to a place that the caller has found.
  static CUresult at(const Place& place, typename Row::Args arguments) {
    auto [session, context] = place;
    if (kNeedsContext && !context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    Ends ends{*session, context};
    if (const CUresult result = Row::check(arguments, ends); result != CUDA_SUCCESS) return result;
    const auto write = [&](wire::Writer& writer) { Row::write_request(writer, arguments, ends); };
    if constexpr (kSetsKernels) session->answers().forget();
    if constexpr (!kWaits) {
      return session->post(Id, context, write);
    } else {
      wire::Buffer reply;
      const CUresult result = kOnce ? ask_once(*session, context, write, reply) : session->call(Id, context, write, reply);
      if (result != CUDA_SUCCESS) return result;
      wire::Reader reader(reply);
      if (Row::read_reply(reader, arguments)) return CUDA_SUCCESS;
      session->fail({ErrorCode::malformed, "its reply does not fit the call"});
      return Session::failure();
    }
  }
};

namespace rows {
using namespace cuda::role;
#define CUDA_CALL(id, name, mode, ...) using name = Call<id, Mode::mode, decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>;
#define CUDA_CALL_PTSZ CUDA_CALL
#define CUDA_CALL_QUIET CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/cuda/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_PTSZ
#undef CUDA_CALL_QUIET
#undef CUDA_BY_HAND
}  // namespace rows

}  // namespace gpupool::client
