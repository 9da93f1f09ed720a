#include "tests/client/coverage/page.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

#include "protocol/cuda/version_map.h"
#include "tests/protocol/cuda/elf_exports.h"

namespace gpupool::testing {
namespace {

struct Symbol {
  const char* name;
  int version;
};
constexpr Symbol kSymbols[] = {
#define CUDA_SYMBOL(name, version) {#name, version},
#include "protocol/cuda/symbols.def"
#undef CUDA_SYMBOL
};

struct Named {
  const char* name;
  const char* text;
};
constexpr const char* mode_text(std::string_view mode) { return mode.starts_with("async") ? "row, queued" : "row, waits for the answer"; }
constexpr Named kRows[] = {
#define CUDA_CALL(id, name, mode, ...) {#name, mode_text(#mode)},
#define CUDA_CALL_PTSZ CUDA_CALL
#define CUDA_CALL_QUIET(id, name, mode, ...) {#name, "by hand, with a row"},
#define CUDA_BY_HAND(name) {#name, "by hand"},
#include "protocol/cuda/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_PTSZ
#undef CUDA_CALL_QUIET
#undef CUDA_BY_HAND
};
constexpr Named kReasons[] = {
#define CUDA_UNSUPPORTED(function, reason) {#function, reason},
#include "protocol/cuda/unsupported.def"
#undef CUDA_UNSUPPORTED
};

// "Mem" of cuMemcpyBatchAsync, "Stream" of cuStreamQuery: what it is about.
std::string object_of(const std::string& name) {
  static constexpr std::pair<const char*, const char*> kObjects[] = {
      {"cuArray", "Arrays"}, {"cuCheckpoint", "Checkpoints"}, {"cuCoredump", "Core dumps"}, {"cuCtx", "Contexts"}, {"cuDev", "Devices"},
      {"cuEvent", "Events"}, {"cuFunc", "Functions"}, {"cuGraphics", "Graphics"}, {"cuGraph", "Graphs"}, {"cuGreenCtx", "Green contexts"},
      {"cuIpc", "Memory and events of other processes"}, {"cuKernel", "Libraries"}, {"cuLaunch", "Launches"}, {"cuLibrary", "Libraries"}, {"cuLink", "Linking"},
      {"cuLogs", "Logs"}, {"cuMem", "Memory"}, {"cuMipmapped", "Arrays"}, {"cuModule", "Modules"}, {"cuMulticast", "Multicast"},
      {"cuOccupancy", "Functions"}, {"cuParam", "Launches"}, {"cuPointer", "Memory"}, {"cuProfiler", "Profiler"}, {"cuStream", "Streams"},
      {"cuSurf", "Textures and surfaces"}, {"cuTensor", "Tensor maps"}, {"cuTex", "Textures and surfaces"}, {"cuUserObject", "Graphs"},
      {"cuThread", "Streams"}, {"cuExternal", "Graphics"}, {"cuImport", "Graphics"}, {"cuDestroyExternal", "Graphics"},
      {"cuSignal", "Graphics"}, {"cuWait", "Graphics"}};
  for (const auto& [prefix, object] : kObjects) {
    if (name.starts_with(prefix)) return object;
  }
  return "Start-up and errors";
}

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace

Coverage read_coverage(const std::string& library) {
  const std::set<std::string> defined = elf_exports(library, Stubs::left_out);
  if (defined.empty()) throw std::runtime_error(library + " exports nothing");
  std::map<std::string, Coverage::Function> functions;
  std::map<std::string, int> first;
  for (const Symbol& symbol : kSymbols) {
    const std::string base(cuda::base_name(symbol.name));
    Coverage::Function& function = functions[base];
    function.name = base;
    if (const auto [at, is_new] = first.try_emplace(base, symbol.version); !is_new) at->second = std::min(at->second, symbol.version);
    if (defined.contains(symbol.name)) function.defined = true;
    else function.missing.push_back(symbol.name);
  }
  for (auto& [base, function] : functions) {
    function.since = version_text(first[base]);
    if (function.defined) function.how = "by hand";
  }
  for (const Named& row : kRows) functions.at(std::string(cuda::base_name(row.name))).how = row.text;
  for (const Named& row : kReasons) {
    const auto found = functions.find(row.name);
    if (found == functions.end()) throw std::runtime_error(std::string("unsupported.def names a function that there is not: ") + row.name);
    found->second.reason = row.text;
  }
  Coverage coverage;
  for (auto& [base, function] : functions) coverage.functions.push_back(std::move(function));
  return coverage;
}

std::string coverage_page(const Coverage& coverage) {
  size_t works = 0, reasons = 0, missing = 0;
  std::map<std::string, std::string> tables;
  for (const auto& function : coverage.functions) {
    works += function.defined && function.reason.empty();
    reasons += !function.reason.empty();
    missing += !function.defined && function.reason.empty();
    std::string how = function.reason.empty() ? (function.defined ? function.how : "**missing**") : "no: " + function.reason;
    if (function.defined && !function.missing.empty()) {
      how += "; but not";
      for (const std::string& name : function.missing) how += " `" + name + "`";
    }
    tables[object_of(function.name)] += "| `" + function.name + "` | " + function.since + " | " + how + " |\n";
  }
  std::string page =
      "# Driver functions\n\n"
      "Made from `protocol/cuda/calls.def`, `symbols.def`, `unsupported.def` and the built client library: `cmake --build --preset ci --target coverage`.\n"
      "What is wrong here is wrong there. The names are those of cuda.h 13.0 without `_v2`, `_ptds`, `_ptsz`: all versions of a function do what is said,\n"
      "or the table names those that do not.\n\n";
  page += "Of " + std::to_string(coverage.functions.size()) + " functions " + std::to_string(works) + " work and " + std::to_string(reasons) +
          " answer `CUDA_ERROR_NOT_SUPPORTED` for the reason given" + (missing != 0 ? "; " + std::to_string(missing) + " do so because they are missing yet" : "") + ".\n"
          "A row is sent as the table says ([life of a call](life-of-a-call.md)); what is by hand is in `client/calls/`.\n";
  for (const auto& [object, rows] : tables) page += "\n## " + object + "\n\n| Function | Since CUDA | Works |\n| --- | --- | --- |\n" + rows;
  return page;
}

}  // namespace gpupool::testing
