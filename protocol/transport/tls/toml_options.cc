#include "protocol/transport/tls/toml_options.h"

#include <string>

#include "common/settings/toml_values.h"

namespace gpupool::settings {

Result<void> to_tls(const toml::node& node, std::string_view ca, transport::TlsOptions& out) {
  return for_each_key(node, [&](std::string_view key, const toml::node& value) -> Result<void> {
    if (key == "certificate") return to_text(value, out.certificate);
    if (key == "key") return to_text(value, out.key);
    if (key == ca) return to_text(value, out.ca);
    return wrong("unknown key; expected certificate, key, " + std::string(ca));
  });
}

}  // namespace gpupool::settings
