#include "scheduler/store/etcd/redo_log.h"

#include <cstdio>

namespace gpupool::scheduler::etcd {
namespace {

using namespace etcdserverpb;

std::vector<Operations> cut_at(const Operations& operations, int most_operations, size_t most_bytes) {
  std::vector<Operations> pieces;
  size_t bytes = 0;
  for (const RequestOp& one : operations) {
    const size_t size = one.ByteSizeLong();
    if (pieces.empty() || pieces.back().size() >= most_operations || bytes + size > most_bytes) {
      pieces.emplace_back();
      bytes = 0;
    }
    *pieces.back().Add() = one;
    bytes += size;
  }
  return pieces;
}

}  // namespace

bool fits_whole(const Operations& operations) {
  size_t bytes = 0;
  for (const RequestOp& one : operations) bytes += one.ByteSizeLong();
  return operations.size() <= kMaxOperations && bytes <= kMaxBytes;
}

std::vector<Operations> cut(const Operations& operations) {
  return cut_at(operations, kMaxOperations, kMaxBytes);
}

std::string prefix_end(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

std::string RedoLog::part_key(size_t number) const {
  char text[24];
  std::snprintf(text, sizeof text, "/%04zu", number);
  return key_ + text;
}

Result<std::vector<Operations>> RedoLog::record(const Operations& operations) const {
  std::vector<Operations> out;
  for (Operations& piece : cut_at(operations, INT32_MAX, part_bytes_)) {
    TxnRequest part;
    *part.mutable_success() = std::move(piece);
    if (part.ByteSizeLong() > part_bytes_ + part_bytes_ / 4)
      return Error{ErrorCode::limit, "an entry exceeds etcd's size limit"};
    PutRequest& put = *out.emplace_back().Add()->mutable_request_put();
    put.set_key(part_key(out.size() - 1));
    put.set_value(part.SerializeAsString());
  }
  PutRequest& mark = *out.back().Add()->mutable_request_put();
  mark.set_key(key_);
  mark.set_value(std::to_string(out.size()));
  return out;
}

Operations RedoLog::removal() const {
  Operations out;
  DeleteRangeRequest& all = *out.Add()->mutable_request_delete_range();
  all.set_key(key_);
  all.set_range_end(prefix_end(key_));
  return out;
}

void RedoLog::Reader::add(const KeyValue& one) {
  if (one.key() == log_.key_)
    mark_ = one.value();
  else
    parts_[one.key()] = one.value();
}

Operations RedoLog::Reader::whole() const {
  Operations out;
  if (mark_.empty()) return out;
  for (size_t i = 0; std::to_string(i) != mark_; ++i) {
    const auto found = parts_.find(log_.part_key(i));
    TxnRequest part;
    if (found == parts_.end() || !part.ParseFromString(found->second)) return {};
    out.MergeFrom(part.success());
  }
  return out;
}

}  // namespace gpupool::scheduler::etcd
