// Fuzzes the pieces of bulk copies from an untrusted peer (protocol/compression/pieces.h): plain and
// compressed pieces, keys of copies and acknowledgements, truncated or damaged, on a connection that may be
// resumable. The input describes the bytes that the peer sends, and the sizes that this side expects.
//
// A piece must be filled exactly or rejected, and what an undamaged PieceSender sent must arrive unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "protocol/compression/pieces.h"
#include "protocol/wire/peers.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using fuzz::require;

namespace {

constexpr std::byte kGuard{0x5a};
constexpr size_t kBeside = 32;
constexpr size_t kFiller = 256 * 1024;  // bytes after which an acknowledgement is due

// Delivers the bytes that were sent, after some that only make an acknowledgement due.
class Loopback final : public transport::Connection {
 public:
  std::string bytes;
  size_t filler = 0;
  bool has_room = true;

  Result<size_t> send_some(std::span<const iovec> buffers) override {
    size_t count = 0;
    for (const iovec& buffer : buffers) {
      if (keeps_) bytes.append(static_cast<const char*>(buffer.iov_base), buffer.iov_len);
      count += buffer.iov_len;
    }
    return count;
  }
  Result<size_t> receive_some(std::span<std::byte> buffer) override {
    if (const size_t part = std::min(filler, buffer.size()); part != 0) {
      filler -= part;
      return part;
    }
    // An error after which nothing is resumed.
    if (at_ == bytes.size()) return Error{ErrorCode::refused, "the input is over"};
    const size_t part = std::min({buffer.size(), bytes.size() - at_, size_t{1000}});
    std::memcpy(buffer.data(), bytes.data() + at_, part);
    at_ += part;
    return part;
  }
  Result<Ready> wait(bool, bool, transport::Deadline) override {
    return has_room ? Ready::both : Ready::receive;
  }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return "the fuzzer"; }
  int release_descriptor() override { return -1; }
  void stop_keeping() { keeps_ = false; }

 private:
  size_t at_ = 0;
  bool keeps_ = true;
};

struct Sent {
  wire::BulkHeader header;
  std::string data;
};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input) {}

  void run() {
    const uint32_t flags = input_.get<uint8_t>();
    auto made = std::make_unique<Loopback>();
    loopback_ = made.get();
    loopback_->filler = (flags & 1) != 0 ? kFiller : 0;
    loopback_->has_room = (flags & 2) == 0;
    write_stream();
    loopback_->stop_keeping();
    if ((flags & 4) == 0) return read_stream(*loopback_, nullptr, (flags & 8) != 0);
    transport::ResumableConnection resumable(std::move(made));
    resumable.start();
    static std::vector<std::byte> filler(kFiller);
    if (loopback_->filler != 0) require(resumable.receive_some(filler).ok());
    compression::PieceSender sender(compression::Policy::off, &resumable);
    read_stream(resumable, &sender, (flags & 8) != 0);
  }

 private:
  void write_stream() {
    compression::PieceSender sender(static_cast<compression::Policy>(
        input_.below(static_cast<uint32_t>(compression::Policy::always) + 1)));
    for (uint32_t i = input_.below(8); i > 0; --i) {
      switch (input_.below(4)) {
        case 0: loopback_->bytes += input_.text(), honest_ = false; break;
        case 1: write_header(); break;
        default: write_piece(sender); break;
      }
    }
    for (uint32_t i = input_.below(4); i > 0 && !loopback_->bytes.empty(); --i) {
      auto& byte = loopback_->bytes[input_.get<uint16_t>() % loopback_->bytes.size()];
      byte = static_cast<char>(byte ^ input_.get<char>());
      honest_ = false;
    }
  }
  void write_header() {
    honest_ = false;
    const wire::BulkHeader header{.length = input_.below(2) == 0 ? input_.below(34) : input_.get<uint32_t>(),
                                  .flags = static_cast<uint16_t>(input_.below(6)),
                                  .copy = input_.below(3),
                                  .offset = input_.below(2) == 0 ? 0 : input_.get<uint64_t>()};
    loopback_->bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
  }
  // Mostly short: the time of an input is that of its longest pieces.
  size_t length() {
    const uint16_t drawn = input_.get<uint16_t>();
    return 1 + (drawn % 32 == 31 ? drawn : drawn % 1024);
  }
  static std::string repeated(const std::string& unit, size_t bytes) {
    std::string made(bytes, '\0');
    size_t done = std::min(unit.size(), bytes);
    std::memcpy(made.data(), unit.data(), done);
    for (size_t part; done < bytes; done += part) {
      part = std::min(done, bytes - done);
      std::memcpy(made.data() + done, made.data(), part);
    }
    return made;
  }
  void write_piece(compression::PieceSender& sender) {
    Sent made{.header = {.copy = input_.get<uint64_t>(), .offset = input_.get<uint64_t>()}, .data = {}};
    const std::string unit = input_.text() + "p";
    const size_t bytes = length();
    made.data = repeated(unit, bytes);
    made.header.length = static_cast<uint32_t>(bytes);
    size_t first = input_.below(2) == 0 ? bytes : input_.get<uint16_t>() % bytes;
    if (first == 0) first = bytes;
    const iovec parts[] = {{made.data.data(), first}, {made.data.data() + first, bytes - first}};
    require(sender.send(*loopback_, made.header, std::span(parts).first(first == bytes ? 1 : 2)).ok());
    require(sender.take_sent() != 0 && sender.take_sent() == 0);
    sent_.push_back(std::move(made));
  }

  void read_stream(transport::Connection& connection, compression::PieceSender* sender, bool copy_keys) {
    if (!sender && loopback_->filler != 0) loopback_->filler = 0;
    compression::PieceReader reader(connection, sender);
    for (size_t piece = 0;; ++piece) {
      const auto header = reader.next(copy_keys);
      if (!header) {
        require(!header.error().message.empty() && (!honest_ || piece == sent_.size()));
        return;
      }
      const bool is_key = header->flags == wire::kBulkCopyKey;
      require(is_key ? copy_keys && header->length == sizeof(wire::CopyKey)
                     : (header->flags & ~wire::kBulkCompressed) == 0 && header->length != 0 &&
                           header->length <= wire::kBulkChunkBytes);
      if (!take(reader, *header, piece)) return;
    }
  }
  bool take(compression::PieceReader& reader, const wire::BulkHeader& header, size_t piece) {
    const bool compressed = header.flags == wire::kBulkCompressed;
    // As much as this side expects, which a hostile header cannot influence.
    size_t wanted = honest_ ? sent_.at(piece).data.size() : length();
    if (!compressed && !honest_ && input_.below(8) != 7) wanted = header.length;
    require(reader.fits(wanted) == (compressed ? header.length < wanted : header.length == wanted));
    if (!reader.fits(wanted) || input_.below(8) == 7) return reader.skip().ok();
    std::vector<std::byte> memory(wanted + 2 * kBeside, kGuard);
    const auto room = std::span(memory).subspan(kBeside, wanted);
    const auto read = reader.read(room);
    require(std::count(memory.begin(), memory.begin() + kBeside, kGuard) == kBeside &&
            std::count(memory.end() - kBeside, memory.end(), kGuard) == kBeside);
    if (!honest_) return read.ok();
    const Sent& sent = sent_[piece];
    require(read.ok() && header.copy == sent.header.copy && header.offset == sent.header.offset &&
            std::memcmp(room.data(), sent.data.data(), wanted) == 0);
    return true;
  }

  fuzz::Input input_;
  Loopback* loopback_ = nullptr;  // owned by a ResumableConnection, or by run()
  std::vector<Sent> sent_;
  bool honest_ = true;  // all bytes are a PieceSender's
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Attack attack(fuzz::Input(data, size));
  attack.run();
  return 0;
}
