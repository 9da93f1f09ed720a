// Tests that the client rejects truncated, oversized and malformed replies.
#include "client/session/replies.h"

#include "protocol/wire/writer.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

template <class... T>
wire::Buffer bytes_of(const T&... values) {
  wire::Buffer buffer;
  wire::Writer writer(buffer);
  (writer.put(values), ...);
  return buffer;
}

wire::Buffer names_reply(uint64_t count, const std::string& text) {
  wire::Buffer reply = bytes_of(wire::KernelNames{count});
  for (const char c : text) reply.push_back(static_cast<std::byte>(c));
  return reply;
}

const std::string kTwo("a\0bc\0", 5);

}  // namespace

TEST_CASE("reads kernel names from several replies") {
  std::vector<std::string> names;
  bool complete = true;
  REQUIRE(read_kernel_names(names_reply(3, kTwo), &names, &complete));
  CHECK_FALSE(complete);
  REQUIRE(read_kernel_names(names_reply(3, std::string("d\0", 2)), &names, &complete));
  CHECK(complete);
  CHECK(names == std::vector<std::string>{"a", "bc", "d"});
}

TEST_CASE("refuses replies with malformed lists of kernel names") {
  bool complete = false;
  std::vector<std::string> none, two{"a", "bc"};
  CHECK_FALSE(read_kernel_names(names_reply(2, kTwo + "d"), &none, &complete));
  none.clear();
  CHECK_FALSE(read_kernel_names(names_reply(1, kTwo), &none, &complete));
  CHECK_FALSE(read_kernel_names(names_reply(3, ""), &two, &complete));
  CHECK_FALSE(read_kernel_names({}, &two, &complete));
  none.clear();
  CHECK_FALSE(read_kernel_names(names_reply(UINT64_MAX, std::string(wire::kMaxNamesBytes + 1, '\0')), &none,
                                &complete));
}

TEST_CASE("accepts only complete kernel descriptions with valid parameter sizes") {
  const wire::FunctionInfo info{.attributes = {7}, .parameter_count = 1, .reserved = 0};
  KernelDescription description;
  REQUIRE(read_kernel_description(bytes_of(info, wire::ParameterInfo{8, 4}), &description));
  CHECK(description.parameter_bytes == 12);
  CHECK(description.attributes[0] == 7);
  CHECK_FALSE(read_kernel_description(bytes_of(info), &description));
  CHECK_FALSE(read_kernel_description(bytes_of(info, wire::ParameterInfo{8, 4}, '\0'), &description));
  CHECK_FALSE(read_kernel_description(bytes_of(info, wire::ParameterInfo{0xffffffff, 2}), &description));
}

TEST_CASE("refuses a variable whose end exceeds the address space") {
  wire::GlobalInfo info;
  CHECK(read_global(bytes_of(wire::GlobalInfo{4096, 16, 1, 0}), &info));
  CHECK(info.size == 16);
  CHECK_FALSE(read_global(bytes_of(wire::GlobalInfo{UINT64_MAX - 8, 16, 1, 0}), &info));
  CHECK_FALSE(read_global(bytes_of(wire::GlobalInfo{4096, UINT64_MAX, 1, 0}), &info));
}

TEST_CASE("refuses a reply without a name for shared memory") {
  wire::SharedName name{.magic = wire::kSharedName, .kind = 1, .server = 5};
  CHECK(read_shared_name(bytes_of(name), &name));
  CHECK_FALSE(read_shared_name({}, &name));
  name = {.magic = wire::kSharedName, .kind = 1, .server = 0};
  CHECK_FALSE(read_shared_name(bytes_of(name), &name));
  wire::ImportedMemory memory;
  CHECK_FALSE(read_imported_memory(bytes_of(uint32_t{1}), &memory));
}
