// pool-smi's outputs.
#pragma once
#include <string>
#include <vector>

#include "client/smi/gpu.h"

namespace gpupool::smi {

std::string as_list(const std::vector<Gpu>& gpus);   // a line each, as nvidia-smi -L
std::string as_table(const std::vector<Gpu>& gpus);
std::string as_json(const std::vector<Gpu>& gpus);

struct Csv {
  std::vector<std::string> columns;
  bool header = true;
  bool units = true;
};
std::string as_csv(const std::vector<Gpu>& gpus, const Csv& csv);
// A line for each process: of "pid", "process_name", "used_gpu_memory", "gpu_uuid".
bool is_process_column(const std::string& name);
std::string processes_as_csv(const std::vector<Gpu>& gpus, const Csv& csv);

}  // namespace gpupool::smi
