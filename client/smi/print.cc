#include "client/smi/print.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace gpupool::smi {
namespace {

std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string formatted(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < ' ')
      out += formatted("\\u%04x", c);
    else
      out += c;
  }
  return out + "\"";
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : ", ") + word;
  return line + "\n";
}

std::string with_unit(const Gpu& gpu, const std::string& name) {
  const Field* const field = find_field(name);
  const std::string& value = gpu.get(field->name);
  return value == "N/A" || *field->unit == '\0' ? value
                                                : value + (*field->unit == '%' ? "" : " ") + field->unit;
}

std::string temperature(const Gpu& gpu) {
  const std::string& value = gpu.get("temperature.gpu");
  return value == "N/A" ? value : value + " C";
}

std::string process_value(const Gpu& gpu, const Process& process, const std::string& column, bool units) {
  if (column == "pid") return std::to_string(process.pid);
  if (column == "process_name") return process.name;
  if (column == "gpu_uuid") return gpu.get("uuid");
  return std::to_string(process.memory_mib) + (units ? " MiB" : "");
}

}  // namespace

std::string as_list(const std::vector<Gpu>& gpus) {
  std::string out;
  for (const Gpu& gpu : gpus)
    out += "GPU " + gpu.get("index") + ": " + gpu.get("name") + " (UUID: " + gpu.get("uuid") + ")\n";
  return out;
}

std::string as_table(const std::vector<Gpu>& gpus) {
  const std::string rule = "+" + std::string(46, '-') + "+" + std::string(23, '-') + "+" +
                           std::string(8, '-') + "+" + std::string(18, '-') + "+\n";
  std::string out =
      formatted("gpupool    driver %s    CUDA %s    %s\n", gpus.front().get("driver_version").c_str(),
                gpus.front().get("cuda_version").c_str(), gpus.front().get("timestamp").c_str());
  out += rule +
         formatted("| %-44s | %21s | %6s | %-16s |\n", "GPU  Name, bus", "Memory used / quota", "Util",
                   "Temp, power") +
         rule;
  for (const Gpu& gpu : gpus) {
    const std::string memory =
        gpu.lost ? "lost" : gpu.get("memory.used") + " / " + gpu.get("memory.total") + " MiB";
    out += formatted("| %3u  %-39.39s | %21s | %6s | %-16s |\n", gpu.index, gpu.get("name").c_str(),
                     memory.c_str(), with_unit(gpu, "utilization.gpu").c_str(), temperature(gpu).c_str());
    out += formatted("|      %-39s | %21s | %6s | %-16s |\n", gpu.get("pci.bus_id").c_str(), "", "",
                     with_unit(gpu, "power.draw").c_str());
  }
  out +=
      rule + formatted("| %5s  %9s  %-65.65s  %13s |\n", "GPU", "PID", "Process on this host", "GPU memory");
  bool any = false;
  for (const Gpu& gpu : gpus) {
    for (const Process& process : gpu.processes) {
      any = true;
      out += formatted("| %5u  %9u  %-65.65s  %9llu MiB |\n", gpu.index, process.pid, process.name.c_str(),
                       static_cast<unsigned long long>(process.memory_mib));
    }
  }
  if (!any) out += formatted("| %-98s |\n", "  none");
  return out + "+" + std::string(98, '-') + "+\n";
}

std::string as_json(const std::vector<Gpu>& gpus) {
  std::string out = "{\"gpus\": [";
  for (size_t at = 0; at < gpus.size(); ++at) {
    const Gpu& gpu = gpus[at];
    out += at == 0 ? "{" : ", {";
    for (const Field& field : fields()) {
      const auto known = gpu.values.find(field.name);
      const std::string value = known == gpu.values.end()         ? "null"
                                : field.kind == Field::Kind::text ? quoted(known->second)
                                                                  : known->second;
      out += quoted(field.name) + ": " + value + ", ";
    }
    out += "\"processes\": [";
    for (size_t i = 0; i < gpu.processes.size(); ++i) {
      const Process& process = gpu.processes[i];
      out += formatted("%s{\"pid\": %u, \"name\": ", i == 0 ? "" : ", ", process.pid) + quoted(process.name) +
             formatted(", \"memory.used\": %llu}", static_cast<unsigned long long>(process.memory_mib));
    }
    out += "]}";
  }
  return out + "]}\n";
}

std::string as_csv(const std::vector<Gpu>& gpus, const Csv& csv) {
  std::string out;
  std::vector<std::string> line;
  for (const std::string& name : csv.columns) {
    const char* const unit = find_field(name)->unit;
    line.push_back(*unit && csv.units ? name + " [" + unit + "]" : name);
  }
  if (csv.header) out += joined(line);
  for (const Gpu& gpu : gpus) {
    line.clear();
    for (const std::string& name : csv.columns) {
      const std::string& value = gpu.get(find_field(name)->name);
      const std::string unit = find_field(name)->unit;
      line.push_back(value == "N/A" ? "[N/A]" : csv.units && !unit.empty() ? value + " " + unit : value);
    }
    out += joined(line);
  }
  return out;
}

bool is_process_column(const std::string& name) {
  constexpr const char* kColumns[] = {"pid", "process_name", "used_gpu_memory", "used_memory", "gpu_uuid"};
  return std::any_of(std::begin(kColumns), std::end(kColumns),
                     [&](const char* column) { return name == column; });
}

std::string processes_as_csv(const std::vector<Gpu>& gpus, const Csv& csv) {
  std::string out;
  std::vector<std::string> line;
  for (const std::string& name : csv.columns)
    line.push_back(name.starts_with("used") && csv.units ? name + " [MiB]" : name);
  if (csv.header) out += joined(line);
  for (const Gpu& gpu : gpus) {
    for (const Process& process : gpu.processes) {
      line.clear();
      for (const std::string& name : csv.columns)
        line.push_back(process_value(gpu, process, name, csv.units));
      out += joined(line);
    }
  }
  return out;
}

}  // namespace gpupool::smi
