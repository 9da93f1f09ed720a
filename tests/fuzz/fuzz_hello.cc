// Fuzzes the first bytes of a connection in both codecs: the client's (protozero) and the server's
// (libprotobuf). The first byte selects the message; the rest is the message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "protocol/control/hello.pb.h"
#include "protocol/control/hello_codec.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace {

// A decoded message must survive its own encoding and must mean the same to the other codec.
template <class Proto, class Decode>
void check(std::string_view bytes, Decode decode) {
  const auto decoded = decode(bytes);
  Proto proto;
  const bool proto_read = proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (!decoded) {
    if (decoded.error().message.empty()) std::abort();
    return;
  }
  const std::string encoded = gpupool::hello::encode(*decoded);
  const auto again = decode(encoded);
  if (!again || gpupool::hello::encode(*again) != encoded) std::abort();
  if (!proto_read) return;  // e.g. invalid UTF-8, which only libprotobuf rejects
  Proto from_ours;
  if (!from_ours.ParseFromString(encoded)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    check<gpupool::control::Hello>(bytes, gpupool::hello::decode_hello);
  } else {
    check<gpupool::control::HelloReply>(bytes, gpupool::hello::decode_hello_reply);
  }
  return 0;
}
