// The output formats of pool-smi. Stateless.
#pragma once
#include <string>
#include <vector>

#include "client/smi/gpu.h"

namespace gpupool::smi {

std::string as_list(const std::vector<Gpu>& gpus);  // one line per GPU, as nvidia-smi -L
std::string as_table(const std::vector<Gpu>& gpus);
std::string as_json(const std::vector<Gpu>& gpus);

struct Csv {
  std::vector<std::string> columns;
  bool header = true;
  bool units = true;
};
std::string as_csv(const std::vector<Gpu>& gpus, const Csv& csv);
// One line per process, with columns from "pid", "process_name", "used_gpu_memory" ("used_memory"),
// "gpu_uuid".
bool is_process_column(const std::string& name);
std::string processes_as_csv(const std::vector<Gpu>& gpus, const Csv& csv);

}  // namespace gpupool::smi
