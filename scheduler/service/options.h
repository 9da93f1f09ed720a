// pool-scheduler's settings: from the command line, and from a TOML file for what the command line does not say.
#pragma once
#include <chrono>
#include <string>
#include <variant>

#include "protocol/lease/key.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/result.h"
#include "scheduler/service/callers.h"
#include "server/log/log.h"

namespace gpupool::scheduler {

struct Options {
  std::string listen = "127.0.0.1:9800";
  std::string address;    // that others are told of this scheduler; empty: as `listen`
  std::string port_file;  // empty: none
  std::string store;
  transport::TlsOptions store_tls;  // this side's, for etcds://
  std::string key;        // file
  std::string metrics;    // HOST:PORT; empty: none
  std::chrono::milliseconds return_time{1'500};  // that a new leader leaves those who waited with the one before it to come back (client/holder/holder.cc)
  transport::TlsOptions tls;
  std::string audit_file;
  std::string config_file;
  Callers callers;
  log::Level log_level = log::Level::info;
  log::Format log_format = log::Format::text;
  bool insecure = false;
};

struct EarlyExit {  // --help, --version, --print-public-key, or a mistake whose text has been printed
  int status = 0;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

std::variant<Options, EarlyExit> parse_options(int count, char** words);

// Overwrites what the file names.
Result<void> read_config(const std::string& path, Options& options);

// Reads the signing key from the file. If there is no file, makes a key, writes it there, and sets `made`.
Result<lease::SigningKey> load_key(const std::string& path, bool& made);

}  // namespace gpupool::scheduler
