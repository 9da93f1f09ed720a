// Result<T>: a value or an Error. Used on the data path instead of exceptions.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace gpupool {

enum class ErrorCode {
  closed,       // the peer ended the connection in an orderly way
  reset,        // the peer's system ended the connection: its process is gone, or something between resets it
  lost,         // timed out or unreachable, or ended in the middle of something
  refused,      // rejected by the peer; the message says why
  suspended,    // rejected by the peer until what it has suspended is resumed
  malformed,    // the peer broke the protocol
  limit,        // a size or count above what this side accepts
  invalid,      // bad argument or configuration on this side
  unavailable,  // the operating system or a library could not provide something
};

struct Error {
  ErrorCode code = ErrorCode::unavailable;
  std::string message;  // one line for users: what happened, to what, what to do
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace gpupool
