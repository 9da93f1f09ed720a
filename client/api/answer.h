// The common body of the calls that are answered from what the client knows of an object (CUDA_ANSWER and
// CUDA_CHECK of calls.def). subjects.h has the objects and their properties. Any thread.
#pragma once
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>

#include "client/session/call.h"

namespace gpupool::client {

// Finds the subject of a call: the object that the parameter of type Subject::Handle names or, if that is
// void, the one that Subject::find() finds without a parameter.
template <class Subject, class... A>
CUresult find_subject(Subject& subject, [[maybe_unused]] A... given) {
  if constexpr (std::is_void_v<typename Subject::Handle>)
    return subject.find();
  else
    return subject.find(std::get<typename Subject::Handle>(std::tuple<A...>(given...)));
}

template <class T, class Value>
CUresult give(T* to, const Value& value) {
  if constexpr (std::is_pointer_v<T> && std::is_same_v<Value, uint64_t>)
    *to = cuda::handle_from_bits<T>(value);
  else
    *to = static_cast<T>(value);
  return CUDA_SUCCESS;
}
template <class T, class Value>
CUresult give(T* to, const std::optional<Value>& value) {
  return value ? give(to, *value) : CUDA_ERROR_INVALID_VALUE;
}

// Property: member of Subject, or function without parameters. Its value goes to the pointer that is the
// function's other parameter; if there are several, it is a tuple.
template <class Function, class Subject, auto Property>
struct Answer;

template <class... A, class Subject, auto Property>
struct Answer<CUresult (*)(A...), Subject, Property> {
  static CUresult call(A... given) noexcept {
    return guarded([&]() -> CUresult {
      const auto outs = std::tuple_cat(as_out(given)...);
      const bool complete = std::apply([](auto*... out) { return (out && ...); }, outs);
      if constexpr (requires { Subject::enter(); }) {
        if (const CUresult result = Subject::enter(); result != CUDA_SUCCESS) return result;
        if (!complete) return CUDA_ERROR_INVALID_VALUE;
      }
      Subject subject;
      if (const CUresult result = find_subject(subject, given...); result != CUDA_SUCCESS) return result;
      if (!complete) return CUDA_ERROR_INVALID_VALUE;
      const auto& value = std::invoke(Property, subject);
      if constexpr (std::tuple_size_v<decltype(outs)> == 1)
        return give(std::get<0>(outs), value);
      else
        return give_all(outs, value, std::make_index_sequence<std::tuple_size_v<decltype(outs)>>{});
    });
  }
  // The _ptsz variant.
  static CUresult call_per_thread(A... given) noexcept { return call(or_per_thread(given)...); }

 private:
  template <class T>
  static auto as_out([[maybe_unused]] T argument) {
    if constexpr (std::is_same_v<T, typename Subject::Handle>)
      return std::tuple<>();
    else
      return std::tuple<T>(argument);
  }
  template <class Outs, class Values, size_t... I>
  static CUresult give_all(const Outs& outs, const Values& values, std::index_sequence<I...>) {
    ((void)give(std::get<I>(outs), std::get<I>(values)), ...);
    return CUDA_SUCCESS;
  }
};

// Finds the subject and returns Result.
template <class Function, class Subject, CUresult Result>
struct Check;

template <class... A, class Subject, CUresult Result>
struct Check<CUresult (*)(A...), Subject, Result> {
  static CUresult call(A... given) noexcept {
    return guarded([&]() -> CUresult {
      Subject subject;
      const CUresult result = find_subject(subject, given...);
      return result == CUDA_SUCCESS ? Result : result;
    });
  }
};

}  // namespace gpupool::client
