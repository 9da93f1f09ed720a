// Tests every row of the call table generically: arguments that the client encodes reach the worker's
// function unchanged, the reply reaches the caller's memory, and a request truncated at any byte or with an
// address outside the session's memory is rejected.
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "protocol/calls/codec.h"
#include "tests/support/catch.h"

namespace {

using namespace gpupool;
using namespace gpupool::cuda;
using namespace gpupool::cuda::role;

// The client's side of a session: every handle is live, and new handles count up.
struct Ends {
  uint64_t next = 1;
  uint64_t mint(Kind kind) { return make_handle(kind, 1, static_cast<uint32_t>(next++)); }
  void retire(uint64_t) {}
  bool live(Kind, uint64_t) const { return true; }
  uint64_t stream(uint64_t handle) const { return handle; }
  CUdevice device(CUdevice ordinal) const { return ordinal; }
};

// The worker's side: the object behind a handle has the handle's bits, so that arguments can be compared.
struct Table {
  std::optional<void*> resolve(Kind, uint64_t handle) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(handle));
  }
  void bind(Kind, uint64_t handle, void*) { bound.insert(handle); }
  void unbind(uint64_t handle) { unbound.insert(handle); }
  std::optional<CUstream> stream(uint64_t handle) { return handle_from_bits<CUstream>(handle); }
  std::optional<CUdevice> device(CUdevice number) const { return number; }
  std::set<uint64_t> bound, unbound;
};

// The session's memory: all of it, or none.
struct Memory {
  bool all = true;
  bool owns(uint64_t, uint64_t) const { return all; }
  bool in_range(uint64_t, uint64_t) const { return all; }
};

constexpr size_t kItems = 3;  // value of all counts

// Memory for pointer parameters, filled so that every byte differs from its neighbours.
struct Arena {
  std::vector<std::unique_ptr<std::byte[]>> pieces;
  template <class T>
  T* make(uint8_t seed) {
    using V = std::remove_const_t<T>;
    constexpr size_t kAlignment = 128;
    const size_t bytes = sizeof(V) * (kItems + 1) + 64;
    pieces.push_back(std::make_unique<std::byte[]>(bytes + kAlignment));
    std::byte* memory = pieces.back().get();
    memory += kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment;
    for (size_t i = 0; i < bytes; ++i) memory[i] = std::byte(seed + i);
    memory[bytes - 1] = std::byte{0};  // terminates strings
    return reinterpret_cast<T*>(memory);
  }
};

template <class Role, class A>
constexpr bool kIsHandle = false;
template <Kind K, class A>
constexpr bool kIsHandle<role::handle<K>, A> = true;
template <Kind K, class A>
constexpr bool kIsHandle<role::handle_in_use<K>, A> = true;
template <Kind K, class A>
constexpr bool kIsHandle<role::destroyed_handle<K>, A> = true;

template <class Role>
constexpr Kind kKind = Kind::none;
template <Kind K>
constexpr Kind kKind<role::handle<K>> = K;
template <Kind K>
constexpr Kind kKind<role::handle_in_use<K>> = K;
template <Kind K>
constexpr Kind kKind<role::destroyed_handle<K>> = K;

template <class Role>
constexpr bool kIsInArray = false;
template <size_t N>
constexpr bool kIsInArray<role::in_array<N>> = true;

template <size_t N, size_t K>
constexpr bool kIsInArray<role::in_array_less<N, K>> = true;
template <class Role>
constexpr size_t kLess = 0;
template <size_t N, size_t K>
constexpr size_t kLess<role::in_array_less<N, K>> = K;

// A CUdeviceptr or flags, of which only number and guarded_device_address are not checked by the row.
template <class Role, class A>
constexpr bool kIsCheckedAddress =
    std::is_same_v<A, CUdeviceptr> && !kIsHandle<Role, A> && !std::is_same_v<Role, role::number> &&
    !std::is_same_v<Role, role::guarded_device_address>;

CUlaunchConfig sample_config() {
  static CUlaunchAttribute attributes[2];
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;  // not forwarded
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim.x = 2;
  return {1, 2, 3, 4, 5, 6, 7, nullptr, attributes, 2};
}

template <class Role, class A>
A sample(Arena& arena, uint8_t seed) {
  if constexpr (std::is_same_v<Role, role::launch_shape>) {
    static const CUlaunchConfig config = sample_config();
    return &config;
  } else if constexpr (std::is_same_v<Role, role::address>) {
    return reinterpret_cast<A>(uintptr_t{0x1000} * seed);
  } else if constexpr (kIsHandle<Role, A>) {
    return handle_from_bits<A>(make_handle(kKind<Role>, 7, seed));
  } else if constexpr (std::is_same_v<Role, role::stream>) {
    return handle_from_bits<A>(make_handle(Kind::stream, 7, seed));
  } else if constexpr (std::is_same_v<Role, role::c_string>) {
    return "a name";
  } else if constexpr (std::is_pointer_v<A>) {
    return arena.make<std::remove_pointer_t<A>>(seed);
  } else if constexpr (std::is_integral_v<A> || std::is_enum_v<A>) {
    return static_cast<A>(kItems);  // may be a count
  } else {
    A value;
    std::memset(&value, seed, sizeof value);
    return value;
  }
}

// The driver's side: records the bytes of its arguments and writes a pattern into its outputs.
thread_local std::vector<std::string> seen;

template <class Role, class A>
void note(A argument) {
  if constexpr (std::is_same_v<Role, role::c_string>) {
    seen.emplace_back(argument);
  } else if constexpr (std::is_same_v<Role, role::launch_shape>) {
    seen.emplace_back(reinterpret_cast<const char*>(argument), offsetof(CUlaunchConfig, attrs));
    const CUlaunchAttribute& last = argument->attrs[argument->numAttrs - 1];
    seen.emplace_back(reinterpret_cast<const char*>(&last), sizeof last);
  } else if constexpr (!std::is_pointer_v<A> || std::is_same_v<Role, role::address> || kIsHandle<Role, A> ||
                       std::is_same_v<Role, role::stream>) {
    seen.emplace_back(reinterpret_cast<const char*>(&argument), sizeof argument);
  } else if constexpr (std::is_same_v<Role, role::in> || std::is_same_v<Role, role::in_or_null>) {
    seen.emplace_back(reinterpret_cast<const char*>(argument), sizeof *argument);
  } else if constexpr (kIsInArray<Role>) {
    seen.emplace_back(reinterpret_cast<const char*>(argument), (kItems - kLess<Role>)*sizeof *argument);
  } else {
    seen.emplace_back();  // an output
    std::memset(static_cast<void*>(argument), 0x5a, sizeof *argument);
  }
}

template <class Function, class... Roles>
struct Recorder;
template <class... A, class... Roles>
struct Recorder<CUresult (*)(A...), Roles...> {
  static CUresult call(A... arguments) {
    (note<Roles, A>(arguments), ...);
    return CUDA_SUCCESS;
  }
};

// Pointers to memory of the program, which may be null or not. Sample arrays have items.
template <class Role, class A>
constexpr bool kIsPointer =
    std::is_pointer_v<A> && !kIsHandle<Role, A> && !std::is_same_v<Role, role::stream> &&
    !std::is_same_v<Role, role::address> && !std::is_same_v<Role, role::c_string>;
template <class Role>
constexpr bool kMayBeNull = std::is_same_v<Role, role::in_or_null> || std::is_same_v<Role, role::out_or_null>;

// Passes null for one pointer after the other.
template <class Function, class... Roles>
struct CheckNull;
template <class... A, class... Roles>
struct CheckNull<CUresult (*)(A...), Roles...> {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  static inline int calls = 0;
  static CUresult call(A...) {
    ++calls;
    return CUDA_SUCCESS;
  }
  template <size_t I>
  static void check(typename Row::Args args, bool may_be_null) {
    INFO("parameter " << I);
    std::get<I>(args) = nullptr;
    Ends ends;
    wire::Buffer request, reply;
    wire::Writer writer(request), reply_writer(reply);
    // Arrays are only rejected by the worker: the client does not compare them with their length.
    if (may_be_null) CHECK(Row::check(args, ends) == CUDA_SUCCESS);
    Row::write_request(writer, args, ends);
    wire::Reader reader(request);
    Table table;
    calls = 0;
    const auto result = Row::execute(&call, reader, reply_writer, table, Memory{});
    CHECK(result == (may_be_null ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
    CHECK(calls == (may_be_null ? 1 : 0));
    wire::Reader reply_reader(reply);
    if (may_be_null) CHECK(Row::read_reply(reply_reader, args));
  }
  template <size_t I, class Role, class Argument>
  static void check_parameter(const typename Row::Args& args) {
    if constexpr (kIsPointer<Role, Argument> && !kMakes<Role>) check<I>(args, kMayBeNull<Role>);
  }
  static void run() {
    Arena arena;
    uint8_t seed = 1;
    [[maybe_unused]] const auto next = [&] { return seed++; };
    const typename Row::Args args{sample<Roles, A>(arena, next())...};
    [&]<size_t... I>(std::index_sequence<I...>) {
      (check_parameter<I, Roles, A>(args), ...);
    }(std::index_sequence_for<A...>{});
  }
};

template <class Function, class... Roles>
struct Check;
template <class... A, class... Roles>
struct Check<CUresult (*)(A...), Roles...> {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  static void run() {
    Arena arena;
    uint8_t seed = 1;
    [[maybe_unused]] const auto another = [&] { return seed = static_cast<uint8_t>(seed + 11); };
    const typename Row::Args args{sample<Roles, A>(arena, another())...};
    Ends ends;
    wire::Buffer request;
    wire::Writer writer(request);
    CHECK(Row::check(args, ends) == CUDA_SUCCESS);
    Row::write_request(writer, args, ends);

    std::vector<std::string> sent;
    seen.clear();
    std::apply([](auto... argument) { (note<Roles, A>(argument), ...); }, args);
    sent.swap(seen);
    Table table;
    wire::Buffer reply;
    wire::Writer reply_writer(reply);
    wire::Reader reader(request);
    const auto result =
        Row::execute(&Recorder<CUresult (*)(A...), Roles...>::call, reader, reply_writer, table, Memory{});
    REQUIRE(result.has_value());
    CHECK(*result == CUDA_SUCCESS);
    CHECK(seen == sent);

    if constexpr ((kIsCheckedAddress<Roles, A> || ...)) {
      wire::Reader again(request);
      wire::Buffer ignored;
      wire::Writer ignored_writer(ignored);
      seen.clear();
      const auto refused = Row::execute(&Recorder<CUresult (*)(A...), Roles...>::call, again, ignored_writer,
                                        table, Memory{false});
      CHECK(refused == CUDA_ERROR_INVALID_VALUE);
      CHECK(seen.empty());  // the driver was not called
    }

    // The reply is written to the caller's memory.
    wire::Reader reply_reader(reply);
    CHECK(Row::read_reply(reply_reader, args));

    for (size_t cut = 0; cut < request.size(); ++cut) {
      wire::Reader partial(std::span<const std::byte>(request).first(cut));
      wire::Buffer ignored;
      wire::Writer ignored_writer(ignored);
      seen.clear();
      const auto outcome = Row::execute(&Recorder<CUresult (*)(A...), Roles...>::call, partial,
                                        ignored_writer, table, Memory{});
      CHECK_FALSE(outcome.has_value());
      CHECK(seen.empty());  // the driver was not called
    }
    request.push_back(std::byte{0});
    wire::Reader longer(request);
    CHECK_FALSE(
        Row::execute(&Recorder<CUresult (*)(A...), Roles...>::call, longer, reply_writer, table, Memory{})
            .has_value());
    // A reply with a wrong length is detected.
    reply.push_back(std::byte{0});
    wire::Reader long_reply(reply);
    CHECK_FALSE(Row::read_reply(long_reply, args));
  }
};

}  // namespace

TEST_CASE("every call carries its arguments and results and rejects truncated messages") {
  size_t rows = 0;
#define CUDA_CALL(id, name, mode, ...)                          \
  {                                                             \
    INFO(#name);                                                \
    Check<decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>::run(); \
    ++rows;                                                     \
  }
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
  CHECK(rows > 40);
}

TEST_CASE("a null pointer does not reach the driver unless its role permits it"){
#define CUDA_CALL(id, name, mode, ...)                              \
  {                                                                 \
    INFO(#name);                                                    \
    CheckNull<decltype(&::name) __VA_OPT__(, ) __VA_ARGS__>::run(); \
  }
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
}

TEST_CASE("each function is in the call table once") {
  std::set<std::string> names;
#define CUDA_CALL(id, name, ...) CHECK(names.insert(#name).second);
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
  std::set<std::string> by_hand;
#define CUDA_BY_HAND(name) CHECK(by_hand.insert(#name).second);
#include "protocol/calls/calls.def"
  for (const auto& name : by_hand) {
    INFO(name);
    CHECK(names.count(name) == 0);
  }
}

// Functions that have a common body or row are cheaper to read and to test (CONTRIBUTING.md, "Adding a driver
// function").
TEST_CASE("fewer than 250 functions are written by hand") {
  size_t by_hand_alone = 0;
#undef CUDA_CALL
#undef CUDA_BY_HAND
#define CUDA_CALL(...)
#define CUDA_OLDER(...)
#define CUDA_OLDER_ON_STREAM(...)
#define CUDA_OLDER_ALLOCATION(...)
#define CUDA_ROW_COPY(...)
#define CUDA_ROW_COPY_ASYNC(...)
#define CUDA_ANSWER(...)
#define CUDA_ANSWER_ON_STREAM(...)
#define CUDA_CHECK(...)
#define CUDA_GRAPH_NODE(...)
#define CUDA_BY_HAND(name) ++by_hand_alone;
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
  CHECK(by_hand_alone < 250);
  CHECK(by_hand_alone > 100);
}
