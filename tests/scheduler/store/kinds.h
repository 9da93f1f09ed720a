// Creates an empty store of each kind for store_test.cc.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace gpupool::scheduler {

class StoreKind {
 public:
  virtual ~StoreKind() = default;
  virtual std::string address() const = 0;
};

std::vector<std::string> store_kinds();
std::unique_ptr<StoreKind> make_store_kind(const std::string& name);

}  // namespace gpupool::scheduler
