#include "scheduler/store/store.h"

#include "scheduler/store/etcd/etcd_store.h"
#include "scheduler/store/sqlite/sqlite_store.h"

namespace gpupool::scheduler {

Result<std::unique_ptr<Store>> open_store(const std::string& text, const transport::TlsOptions& tls) {
  constexpr std::string_view kSqlite = "sqlite:";
  if (is_etcd_store(text)) return open_etcd_store(text, tls);
  if (text.starts_with(kSqlite) && text.size() > kSqlite.size()) return open_sqlite_store(text.substr(kSqlite.size()));
  return Error{ErrorCode::invalid, "'" + text + "' is no store; write sqlite:FILE, or etcd://HOST:PORT,HOST:PORT/PREFIX for several schedulers"};
}

}  // namespace gpupool::scheduler
