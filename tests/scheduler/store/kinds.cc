#include "tests/scheduler/store/kinds.h"

#include <filesystem>

#include "tests/support/processes.h"

namespace gpupool::scheduler {
namespace {

class Sqlite : public StoreKind {
 public:
  std::string address() const override { return "sqlite:" + (folder_.path() / "pool.db").string(); }
  void abandon(std::unique_ptr<Store> store) override { store.reset(); }  // a process's locks end with it

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace

std::vector<std::string> store_kinds() { return {"sqlite"}; }

std::unique_ptr<StoreKind> make_store_kind(const std::string&) { return std::make_unique<Sqlite>(); }

}  // namespace gpupool::scheduler
