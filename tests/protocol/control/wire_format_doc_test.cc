// Tests that the example in docs/wire-format.md is what the code writes.
#include <fstream>
#include <map>
#include <sstream>

#include "protocol/control/hello_codec.h"
#include "protocol/wire/frame.h"
#include "tests/support/catch.h"

using namespace gpupool;

namespace {

// Returns the bytes of the example by the name of their part ("# hello").
std::map<std::string, std::string> example() {
  std::ifstream document(WIRE_FORMAT_DOCUMENT);
  std::map<std::string, std::string> parts;
  std::string part;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
    } else if (inside && line.starts_with("# ")) {
      part = line.substr(2);
    } else if (inside) {
      std::istringstream bytes(line.substr(0, line.find('#')));
      for (std::string byte; bytes >> byte;) parts[part] += static_cast<char>(std::stoi(byte, nullptr, 16));
    }
  }
  return parts;
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

TEST_CASE("the documented example is what the code writes") {
  auto parts = example();
  REQUIRE(parts.size() == 3);
  const std::string body = hello::encode(hello::Hello{.protocol_version = wire::kProtocolVersion,
                                                      .client_version = "0.1.0",
                                                      .cuda_version = 13000,
                                                      .program = "app",
                                                      .host = "n1",
                                                      .pid = 77});
  CHECK(parts["hello"] == bytes_of(wire::Preamble{.length = static_cast<uint32_t>(body.size())}) + body);
  CHECK(parts["ping"] ==
        bytes_of(wire::CommandHeader{.id = static_cast<uint16_t>(wire::Command::ping), .sequence = 1}));
  CHECK(parts["pong"] == bytes_of(wire::MessageHeader{.kind = wire::MessageKind::pong, .sequence = 1}));
}
