// Reads poold's TOML file, whose keys are the long options of the command line (options.def).
#include <string_view>
#include <utility>

#include "common/settings/option_table.h"
#include "common/settings/toml_values.h"
#include "server/poold/options.h"
#include "server/tenants/tenants_file.h"

namespace gpupool::server {

using namespace settings;

Result<void> read_config(const std::string& path, ServerOptions& options) {
  const OptionRows rows = option_rows(options);
  const auto other = [&](std::string_view table, std::string_view key) -> Result<void> {
    if (table == "tls") return wrong("unknown key; expected " + keys_in_table("tls", rows));
    if (table == "pool") return wrong("unknown key; [pool] keys are " + keys_in_table("pool", rows));
    if (table == "rdma") return wrong("unknown key; the keys are those of poold --help, without '--rdma-'");
    if (key == "tenant" || key == "default_quota") return {};  // read_tenants()
    return wrong(
        "unknown key; the keys are those of poold --help, without the dashes, and the tables [pool], [tls], "
        "[rdma], [default_quota], [[tenant]]");
  };
  return read_options_file(path, rows, other, [&](const toml::table& file) -> Result<void> {
    auto tenants = read_tenants(file);
    if (!tenants) return tenants.error();
    options.tenants = std::move(*tenants);
    return {};
  });
}

}  // namespace gpupool::server
