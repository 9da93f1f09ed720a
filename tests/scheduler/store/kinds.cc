#include "tests/scheduler/store/kinds.h"

#include "tests/support/etcd.h"

namespace gpupool::scheduler {
namespace {

class Sqlite : public StoreKind {
 public:
  std::string address() const override { return "sqlite:" + (folder_.path() / "pool.db").string(); }

 private:
  testing::TemporaryFolder folder_;
};

class Etcd : public StoreKind {
 public:
  std::string address() const override { return cluster_.store(); }

 private:
  testing::EtcdCluster cluster_;
};

}  // namespace

std::vector<std::string> store_kinds() {
  return {"sqlite", "etcd"};
}

std::unique_ptr<StoreKind> make_store_kind(const std::string& name) {
  if (name == "etcd") return std::make_unique<Etcd>();
  return std::make_unique<Sqlite>();
}

}  // namespace gpupool::scheduler
