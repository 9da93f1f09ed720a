// Fuzzes records of writes that exceed etcd's transaction limit: records as any writer of etcd may leave
// them, and records of this store, which must decode to the original.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "scheduler/store/etcd/redo_log.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quiet_protobuf.h"

using namespace gpupool::scheduler::etcd;

namespace {

// Parts are small, so that short entries fill several or exceed the limit.
const RedoLog kLog("p/batch", 256);

void add(RedoLog::Reader& reader, std::string key, std::string value) {
  etcdserverpb::KeyValue one;
  one.set_key(std::move(key));
  one.set_value(std::move(value));
  reader.add(one);
}

void read_anything(gpupool::fuzz::Input input) {
  RedoLog::Reader reader(kLog);
  while (!input.empty()) {
    const uint32_t part = input.below(6);
    const std::string key = part == 5 ? "p/batch" : "p/batch/000" + std::to_string(part);
    add(reader, key, input.text());
  }
  static_cast<void>(reader.whole());
}

// Removes all keys of the record.
void check_removal(const std::vector<Operations>& record) {
  const auto removed = kLog.removal()[0].request_delete_range();
  for (const Operations& transaction : record) {
    for (const auto& one : transaction) {
      const std::string& key = one.request_put().key();
      if (key < removed.key() || key >= removed.range_end()) std::abort();
    }
  }
}

void check_prefix(const std::string& key) {
  const std::string end = prefix_end(key);
  if (end != std::string(1, '\0') && (end <= key || end <= key + '\xff')) std::abort();
}

void write_and_read(gpupool::fuzz::Input input) {
  Operations operations;
  for (uint32_t i = input.below(8); i > 0; --i) {
    auto& put = *operations.Add()->mutable_request_put();
    put.set_key(input.text());
    check_prefix(put.key());
    put.set_value(std::string(input.get<uint16_t>() % 400, 'v'));
  }
  if (operations.empty()) return;
  if (!fits_whole(operations) || cut(operations).size() != 1) std::abort();  // a few KiB
  const auto record = kLog.record(operations);
  if (!record) return;
  RedoLog::Reader reader(kLog);
  for (const Operations& transaction : *record) {
    for (const auto& one : transaction) add(reader, one.request_put().key(), one.request_put().value());
  }
  const Operations again = reader.whole();
  if (again.size() != operations.size()) std::abort();
  check_removal(*record);
  for (int i = 0; i < again.size(); ++i) {
    if (again[i].SerializeAsString() != operations[i].SerializeAsString()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpupool::fuzz::quiet_protobuf();
  read_anything({data, size});
  write_and_read({data, size});
  return 0;
}
