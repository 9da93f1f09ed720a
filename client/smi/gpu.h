// The values that pool-smi shows of a GPU: read at one time, then printed as a table, CSV or JSON. One
// thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/smi/api.h"

namespace gpupool::smi {

struct Field {
  enum class Kind { text, number, real };
  const char* name;  // as in nvidia-smi
  const char* unit;  // in the CSV header and after values; empty: none
  Kind kind;
};
// All fields that can be queried. find_field() also accepts nvidia-smi's other names of a field; null:
// unknown.
const std::vector<Field>& fields();
const Field* find_field(const std::string& name);

struct Process {
  unsigned pid = 0;
  std::string name;
  uint64_t memory_mib = 0;
};

struct Gpu {
  unsigned index = 0;
  std::map<std::string, std::string> values;  // by field name, without unit; unknown values are missing
  std::vector<Process> processes;
  bool lost = false;
  const std::string& get(const std::string& name) const;  // "N/A": unknown
};

// Reads all GPUs, or those whose index, UUID or bus id is in `wanted`. If the result is empty, `failure` says
// why.
std::vector<Gpu> read_gpus(const Api& api, const std::vector<std::string>& wanted, std::string& failure);

}  // namespace gpupool::smi
