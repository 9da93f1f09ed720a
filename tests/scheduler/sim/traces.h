// A small trace for tests: four nodes with two GPUs each, and tasks whose optimal packing is known.
#pragma once
#include <string>

#include "scheduler/sim/trace.h"

namespace gpupool::sim {

inline std::vector<placement::NodeSpec> read_nodes(const std::string& text) {
  return *nodes_of(*Csv::parse("nodes.csv", text));
}
inline std::vector<Task> read_tasks(const std::string& text) {
  return *tasks_of(*Csv::parse("tasks.csv", text));
}

constexpr const char* kFourNodes =
    "sn,cpu_milli,memory_mib,gpu,model\n"
    "n0,32000,65536,2,A\nn1,32000,65536,2,A\nn2,32000,65536,2,A\nn3,32000,65536,2,B\n";

// Four pairs of 700 and 300, two tasks with a whole GPU, and one with two: exactly eight GPUs.
constexpr const char* kEightGpus =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
    "a,1000,1024,1,700,,LS,0,100,0\nb,1000,1024,1,700,,LS,0,100,0\nc,1000,1024,1,700,,BE,0,100,0\nd,1000,"
    "1024,1,700,,BE,0,100,0\n"
    "e,1000,1024,1,300,,LS,0,100,0\nf,1000,1024,1,300,,LS,0,100,0\ng,1000,1024,1,300,,BE,0,100,0\nh,1000,"
    "1024,1,300,,BE,0,100,0\n"
    "i,1000,1024,1,1000,B,LS,0,100,0\nj,1000,1024,1,1000,A|B,LS,0,100,0\nk,1000,1024,2,1000,,LS,0,100,0\n";

}  // namespace gpupool::sim
