// Hello and HelloReply for the client libraries: plain structs, read and written with protozero. Programs
// bring their own libprotobuf, so the client libraries link none (the server does, see hello.proto).
//
// Header-only, no state, any thread. No exceptions leave this file: bytes that do not parse are
// ErrorCode::malformed.
#pragma once
#include <cstdint>
#include <exception>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"

namespace gpupool::hello {

struct Hello {
  uint32_t protocol_version = 0;
  std::string client_version;
  uint32_t cuda_version = 0;
  std::string program;
  std::string host;
  int64_t pid = 0;
  std::string session_id;
  std::string resume_proof;
  std::string tenant;
  std::string token;
  std::string bulk_token;
  uint32_t compression = 0;
  bool from_peer = false;
  uint32_t rdma = 0;
  bool monitor = false;
  std::string pid_space;
  bool checkpoint = false;
  bool takes_quota_refusals = false;
  bool can_resume = false;
  uint64_t resume_attempt = 0;
  uint64_t resume_received = 0;
  uint32_t bulk_link = 0;
  bool can_migrate = false;
  std::string failure;
  bool can_resume_rdma = false;
  bool wants_timeline = false;
};

struct Attribute {
  int32_t id = 0;
  int32_t value = 0;
};

struct Device {
  std::string name;
  std::string uuid;
  uint64_t total_bytes = 0;
  std::string pci_bus_id;
  std::vector<Attribute> attributes;
  uint64_t granularity = 0;
  bool has_virtual_memory = false;
  bool memory_limited = false;
};

struct AddressRange {
  uint64_t base = 0;
  uint64_t size = 0;
};

enum class Status : int32_t {
  ok = 0,
  wrong_version = 1,
  malformed = 2,
  no_device = 3,
  busy = 4,
  denied = 5,
  suspended = 6
};

struct HelloReply {
  Status status = Status::ok;
  std::string reason;
  uint32_t protocol_version = 0;
  std::string server_version;
  int32_t driver_version = 0;
  std::string session_id;
  std::string resume_key;
  std::vector<Device> devices;
  AddressRange addresses;
  int64_t worker_pid = 0;
  uint32_t bulk_connections = 0;
  std::string bulk_token;
  std::string image_nonce;
  uint64_t largest_image = 0;
  bool takes_compressed = false;
  uint64_t server_id = 0;
  uint32_t peer_protocol = 0;
  bool encrypts_peers = false;
  uint32_t resume_timeout_ms = 0;
  uint64_t resume_received = 0;
  std::string moved_to;
  bool makes_timeline = false;
};

constexpr size_t kMaxDevices = 256;  // more is malformed: the peer is untrusted
constexpr size_t kMaxAttributesPerDevice = 4096;

namespace detail {

// Writes fields; omits default values, as proto3 does.
class Fields {
 public:
  explicit Fields(std::string& out) : writer_(out) {}
  void text(uint32_t tag, const std::string& value) {
    if (!value.empty()) writer_.add_bytes(tag, value);
  }
  void u32(uint32_t tag, uint32_t value) {
    if (value != 0) writer_.add_uint32(tag, value);
  }
  void u64(uint32_t tag, uint64_t value) {
    if (value != 0) writer_.add_uint64(tag, value);
  }
  void i32(uint32_t tag, int32_t value) {
    if (value != 0) writer_.add_int32(tag, value);
  }
  void i64(uint32_t tag, int64_t value) {
    if (value != 0) writer_.add_int64(tag, value);
  }
  void boolean(uint32_t tag, bool value) {
    if (value) writer_.add_bool(tag, value);
  }
  void message(uint32_t tag, const std::string& encoded) { writer_.add_message(tag, encoded); }

 private:
  protozero::pbf_writer writer_;
};

// Calls visit(tag) for each field. visit() reads the value and returns true, or returns false to have the
// field skipped. A known tag with another wire type is skipped, as in libprotobuf.
template <class Visit>
void each_field(protozero::pbf_reader& in, Visit visit) {
  while (in.next()) {
    if (!visit(in.tag_and_type())) in.skip();
  }
}

constexpr uint32_t varint(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::varint);
}
constexpr uint32_t bytes(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::length_delimited);
}

// protozero's get_bool() reads one byte past a message that ends with the field's tag, and does not decode a
// varint of several bytes.
inline bool get_flag(protozero::pbf_reader& in) {
  return in.get_uint64() != 0;
}

inline Attribute read_attribute(protozero::pbf_reader in) {
  Attribute attribute;
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): attribute.id = in.get_int32(); return true;
      case varint(2): attribute.value = in.get_int32(); return true;
      default: return false;
    }
  });
  return attribute;
}

inline Device read_device(protozero::pbf_reader in) {
  Device device;
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case bytes(1): device.name = in.get_string(); return true;
      case bytes(2): device.uuid = in.get_bytes(); return true;
      case varint(3): device.total_bytes = in.get_uint64(); return true;
      case bytes(5): device.pci_bus_id = in.get_string(); return true;
      case bytes(6):
        if (device.attributes.size() == kMaxAttributesPerDevice)
          throw std::length_error("too many attributes");
        device.attributes.push_back(read_attribute(in.get_message()));
        return true;
      case varint(7): device.granularity = in.get_uint64(); return true;
      case varint(8): device.has_virtual_memory = get_flag(in); return true;
      case varint(11): device.memory_limited = get_flag(in); return true;
      default: return false;
    }
  });
  return device;
}

// If a message occurs twice, the later fields win, as in libprotobuf.
inline void read_range(protozero::pbf_reader in, AddressRange& range) {
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): range.base = in.get_uint64(); return true;
      case varint(2): range.size = in.get_uint64(); return true;
      default: return false;
    }
  });
}

inline void read_hello(protozero::pbf_reader in, Hello& hello) {
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): hello.protocol_version = in.get_uint32(); return true;
      case bytes(2): hello.client_version = in.get_string(); return true;
      case varint(3): hello.cuda_version = in.get_uint32(); return true;
      case bytes(4): hello.program = in.get_string(); return true;
      case bytes(5): hello.host = in.get_string(); return true;
      case varint(6): hello.pid = in.get_int64(); return true;
      case bytes(7): hello.session_id = in.get_bytes(); return true;
      case bytes(8): hello.resume_proof = in.get_bytes(); return true;
      case bytes(9): hello.tenant = in.get_string(); return true;
      case bytes(10): hello.token = in.get_bytes(); return true;
      case bytes(11): hello.bulk_token = in.get_bytes(); return true;
      case varint(12): hello.compression = in.get_uint32(); return true;
      case varint(13): hello.from_peer = get_flag(in); return true;
      case varint(14): hello.rdma = in.get_uint32(); return true;
      case varint(15): hello.monitor = get_flag(in); return true;
      case bytes(16): hello.pid_space = in.get_bytes(); return true;
      case varint(17): hello.checkpoint = get_flag(in); return true;
      case varint(18): hello.takes_quota_refusals = get_flag(in); return true;
      case varint(19): hello.can_resume = get_flag(in); return true;
      case varint(20): hello.resume_attempt = in.get_uint64(); return true;
      case varint(21): hello.resume_received = in.get_uint64(); return true;
      case varint(22): hello.bulk_link = in.get_uint32(); return true;
      case varint(23): hello.can_migrate = get_flag(in); return true;
      case bytes(24): hello.failure = in.get_string(); return true;
      case varint(25): hello.can_resume_rdma = get_flag(in); return true;
      case varint(26): hello.wants_timeline = get_flag(in); return true;
      default: return false;
    }
  });
}

inline void read_reply(protozero::pbf_reader in, HelloReply& reply) {
  each_field(in, [&](uint32_t field) {
    switch (field) {
      case varint(1): reply.status = static_cast<Status>(in.get_enum()); return true;
      case bytes(2): reply.reason = in.get_string(); return true;
      case varint(3): reply.protocol_version = in.get_uint32(); return true;
      case bytes(4): reply.server_version = in.get_string(); return true;
      case varint(5): reply.driver_version = in.get_int32(); return true;
      case bytes(6): reply.session_id = in.get_bytes(); return true;
      case bytes(7): reply.resume_key = in.get_bytes(); return true;
      case bytes(8):
        if (reply.devices.size() == kMaxDevices) throw std::length_error("too many devices");
        reply.devices.push_back(read_device(in.get_message()));
        return true;
      case bytes(9): read_range(in.get_message(), reply.addresses); return true;
      case varint(10): reply.worker_pid = in.get_int64(); return true;
      case varint(11): reply.bulk_connections = in.get_uint32(); return true;
      case bytes(12): reply.bulk_token = in.get_bytes(); return true;
      case bytes(13): reply.image_nonce = in.get_bytes(); return true;
      case varint(14): reply.largest_image = in.get_uint64(); return true;
      case varint(15): reply.takes_compressed = get_flag(in); return true;
      case varint(16): reply.server_id = in.get_uint64(); return true;
      case varint(17): reply.peer_protocol = in.get_uint32(); return true;
      case varint(18): reply.resume_timeout_ms = in.get_uint32(); return true;
      case varint(19): reply.resume_received = in.get_uint64(); return true;
      case bytes(20): reply.moved_to = in.get_string(); return true;
      case varint(21): reply.encrypts_peers = get_flag(in); return true;
      case varint(22): reply.makes_timeline = get_flag(in); return true;
      default: return false;
    }
  });
}

template <class Message, class Read>
Result<Message> decode(std::string_view encoded, Read read, const char* name) {
  try {
    Message message;
    read(protozero::pbf_reader(encoded.data(), encoded.size()), message);
    return message;
  } catch (const std::exception& failure) {
    return Error{ErrorCode::malformed, std::string(name) + " cannot be parsed: " + failure.what()};
  }
}

}  // namespace detail

inline std::string encode(const Hello& hello) {
  std::string out;
  detail::Fields fields(out);
  fields.u32(1, hello.protocol_version);
  fields.text(2, hello.client_version);
  fields.u32(3, hello.cuda_version);
  fields.text(4, hello.program);
  fields.text(5, hello.host);
  fields.i64(6, hello.pid);
  fields.text(7, hello.session_id);
  fields.text(8, hello.resume_proof);
  fields.text(9, hello.tenant);
  fields.text(10, hello.token);
  fields.text(11, hello.bulk_token);
  fields.u32(12, hello.compression);
  fields.boolean(13, hello.from_peer);
  fields.u32(14, hello.rdma);
  fields.boolean(15, hello.monitor);
  fields.text(16, hello.pid_space);
  fields.boolean(17, hello.checkpoint);
  fields.boolean(18, hello.takes_quota_refusals);
  fields.boolean(19, hello.can_resume);
  fields.u64(20, hello.resume_attempt);
  fields.u64(21, hello.resume_received);
  fields.u32(22, hello.bulk_link);
  fields.boolean(23, hello.can_migrate);
  fields.text(24, hello.failure);
  fields.boolean(25, hello.can_resume_rdma);
  fields.boolean(26, hello.wants_timeline);
  return out;
}

inline std::string encode(const Device& device) {
  std::string out;
  detail::Fields fields(out);
  fields.text(1, device.name);
  fields.text(2, device.uuid);
  fields.u64(3, device.total_bytes);
  fields.text(5, device.pci_bus_id);
  for (const Attribute& attribute : device.attributes) {
    std::string encoded;
    detail::Fields inner(encoded);
    inner.i32(1, attribute.id);
    inner.i32(2, attribute.value);
    fields.message(6, encoded);
  }
  fields.u64(7, device.granularity);
  fields.boolean(8, device.has_virtual_memory);
  fields.boolean(11, device.memory_limited);
  return out;
}

inline std::string encode(const HelloReply& reply) {
  std::string out;
  detail::Fields fields(out);
  fields.i32(1, static_cast<int32_t>(reply.status));
  fields.text(2, reply.reason);
  fields.u32(3, reply.protocol_version);
  fields.text(4, reply.server_version);
  fields.i32(5, reply.driver_version);
  fields.text(6, reply.session_id);
  fields.text(7, reply.resume_key);
  for (const Device& device : reply.devices) fields.message(8, encode(device));
  if (reply.addresses.base != 0 || reply.addresses.size != 0) {
    std::string encoded;
    detail::Fields inner(encoded);
    inner.u64(1, reply.addresses.base);
    inner.u64(2, reply.addresses.size);
    fields.message(9, encoded);
  }
  fields.i64(10, reply.worker_pid);
  fields.u32(11, reply.bulk_connections);
  fields.text(12, reply.bulk_token);
  fields.text(13, reply.image_nonce);
  fields.u64(14, reply.largest_image);
  fields.boolean(15, reply.takes_compressed);
  fields.u64(16, reply.server_id);
  fields.u32(17, reply.peer_protocol);
  fields.u32(18, reply.resume_timeout_ms);
  fields.u64(19, reply.resume_received);
  fields.text(20, reply.moved_to);
  fields.boolean(21, reply.encrypts_peers);
  fields.boolean(22, reply.makes_timeline);
  return out;
}

inline Result<Hello> decode_hello(std::string_view encoded) {
  return detail::decode<Hello>(encoded, detail::read_hello, "Hello");
}

inline Result<HelloReply> decode_hello_reply(std::string_view encoded) {
  return detail::decode<HelloReply>(encoded, detail::read_reply, "HelloReply");
}

}  // namespace gpupool::hello
