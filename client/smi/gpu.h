// What pool-smi shows of one GPU: read at one time, then printed as a table, as CSV or as JSON.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/smi/api.h"

namespace gpupool::smi {

struct Field {
  enum class Kind { text, number, real };
  const char* name;  // as nvidia-smi calls it
  const char* unit;  // in CSV's header and behind values; empty: none
  Kind kind;
};
// All that can be asked for; other names of the same field are in `also`.
const std::vector<Field>& fields();
const Field* find_field(const std::string& name);

struct Process {
  unsigned pid = 0;
  std::string name;
  uint64_t memory_mib = 0;
};

struct Gpu {
  unsigned index = 0;
  std::map<std::string, std::string> values;  // by the field's name, without unit; what is not known is not there
  std::vector<Process> processes;
  bool lost = false;
  const std::string& get(const std::string& name) const;  // "N/A" where it is not known
};

// Of all GPUs, or those whose index, UUID or bus id is in `wanted`. Why not, in `failure`.
std::vector<Gpu> read_gpus(const Api& api, const std::vector<std::string>& wanted, std::string& failure);

}  // namespace gpupool::smi
