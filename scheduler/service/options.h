// The options of pool-scheduler, from the command line and from a TOML file; the command line wins.
// options.def has one row for each. Used by main() and, for reloads, by daemon.cc.
#pragma once
#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "common/log/log.h"
#include "common/result.h"
#include "protocol/lease/key.h"
#include "protocol/transport/transport.h"
#include "scheduler/service/callers.h"
#include "scheduler/service/usage_limits.h"

namespace gpupool::settings {
struct OptionRow;
}

namespace gpupool::scheduler {

struct Options {
#define OPTION(type, member, initial, kind, name, help) type member = initial;
#include "scheduler/service/options.def"
  transport::TlsOptions store_tls;  // client side, for etcds://
  transport::TlsOptions tls;
  UsageLimits usage;
  Callers callers;  // from the file
};

struct EarlyExit {  // after --help, --version, --make-token, --print-public-key, or a printed usage error
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

std::variant<Options, EarlyExit> parse_options(int count, char** words);

// The table of options (options.def). Its rows set the members of `options`, which must outlive them.
std::vector<settings::OptionRow> option_rows(Options& options);

// Reads the file and overwrites the options that it contains. ErrorCode::invalid names the file and the key.
Result<void> read_config(const std::string& path, Options& options);

// Reads the signing key from the file. If the file does not exist, creates it with a new key and sets `made`.
Result<lease::SigningKey> load_key(const std::string& path, bool& made);

}  // namespace gpupool::scheduler
