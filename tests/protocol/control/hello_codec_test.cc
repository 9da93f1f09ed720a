// Tests the client's codec (protozero) against the server's (libprotobuf): equal in both directions, and safe
// for truncated and damaged bytes.
#include "protocol/control/hello_codec.h"

#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "protocol/control/hello.pb.h"
#include "tests/support/catch.h"

using namespace gpupool;

namespace {

hello::Hello sample_hello() {
  return {.protocol_version = 7,
          .client_version = "0.1.0",
          .cuda_version = 13000,
          .program = "train.py",
          .host = "node-1.example",
          .pid = 1ll << 40,
          .session_id = std::string("\0\1\2\xff", 4),
          .resume_proof = "proof",
          .tenant = "physics",
          .token = std::string(300, '\x80'),
          .bulk_token = std::string(32, 'b'),
          .compression = 2,
          .rdma = 1,
          .monitor = true,
          .pid_space = std::string("boot\0ns", 7),
          .checkpoint = true,
          .takes_quota_refusals = true,
          .can_resume = true,
          .resume_attempt = 3,
          .resume_received = 1ull << 41,
          .bulk_link = 8,
          .can_migrate = true,
          .failure = "no memory",
          .can_resume_rdma = true,
          .wants_timeline = true};
}

hello::HelloReply sample_reply() {
  hello::HelloReply reply{.status = hello::Status::busy,
                          .reason = "no worker left",
                          .protocol_version = 1,
                          .server_version = "0.1.0",
                          .driver_version = 13000,
                          .session_id = std::string(16, '\0'),
                          .resume_key = std::string(32, 'r'),
                          .addresses = {0x200000000000, 1ull << 40},
                          .worker_pid = 4242,
                          .bulk_connections = 8,
                          .bulk_token = std::string(32, 'b'),
                          .image_nonce = std::string(32, 'n'),
                          .largest_image = 1ull << 30,
                          .takes_compressed = true,
                          .server_id = ~0ull,
                          .peer_protocol = 0x8002,
                          .resume_timeout_ms = 60'000,
                          .resume_received = 1ull << 42,
                          .moved_to = "tcp://gpu-2.example:9700",
                          .makes_timeline = true};
  for (int number = 0; number < 3; ++number) {
    hello::Device device{.name = "Device " + std::to_string(number),
                         .uuid = std::string(16, static_cast<char>(number)),
                         .total_bytes = 80ull << 30,
                         .pci_bus_id = "0000:01:00." + std::to_string(number),
                         .granularity = 2u << 20,
                         .has_virtual_memory = number != 1,
                         .memory_limited = number == 1};
    for (int id = 1; id < 120; ++id) device.attributes.push_back({id, id % 7 == 0 ? -id : id * 1000});
    reply.devices.push_back(std::move(device));
  }
  return reply;
}

control::Hello to_proto(const hello::Hello& in) {
  control::Hello out;
  out.set_protocol_version(in.protocol_version);
  out.set_client_version(in.client_version);
  out.set_cuda_version(in.cuda_version);
  out.set_program(in.program);
  out.set_host(in.host);
  out.set_pid(in.pid);
  out.set_session_id(in.session_id);
  out.set_resume_proof(in.resume_proof);
  out.set_tenant(in.tenant);
  out.set_token(in.token);
  out.set_bulk_token(in.bulk_token);
  out.set_compression(in.compression);
  out.set_rdma(in.rdma);
  out.set_monitor(in.monitor);
  out.set_pid_space(in.pid_space);
  out.set_checkpoint(in.checkpoint);
  out.set_takes_quota_refusals(in.takes_quota_refusals);
  out.set_can_resume(in.can_resume);
  out.set_resume_attempt(in.resume_attempt);
  out.set_resume_received(in.resume_received);
  out.set_bulk_link(in.bulk_link);
  out.set_can_migrate(in.can_migrate);
  out.set_failure(in.failure);
  out.set_can_resume_rdma(in.can_resume_rdma);
  out.set_wants_timeline(in.wants_timeline);
  return out;
}

control::HelloReply to_proto(const hello::HelloReply& in) {
  control::HelloReply out;
  out.set_status(static_cast<control::HelloReply::Status>(in.status));
  out.set_reason(in.reason);
  out.set_protocol_version(in.protocol_version);
  out.set_server_version(in.server_version);
  out.set_driver_version(in.driver_version);
  out.set_session_id(in.session_id);
  out.set_resume_key(in.resume_key);
  for (const hello::Device& device : in.devices) {
    auto* added = out.add_devices();
    added->set_name(device.name);
    added->set_uuid(device.uuid);
    added->set_total_bytes(device.total_bytes);
    added->set_pci_bus_id(device.pci_bus_id);
    for (const hello::Attribute& attribute : device.attributes) {
      auto* pair = added->add_attributes();
      pair->set_id(attribute.id);
      pair->set_value(attribute.value);
    }
    added->set_granularity(device.granularity);
    added->set_has_virtual_memory(device.has_virtual_memory);
    added->set_memory_limited(device.memory_limited);
  }
  if (in.addresses.base != 0 || in.addresses.size != 0) {
    out.mutable_addresses()->set_base(in.addresses.base);
    out.mutable_addresses()->set_size(in.addresses.size);
  }
  out.set_worker_pid(in.worker_pid);
  out.set_bulk_connections(in.bulk_connections);
  out.set_bulk_token(in.bulk_token);
  out.set_image_nonce(in.image_nonce);
  out.set_largest_image(in.largest_image);
  out.set_takes_compressed(in.takes_compressed);
  out.set_server_id(in.server_id);
  out.set_peer_protocol(in.peer_protocol);
  out.set_resume_timeout_ms(in.resume_timeout_ms);
  out.set_resume_received(in.resume_received);
  out.set_moved_to(in.moved_to);
  out.set_makes_timeline(in.makes_timeline);
  return out;
}

// Checks that both decoders agree on whether these bytes are a message, and on its contents. The exception is
// a reply with invalid UTF-8, which libprotobuf rejects and the client does not check.
template <class Proto, class Decode>
void same_for_both(const std::string& bytes, Decode decode) {
  Proto proto;
  const bool proto_read = proto.ParseFromString(bytes);
  const auto decoded = decode(bytes);
  if (!decoded) {
    CHECK_FALSE(proto_read);
    CHECK(decoded.error().code == ErrorCode::malformed);
    CHECK_FALSE(decoded.error().message.empty());
  } else if (proto_read) {
    CHECK(to_proto(*decoded).SerializeAsString() == proto.SerializeAsString());
  }
}

}  // namespace

TEST_CASE("the client's hello has the same bytes as libprotobuf's") {
  CHECK(hello::encode(sample_hello()) == to_proto(sample_hello()).SerializeAsString());
  CHECK(hello::encode(sample_reply()) == to_proto(sample_reply()).SerializeAsString());
  CHECK(hello::encode(hello::Hello{}).empty());
  CHECK(hello::encode(hello::HelloReply{}).empty());
}

TEST_CASE("each side reads what the other wrote") {
  const auto hello = hello::decode_hello(to_proto(sample_hello()).SerializeAsString());
  REQUIRE(hello);
  CHECK(hello::encode(*hello) == hello::encode(sample_hello()));
  const auto reply = hello::decode_hello_reply(to_proto(sample_reply()).SerializeAsString());
  REQUIRE(reply);
  CHECK(reply->status == hello::Status::busy);
  REQUIRE(reply->devices.size() == 3);
  CHECK(reply->devices[2].attributes[6].value == -7);
  CHECK(hello::encode(*reply) == hello::encode(sample_reply()));
  control::HelloReply proto;
  REQUIRE(proto.ParseFromString(hello::encode(sample_reply())));
  CHECK(proto.SerializeAsString() == to_proto(sample_reply()).SerializeAsString());
}

TEST_CASE("names that are not UTF-8 are passed on") {
  hello::Hello hello = sample_hello();
  hello.program = "caf\xe9";
  hello.host = "\xff\xfe";
  control::Hello proto;
  REQUIRE(proto.ParseFromString(hello::encode(hello)));
  CHECK(proto.program() == hello.program);
  CHECK(proto.host() == hello.host);
}

TEST_CASE("unknown fields and fields of another type are skipped") {
  std::string bytes = hello::encode(sample_hello());
  protozero::pbf_writer writer(bytes);
  writer.add_string(99, "from a newer client");
  writer.add_fixed64(98, 1);
  writer.add_string(1, "a string where a number belongs");
  const auto hello = hello::decode_hello(bytes);
  REQUIRE(hello);
  CHECK(hello::encode(*hello) == hello::encode(sample_hello()));
}

TEST_CASE("a message cut at any byte is judged as libprotobuf judges it") {
  const std::string hello = hello::encode(sample_hello());
  for (size_t size = 0; size <= hello.size(); ++size) {
    same_for_both<control::Hello>(hello.substr(0, size), hello::decode_hello);
  }
  const std::string reply = hello::encode(sample_reply());
  for (size_t size = 0; size <= reply.size(); ++size) {
    same_for_both<control::HelloReply>(reply.substr(0, size), hello::decode_hello_reply);
  }
}

TEST_CASE("reads nothing beyond a message that ends with the tag of a flag") {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto* const pages = static_cast<char*>(
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(::mprotect(pages + page, page, PROT_NONE) == 0);
  pages[page - 1] = 13 << 3;  // tag of Hello.from_peer
  CHECK_FALSE(hello::decode_hello({pages + page - 1, 1}));
  pages[page - 1] = 15 << 3;  // tag of HelloReply.takes_compressed
  CHECK_FALSE(hello::decode_hello_reply({pages + page - 1, 1}));
  ::munmap(pages, 2 * page);

  const auto zero = hello::decode_hello(std::string("\x68\x80\0", 3));  // encoded in two bytes
  REQUIRE(zero);
  CHECK_FALSE(zero->from_peer);
}

TEST_CASE("damaged bytes never throw") {
  std::mt19937 random(1);
  const std::string reply = hello::encode(sample_reply());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = reply;
    for (int changes = 0; changes < 4; ++changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto decoded = hello::decode_hello_reply(bytes);
    if (!decoded) CHECK(decoded.error().code == ErrorCode::malformed);
  }
}

TEST_CASE("a reply with absurdly many devices is refused") {
  hello::HelloReply reply;
  reply.devices.resize(hello::kMaxDevices + 1);
  CHECK_FALSE(hello::decode_hello_reply(hello::encode(reply)));
  reply.devices.resize(hello::kMaxDevices);
  CHECK(hello::decode_hello_reply(hello::encode(reply)));
}
