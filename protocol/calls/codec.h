// Turns a row of the call table (function type and one role per parameter) into its four halves: the client
// writes the request and reads the reply; the worker reads the request, calls the function and writes the
// reply. parameter.h describes `Ends`, `Table` and `Memory`. No state; any thread that may use those.
#pragma once
#include <optional>
#include <tuple>
#include <utility>

#include "protocol/calls/device_address.h"
#include "protocol/calls/pointer_parameter.h"

namespace gpupool::cuda {

// The codec of one row.
template <class Function, class... Roles>
struct Row;

template <class... A, class... Roles>
struct Row<CUresult (*)(A...), Roles...> {
  static_assert(sizeof...(A) == sizeof...(Roles), "one role per parameter");
  using Function = CUresult (*)(A...);
  using Args = std::tuple<A...>;
  using Slots = std::tuple<typename Parameter<Roles, A>::Slot...>;
  using Indices = std::index_sequence_for<A...>;

  // --- client ---
  template <class Ends>
  static CUresult check(const Args& args, const Ends& ends) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      CUresult result = CUDA_SUCCESS;
      ((result = result == CUDA_SUCCESS ? Parameter<Roles, A>::check(std::get<I>(args), ends) : result), ...);
      return result;
    }(Indices{});
  }
  template <class Ends>
  static void write_request(Writer& writer, const Args& args, Ends& ends) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      (Parameter<Roles, A>::write(writer, std::get<I>(args), args, ends), ...);
    }(Indices{});
  }
  // False: the server sent anything but this row's reply.
  static bool read_reply(Reader& reader, const Args& args) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      (Parameter<Roles, A>::read_reply(reader, std::get<I>(args), args), ...);
    }(Indices{});
    return reader.finished();
  }

  // --- worker ---
  // Calls visit(role, slot) for each parameter of a request. False: the request is malformed.
  template <class Visit>
  static bool visit(Reader& reader, Visit&& visit) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      Slots slots;
      const bool read = (Parameter<Roles, A>::read(reader, std::get<I>(slots)) && ...);
      if (read && reader.finished()) (visit(Roles{}, std::get<I>(slots)), ...);
      return read && reader.finished();
    }(Indices{});
  }
  // nullopt: the request is malformed, and the session ends. The reply's body is written only on success.
  template <class Table, class Memory>
  static std::optional<CUresult> execute(Function function, Reader& reader, Writer& writer, Table& table,
                                         const Memory& memory) {
    return [&]<size_t... I>(std::index_sequence<I...>) -> std::optional<CUresult> {
      Slots slots;
      const bool read = (Parameter<Roles, A>::read(reader, std::get<I>(slots)) && ...);
      if (!read || !reader.finished()) return std::nullopt;
      if (!function) return CUDA_ERROR_NOT_SUPPORTED;
      CUresult result = CUDA_SUCCESS;
      ((result = result == CUDA_SUCCESS ? Parameter<Roles, A>::resolve(std::get<I>(slots), table) : result),
       ...);
      if (result != CUDA_SUCCESS) return result;
      [[maybe_unused]] const Args values(Parameter<Roles, A>::argument(std::get<I>(slots))...);
      ((result = result == CUDA_SUCCESS ? Parameter<Roles, A>::prepare(std::get<I>(slots), values) : result),
       ...);
      if (result != CUDA_SUCCESS) return result;
      ((result = result == CUDA_SUCCESS
                     ? Parameter<Roles, A>::check_memory(std::get<I>(slots), values, memory)
                     : result),
       ...);
      if (result != CUDA_SUCCESS) return result;
      result = function(Parameter<Roles, A>::argument(std::get<I>(slots))...);
      if (result != CUDA_SUCCESS) return result;
      (Parameter<Roles, A>::finish(std::get<I>(slots), table), ...);
      (Parameter<Roles, A>::write_reply(writer, std::get<I>(slots)), ...);
      return result;
    }(Indices{});
  }
};

}  // namespace gpupool::cuda
