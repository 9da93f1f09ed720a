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

namespace gpupool::client {

using cuda::Kind;
using cuda::Mode;

// What a row's parameters need of the session (codec.h calls this `Ends`).
struct Ends {
  Session& session;
  Context* context;
  uint64_t mint(Kind kind) const {
    auto object = std::make_unique<Object>();
    object->context = Session::handle_of(context);
    return session.handles().mint(kind, std::move(object));
  }
  void retire(uint64_t handle) const { session.handles().retire(handle); }
  bool live(Kind kind, uint64_t handle) const { return session.handles().find(kind, handle) != nullptr; }
  uint64_t stream(uint64_t handle) const { return handle; }
  CUdevice device(CUdevice ordinal) const {
    const Device* device = session.device(ordinal);
    return device ? device->server_ordinal : -1;
  }
};

// CU_STREAM_PER_THREAD becomes the calling thread's own stream; CU_STREAM_LEGACY becomes null.
CUresult resolve_stream(Session& session, Context& context, CUstream& stream);
CUresult create_stream(Session& session, Context& context, unsigned flags, int priority, CUstream* stream);

// The null stream of a function's _ptsz or _ptds twin.
inline CUstream or_per_thread(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

// The session and the calling thread's context, or the code to return.
CUresult ready_with_context(Session** session, Context** context);
// The same, and the stream resolved and found alive.
CUresult ready_with_stream(Session** session, Context** context, CUstream& stream);

template <uint16_t Id, Mode M, class Function, class... Roles>
struct Call;

template <uint16_t Id, Mode M, class... A, class... Roles>
struct Call<Id, M, CUresult (*)(A...), Roles...> {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  static constexpr uint16_t kId = Id;
  static constexpr bool kNeedsContext = M == Mode::async || M == Mode::sync;
  static constexpr bool kWaits = M == Mode::sync || M == Mode::sync_without_context;

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
  static CUresult resolve(Session& session, Context* context, T& argument) {
    if constexpr (std::is_same_v<T, CUstream> && kNeedsContext) return resolve_stream(session, *context, argument);
    else return CUDA_SUCCESS;
  }
  static CUresult run(typename Row::Args arguments) noexcept {
    try {
      Session* session = nullptr;
      if (const CUresult result = ready(&session); result != CUDA_SUCCESS) return result;
      CUresult result = CUDA_SUCCESS;
      Context* context = current_context(*session, &result);
      if (!context && kNeedsContext) return result;
      result = CUDA_SUCCESS;
      std::apply([&](auto&... argument) {
        ((result = result == CUDA_SUCCESS ? resolve(*session, context, argument) : result), ...);
      }, arguments);
      if (result != CUDA_SUCCESS) return result;
      Ends ends{*session, context};
      if (result = Row::check(arguments, ends); result != CUDA_SUCCESS) return result;
      const auto write = [&](wire::Writer& writer) { Row::write_request(writer, arguments, ends); };
      if constexpr (!kWaits) {
        return session->post(Id, context, write);
      } else {
        wire::Buffer reply;
        result = session->call(Id, context, write, reply);
        if (result != CUDA_SUCCESS) return result;
        wire::Reader reader(reply);
        if (Row::read_reply(reader, arguments)) return CUDA_SUCCESS;
        session->fail({ErrorCode::malformed, "its reply does not fit the call"});
        return Session::failure();
      }
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
      return CUDA_ERROR_UNKNOWN;
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

}  // namespace gpupool::client
