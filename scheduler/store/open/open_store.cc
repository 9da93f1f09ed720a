#include "scheduler/store/open/open_store.h"

#include "scheduler/store/etcd/etcd_store.h"
#include "scheduler/store/sqlite/sqlite_store.h"

namespace gpupool::scheduler {
namespace {

constexpr std::string_view kSqlite = "sqlite:";

}  // namespace

Result<std::unique_ptr<Store>> open_store(const std::string& text, const transport::TlsOptions& tls,
                                          bool insecure) {
  if (const auto allowed = check_store(text, insecure); !allowed) return allowed.error();
  return is_etcd_store(text) ? open_etcd_store(text, tls) : open_sqlite_store(text.substr(kSqlite.size()));
}

Result<void> check_store(const std::string& text, bool insecure) {
  if (is_etcd_store(text)) return check_etcd_store(text, insecure);
  if (text.starts_with(kSqlite) && text.size() > kSqlite.size()) return {};
  return Error{ErrorCode::invalid, "'" + text +
                                       "' is not a store address; use sqlite:FILE, or "
                                       "etcd://HOST:PORT,HOST:PORT/PREFIX for several schedulers"};
}

}  // namespace gpupool::scheduler
