#include "tests/client/coverage/page.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

#include "protocol/driver/cuda_header.h"  // the rows depend on CUDA_VERSION
#include "protocol/driver/version_map.h"
#include "tests/protocol/driver/elf_exports.h"

namespace gpupool::testing {
namespace {

struct Symbol {
  const char* name;
  int version;
};
constexpr Symbol kSymbols[] = {
#define GPUPOOL_WITHOUT_LATER_SYMBOLS  // without symbols newer than CUDA 13.0
#define CUDA_SYMBOL(name, version) {#name, version},
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
};

struct Named {
  const char* name;
  const char* text;
  bool older = false;  // counts only if calls.def has no other version of the function
};
constexpr const char* mode_text(std::string_view mode) {
  return mode.starts_with("async") ? "row, queued" : "row, waits for the answer";
}
constexpr Named kRows[] = {
#define CUDA_CALL(id, name, mode, ...) {#name, mode_text(#mode)},
#define CUDA_CALL_CUSTOM_EXPORT(id, name, mode, ...) {#name, "by hand, with a row"},
#define CUDA_BY_HAND(name) {#name, "by hand"},
#define CUDA_OLDER(name, newer, ...) {#name, "calls `" #newer "`", true},
#define CUDA_OLDER_ON_STREAM CUDA_OLDER
#define CUDA_OLDER_ALLOCATION CUDA_OLDER
#define CUDA_ANSWER(name, ...) {#name, "answered by the client"},
#define CUDA_ANSWER_ON_STREAM CUDA_ANSWER
#define CUDA_CHECK(name, ...) {#name, "answered by the client"},
#define CUDA_GRAPH_NODE(name, ...) {#name, "derived from the kind of node"},
#define CUDA_ROW_COPY(name) {#name, "calls `cuMemcpy2D`"},
#define CUDA_ROW_COPY_ASYNC(name) {#name, "calls `cuMemcpy2DAsync`"},
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
};
struct Limit {
  const char* name;
  State state;
  const char* reason;
};
constexpr Limit kLimits[] = {
#define CUDA_PARTLY(function, missing) {#function, State::partly, missing},
#define CUDA_NO_EFFECT(function, reason) {#function, State::no_effect, reason},
#define CUDA_REFUSED(function, reason) {#function, State::refused, reason},
#define CUDA_UNSUPPORTED(function, reason) {#function, State::unsupported, reason},
#include "protocol/calls/limits.def"
#include "protocol/driver/unsupported.def"
#undef CUDA_PARTLY
#undef CUDA_NO_EFFECT
#undef CUDA_REFUSED
#undef CUDA_UNSUPPORTED
};

// Returns the group of a function, e.g. "Memory" for cuMemcpyBatchAsync.
std::string object_of(const std::string& name) {
  static constexpr std::pair<const char*, const char*> kObjects[] = {
      {"cuArray", "Arrays"},
      {"cuCheckpoint", "Checkpoints"},
      {"cuCoredump", "Core dumps"},
      {"cuCtx", "Contexts"},
      {"cuDev", "Devices"},
      {"cuEvent", "Events"},
      {"cuFunc", "Functions"},
      {"cuGraphics", "Graphics"},
      {"cuGraph", "Graphs"},
      {"cuGreenCtx", "Green contexts"},
      {"cuIpc", "Memory and events of other processes"},
      {"cuKernel", "Libraries"},
      {"cuLaunch", "Launches"},
      {"cuLibrary", "Libraries"},
      {"cuLink", "Linking"},
      {"cuLogs", "Logs"},
      {"cuMem", "Memory"},
      {"cuMipmapped", "Arrays"},
      {"cuModule", "Modules"},
      {"cuMulticast", "Multicast"},
      {"cuOccupancy", "Functions"},
      {"cuParam", "Launches"},
      {"cuPointer", "Memory"},
      {"cuProfiler", "Profiler"},
      {"cuStream", "Streams"},
      {"cuSurf", "Textures and surfaces"},
      {"cuTensor", "Tensor maps"},
      {"cuTex", "Textures and surfaces"},
      {"cuUserObject", "Graphs"},
      {"cuThread", "Streams"},
      {"cuExternal", "Graphics"},
      {"cuImport", "Graphics"},
      {"cuDestroyExternal", "Graphics"},
      {"cuSignal", "Graphics"},
      {"cuWait", "Graphics"}};
  for (const auto& [prefix, object] : kObjects) {
    if (name.starts_with(prefix)) return object;
  }
  return "Start-up and errors";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

const char* word_of(State state) {
  switch (state) {
    case State::works: return "yes";
    case State::partly: return "in part";
    case State::no_effect: return "no effect";
    case State::refused:
    case State::unsupported: return "no";
  }
  return "";
}

// The text of the last two columns.
std::string row_text(const Coverage::Function& function) {
  std::string text = std::string(word_of(function.state)) + " | " + function.reason;
  if (function.state == State::works) text += function.how;
  if (function.defined && !function.missing.empty()) {
    text += "; but not";
    for (const std::string& name : function.missing) text += " `" + name + "`";
  }
  return text;
}

constexpr char kHead[] =
    "# Driver functions\n\n"
    "Generated from `protocol/calls/calls.def`, `symbols.def`, `limits.def`, `unsupported.def` and the built "
    "client library:\n"
    "`cmake --build --preset dev --target coverage`. Correct mistakes there, not here. The names are those "
    "of "
    "cuda.h 13.0 without `_v2`, `_ptds`,\n"
    "`_ptsz`: a row holds for all versions of a function, unless it names versions that are missing.\n\n"
    "| Works | Meaning |\n| --- | --- |\n"
    "| yes | The function behaves as documented. tests/parity calls it on softgpu directly and through the "
    "pool and compares the results; for the main calls it also checks the documented results, because the "
    "two share code (`protocol/calls/common_calls`). [untested.def](../tests/parity/untested.def) lists the "
    "functions that other tests cover. The last column says how the call is sent ([life of a "
    "call](life-of-a-call.md)) |\n"
    "| in part | The same, with the exceptions in the last column |\n"
    "| no effect | The function checks its arguments and succeeds, without further effect |\n"
    "| no | The function returns `CUDA_ERROR_NOT_SUPPORTED`, or fails as on a device without the feature "
    "|\n\n"
    "For all functions: GPUs of several servers do not share streams, graphs, arrays and mappings, and their "
    "kernels do not reach one another's memory\n"
    "([ADR 0009](adr/0009-several-servers.md)).\n\n";

}  // namespace

std::vector<DeclaredFunction> declared_functions() {
  std::map<std::string, DeclaredFunction> functions;
  std::map<std::string, int> first;
  for (const Symbol& symbol : kSymbols) {
    const std::string base(cuda::base_name(symbol.name));
    functions[base].name = base;
    const auto [at, is_new] = first.try_emplace(base, symbol.version);
    if (!is_new) at->second = std::min(at->second, symbol.version);
  }
  const auto find = [&](const char* table, std::string_view name) -> DeclaredFunction& {
    const auto found = functions.find(std::string(cuda::base_name(name)));
    if (found == functions.end())
      throw std::runtime_error(std::string(table) + " names an unknown function: " + std::string(name));
    return found->second;
  };
  for (const Named& row : kRows) {
    DeclaredFunction& function = find("calls.def", row.name);
    if (!row.older || function.how.empty()) function.how = row.text;
    function.state = State::works;
  }
  for (const Limit& limit : kLimits) {
    DeclaredFunction& function = find("limits.def or unsupported.def", limit.name);
    if (!function.reason.empty()) function.mistakes.push_back("it is in two tables, or twice in one");
    if ((limit.state == State::unsupported) != function.how.empty()) {
      function.mistakes.push_back(function.how.empty() ? "limits.def has it, and calls.def does not"
                                                       : "calls.def and unsupported.def have it");
    }
    function.state = limit.state;
    function.reason = limit.reason;
  }
  std::vector<DeclaredFunction> all;
  for (auto& [base, function] : functions) {
    function.since = version_text(first[base]);
    if (function.how.empty() && function.reason.empty()) function.mistakes.push_back("no table has it");
    all.push_back(std::move(function));
  }
  return all;
}

Coverage read_coverage(const std::string& library) {
  const std::set<std::string> defined = elf_exports(library, Stubs::left_out);
  if (defined.empty()) throw std::runtime_error(library + " exports nothing");
  Coverage coverage;
  for (DeclaredFunction& declared : declared_functions()) {
    Coverage::Function function{std::move(declared), {}, false};
    for (const Symbol& symbol : kSymbols) {
      if (cuda::base_name(symbol.name) != function.name) continue;
      if (defined.contains(symbol.name))
        function.defined = true;
      else
        function.missing.push_back(symbol.name);
    }
    coverage.functions.push_back(std::move(function));
  }
  return coverage;
}

std::string coverage_page(const Coverage& coverage) {
  std::map<State, size_t> count;
  std::map<std::string, std::string> tables;
  for (const auto& function : coverage.functions) {
    ++count[function.state];
    tables[object_of(function.name)] +=
        "| `" + function.name + "` | " + function.since + " | " + row_text(function) + " |\n";
  }
  std::string page = kHead;
  page += "Of " + std::to_string(coverage.functions.size()) + " functions " +
          std::to_string(count[State::works]) + " work, " + std::to_string(count[State::partly]) +
          " work in part, " + std::to_string(count[State::no_effect]) + " are accepted without effect, and " +
          std::to_string(count[State::refused] + count[State::unsupported]) + " are not supported.\n";
  for (const auto& [object, rows] : tables)
    page += "\n## " + object + "\n\n| Function | Since CUDA | Works | |\n| --- | --- | --- | --- |\n" + rows;
  return page;
}

}  // namespace gpupool::testing
