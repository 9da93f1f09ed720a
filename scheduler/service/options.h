// The options of pool-scheduler, from the command line and from a TOML file; the command line wins. Used by
// main() and, for reloads, by daemon.cc.
#pragma once
#include <chrono>
#include <string>
#include <variant>

#include "common/log/log.h"
#include "common/result.h"
#include "protocol/lease/key.h"
#include "protocol/transport/transport.h"
#include "scheduler/service/callers.h"

namespace gpupool::scheduler {

struct Options {
  std::string listen = "127.0.0.1:9800";
  std::string address;    // advertised to clients by other schedulers; empty: the listening address
  std::string port_file;  // empty: none
  std::string store;
  transport::TlsOptions store_tls;  // client side, for etcds://
  std::string key;                  // file with the signing key
  std::string metrics;              // HOST:PORT; empty: none
  // How long a new leader grants nothing; must exceed the clients' retry interval
  // (client/lease_client/lease_client.cc).
  std::chrono::milliseconds return_time{1'500};
  transport::TlsOptions tls;
  std::string audit_file;
  std::string config_file;
  Callers callers;
  log::Level log_level = log::Level::info;
  log::Format log_format = log::Format::text;
  bool insecure = false;
};

struct EarlyExit {  // after --help, --version, --make-token, --print-public-key, or a printed usage error
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

std::variant<Options, EarlyExit> parse_options(int count, char** words);

// Reads the file and overwrites the options that it contains. ErrorCode::invalid names the file and the key.
Result<void> read_config(const std::string& path, Options& options);

// Reads the signing key from the file. If the file does not exist, creates it with a new key and sets `made`.
Result<lease::SigningKey> load_key(const std::string& path, bool& made);

}  // namespace gpupool::scheduler
